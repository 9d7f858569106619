"""`slackwater attach` as a process: a Spark of our own that reads a checkpoint, and what goes on beside the reading.

Not here: how a checkpoint is read (`pipeline.checkpoint`), and what becomes of it (`keep.attach`).
"""
