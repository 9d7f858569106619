"""Reading a cut: SQL over tables and channels, also at other moments; look-ups by key; export; the log of commits.

This package never writes to the store.
"""

__all__ = ["answers", "clauses", "columns", "export", "log", "sql"]
