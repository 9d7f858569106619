"""`slackwater adopt`: what a program, Kafka and a Spark of our own have to do with a query that becomes a stage.

Not here: how a checkpoint is read (`pipeline.checkpoint`), and what becomes of it (`keep.adopt`).
"""
