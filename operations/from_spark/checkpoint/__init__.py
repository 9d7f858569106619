"""A Spark query's checkpoint, read while the query runs: which state it keeps, the whole state of a batch, its changes.

Nothing here writes into a checkpoint. Files are copied into a folder of this process, and Spark reads them there.
"""
