"""Reading a cut: SQL over tables and channels, also at other moments, look-ups by key, export, and the log of commits.

Nothing here writes to the store.
"""

__all__ = ["answers", "clauses", "columns", "export", "log", "sql"]
