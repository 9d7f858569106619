"""Versions of a Spark query's state, one for each of its batches, and the process that follows the query.

`steps` decides which batch is next, `rows` and `tables` give its rows, `tail` is the loop. Not here: how a
checkpoint is read (`checkpoint`).
"""
