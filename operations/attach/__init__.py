"""Attachment to a running query or topic: commits a version of the query's state for each batch.

`steps` decides what to read next, `rows` writes SSTs, `tail` commits versions, and `follower` is the process. The
sources implement `protocol`: `from_spark/checkpoint` a Spark query's checkpoint, `from_kafka` a compacted topic.
"""
