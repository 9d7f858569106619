"""Measurements of what reads, takes over or runs what was written for Spark: checkpoints of its queries, classes."""
