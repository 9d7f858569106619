"""The input archive: Parquet copies of the records that an app read from users' topics.

The archive of a topic has Parquet objects and numbered index objects; the newest index lists everything in the archive.
This package has both formats, the loop that commits an index, reading of offset ranges, and merging of small objects.
Elsewhere (`pipeline`, `operations`): Kafka, the versions that read a record, and the schedule of archiving.
"""
