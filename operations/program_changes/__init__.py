"""A changed program over stored state: the stages that it declares, and the past of what it adds.

The decision is made without Spark in `snapshot.change`; Spark reads the program and computes the past of new columns.
"""
