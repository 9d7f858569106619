"""Differences between two moments, and the history of one key.

The cost follows what changed: rows of both moments, and versions that did not write the key, are not read.
"""

__all__ = ["candidates", "key_changes", "key_history", "moments", "stored_rows"]
