"""What changed: the rows that differ between two moments, and the history of one key.

Nothing here looks at rows that both moments have, or versions that did not write the key: cost follows the change.
"""

__all__ = ["candidates", "key_changes", "key_history", "moments", "stored_rows", "versions"]
