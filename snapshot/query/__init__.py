"""Reading a cut: SQL over its tables and channels, look-ups by key, the log of commits.

Nothing here writes to the store.
"""

__all__ = ["answers", "channel_tables", "columns", "get", "log", "sql"]
