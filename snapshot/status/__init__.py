"""How an app is doing: how far its stages are, which of them run, and what they cost."""

__all__ = ["archives", "lag", "overview"]
