"""Differences between two moments, and the history of one key.

The cost depends on the changes: rows that both moments share, and versions that did not write the key, are not read.
"""

__all__ = ["candidates", "key_changes", "key_history", "moments", "stored_rows"]
