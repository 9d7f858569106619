"""Repair of the past of a few keys: the call, and its output."""
