"""Versions of a Spark query's state, one for each of its batches, and the process that follows the query.

`steps` decides what to read next, `rows` and `tables` map the rows, `tail` is the loop. `checkpoint` reads the query's
checkpoint.
"""
