"""Versions of a Spark query's state, one for each of its batches, and the process that follows the query.

`steps` decides which batch is next, `rows` and `tables` map its rows, `tail` is the loop. `checkpoint` reads the
query's checkpoint.
"""
