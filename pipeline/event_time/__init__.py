"""How far event time has come, and what comes too late for it.

What `withWatermark` says in a stage's plan, what tasks see of their rows' times, which rows are late, which fall due.
No store here: what is kept is in the manifest.
"""

__all__ = ["due", "late", "progress", "watermarks"]
