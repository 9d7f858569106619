"""How an app is doing: how far its stages are behind, and which of them run."""

__all__ = ["lag", "roster"]
