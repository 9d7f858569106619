"""Structured Streaming data sources: batches are planned and read; Spark's checkpoint is written; errors are marked."""
