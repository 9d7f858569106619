"""The input archive: records that an app read from users' topics, kept as Parquet for when Kafka has deleted them.

Each topic has numbered index objects, of which the newest lists the archive's whole content, and the Parquet objects
that it names. Here: both formats, the commit loop, reading ranges of offsets, merging small objects. Not here: Kafka,
which version read which records, and the schedule of archiving (`pipeline`, `operations`).
"""
