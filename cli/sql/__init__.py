"""SQL as it is typed: asking a statement at a moment, and the shell of `slackwater sql`."""

__all__ = ["asking", "prompt", "shell"]
