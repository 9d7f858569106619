"""The input archive: Parquet copies of the records that an app read from users' topics.

The archive of a topic has Parquet objects and numbered index objects; the newest index lists everything in the archive.
Here: both formats, the commit loop, reading ranges of offsets, merging small objects. Not here: Kafka, which version
read which records, and the schedule of archiving (`pipeline`, `operations`).
"""
