"""Queries of Spark's own, followed (`attach`) or turned into stages (`adopt`), and the checkpoint that both read."""
