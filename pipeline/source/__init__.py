"""Structured Streaming data sources: planning a batch, reading it, Spark's checkpoint folder, marks of own errors."""

__all__ = ["checkpoint", "data_source", "own_errors", "planner", "readers", "request_watch", "wake", "worker"]
