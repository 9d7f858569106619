"""How a runner has a batch start though no input has anything new: a file that the planner of one input looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Wake:
    """Something to be done at a time, by the batch after a version."""

    path: Path

    def ask(self, version: int, at_ms: int) -> None:
        """Have a batch start at this time or later, in ms since 1970; `version` is the one before it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)  # asked before the query has begun
        whole = self.path.with_suffix(".new")
        whole.write_text(f"{version} {at_ms}")
        whole.replace(self.path)

    def forget(self) -> None:
        """Nothing is to be done."""
        self.path.unlink(missing_ok=True)

    def asked(self, handled: int, now_ms: int) -> int:
        """The version after which a batch is to start now; 0 for none, and up to the one that was `handled`."""
        try:
            version, at_ms = map(int, self.path.read_text().split())
        except FileNotFoundError:
            return 0
        return version if version > handled and at_ms <= now_ms else 0
