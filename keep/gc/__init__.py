"""Garbage collection: retention, what is reachable and why, and collecting the rest."""

__all__ = ["collect", "explain", "inventory", "orphans", "reachable", "retention"]
