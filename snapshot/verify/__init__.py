"""Verification of a cut by recomputing it from stored objects. Read-only."""
