"""Garbage collection: retention, what is reachable and why, and collecting the rest."""

__all__ = ["explain", "gc", "litter", "reachable", "retention", "survey"]
