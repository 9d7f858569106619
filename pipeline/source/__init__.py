"""Structured Streaming data sources: they plan and read batches, write Spark's checkpoint, and tag errors."""
