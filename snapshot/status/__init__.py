"""How an app is doing: how far its stages are, which of them run, and what they cost."""

__all__ = ["cost", "lag", "overview"]
