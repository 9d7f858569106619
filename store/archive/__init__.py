"""The input archive: records that an app's batches read of users' topics, kept as Parquet for when Kafka has lost them.

Each topic has an index, of which the newest number is all that its archive holds, and objects that the index names.
Here: both formats, the one commit loop, reading ranges of offsets, merging small objects into large ones. Not here:
Kafka, what was read by which version, when any of it is done (`pipeline`, `operations`).
"""
