"""Attachment to a running Spark query: commits a version of the query's state for each batch.

`steps` decides what to read next, `rows` writes SSTs, `tail` commits versions, and `follower` is the process. The
package `checkpoint` reads the query's checkpoint.
"""
