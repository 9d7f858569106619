"""Reader of a Spark query's checkpoint while the query runs: tables of state, whole states of batches, and changes.

The checkpoint is never written. Files are copied into a folder of this process, where Spark reads them.
"""
