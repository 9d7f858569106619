"""Garbage collection: retention, what is reachable and why, and collecting the rest."""
