"""Status of an app: lag of its stages, which of them run, and costs."""

__all__ = ["cost", "overview"]
