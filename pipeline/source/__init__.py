"""Structured Streaming data sources: planning a batch, reading it, Spark's checkpoint folder, marks of own errors."""
