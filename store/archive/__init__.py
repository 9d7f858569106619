"""The input archive: records that an app read from users' topics, kept as Parquet for when Kafka has deleted them.

The archive of a topic has Parquet objects and numbered index objects; the newest index lists everything in the archive.
Here: both formats, the commit loop, reading ranges of offsets, merging small objects. Not here: Kafka, which version
read which records, and the schedule of archiving (`pipeline`, `operations`).
"""
