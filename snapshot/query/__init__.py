"""Reading a cut: SQL over tables and channels, look-ups by key, export, and the log of commits. Read-only."""

__all__ = ["answers", "clauses", "columns", "export", "log", "sql"]
