"""Status of an app: lag of its stages, running stages, and costs."""

__all__ = ["cost", "overview"]
