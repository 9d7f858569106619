"""Status of an app: the lag of its stages, the runners of its stages, and its cost."""

__all__ = ["cost", "overview"]
