"""Structured Streaming data sources: plan and read batches, write Spark's checkpoint, and tag errors."""
