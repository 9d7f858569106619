"""Beside a stage's batches: merges of SSTs, fetches of those that are needed soon, and waiting for merges."""

__all__ = ["compactor", "prefetcher", "upkeep", "write_stall"]
