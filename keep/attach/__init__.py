"""Versions of somebody else's state: what a query of Spark keeps in its checkpoint, one version a batch.

Here is what becomes of what was read: which batch is next (`steps`), the tables (`tables`), the rows (`changed`,
`whole`), and the loop (`tail`). Not here: Spark, and how a checkpoint is read; that comes in by `checkpoint`, and
`memory` has one that lies in memory.
"""
