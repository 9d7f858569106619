"""Structured Streaming data sources: planning a batch, reading it, Spark's checkpoint folder."""

__all__ = ["checkpoint", "data_source", "planner", "readers", "wake", "worker"]
