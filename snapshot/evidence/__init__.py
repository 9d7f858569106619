"""What a report tells beside the verdict of bisect: the commits around it, how much was wrong, what it reached.

Only reads. Not here: how it is told (`results/report/`).
"""

__all__ = ["collect", "reached"]
