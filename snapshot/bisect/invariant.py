"""Invariant of an app: a condition, the interval of its evaluation, and the command to run when it fails."""

from dataclasses import dataclass, replace

from ...errors import Usage
from ...store.objects.protocol import ObjectStore


@dataclass(frozen=True, slots=True)
class Invariant:
    """Invariant as declared in `[invariants.NAME]` of `slackwater.toml`."""

    name: str
    where: str
    """Query that returns wrong rows, or condition that is true for wrong rows; empty if `check` is set."""
    every_ms: int
    on_failure: str = ""
    """Shell command to run when the invariant begins to fail; empty for none."""
    app: str = ""
    check: str = ""
    """Condition that must hold, as in `bisect --check`."""
    table: str = ""
    """Table of the condition; needed only if several tables have its columns."""

    def __post_init__(self) -> None:
        if self.every_ms <= 0:
            raise Usage(f"invariant {self.name!r}: every {self.every_ms} ms is too short; expected 1 ms or more")

    def for_app(self, store: ObjectStore, app: str) -> "Invariant":
        """Return a copy whose condition is a query over the app's tables. Raises the errors of `parse_check`."""
        # Imported here so that settings with invariants do not load DuckDB.
        from .predicate import parse_check, parse_where

        predicate = (
            parse_check(store, app, self.check, self.table)
            if self.check
            else parse_where(store, app, self.where, self.table)
        )
        return replace(self, where=predicate.sql)
