"""Reader of a Spark query's checkpoint while the query runs: tables of its state, whole states, and changes.

The checkpoint is never written. Files are copied into a folder of this process, where Spark reads them.
"""
