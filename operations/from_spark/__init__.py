"""Spark queries: following a running query (`attach`), converting a stopped query to a stage (`adopt`).

`checkpoint` reads the queries' checkpoints.
"""
