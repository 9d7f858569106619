"""A changed program over stored state: the stages that it declares.

The decision is made without Spark in `snapshot.change`; Spark only reads the program.
"""
