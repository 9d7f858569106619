"""The expected dictionary of a version: entries with expiry times, and a clock."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from slackwater.store.sst.ttl import BEFORE_FIRST_EVENT_MS
from slackwater.store.versions.manifest import Ttl

from tests.models.tables import Form
from tests.support.state_rows import Key, Values

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

Changes = Mapping[Form, tuple[Key, Values | None]]
"""Changes by the key's normal form: the key to write and its values, or None to delete it."""
Shown = dict[Form, Values]
"""Visible rows."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Values of a key, and when they expire; None for never."""

    values: Values
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class State:
    """Rows of a table version, computed without the product's `store.sst.ttl` and `store.sst.schema`."""

    entries: Mapping[Form, Entry] = field(default_factory=dict)
    """Entries. An expired entry stays until its key is written again."""
    clock_ms: int = 0
    lifetime: Ttl | None = None

    @property
    def by_write_time(self) -> bool:
        """True if rows expire by the wall clock."""
        return self.lifetime is not None and self.lifetime.ms > 0 and not self.lifetime.column

    def shown(self, clock_ms: int | None = None) -> Shown:
        """Return the rows that are visible at a clock, by default the version's own clock."""
        at_ms = self.clock_ms if clock_ms is None else clock_ms
        return {
            form: entry.values
            for form, entry in self.entries.items()
            if entry.expires_ms is None or entry.expires_ms > at_ms
        }

    def seen(self, now_ms: int) -> int:
        """Return the clock that a reader or a new batch uses at this time, if this version is the head."""
        return max(now_ms, self.clock_ms) if self.by_write_time else self.clock_ms

    def to_come(self) -> list[int]:
        """Return the future expiry times of rows, ascending."""
        moments = {entry.expires_ms for entry in self.entries.values() if entry.expires_ms is not None}
        return sorted(moment_ms for moment_ms in moments if moment_ms > self.clock_ms)

    def after(self, changes: Changes, now_ms: int) -> "State":
        """Return the state after a batch that begins at this time."""
        clock_ms = latest_ms = self.seen(now_ms)
        entries = dict(self.entries)
        for form, (_, values) in changes.items():
            entries.pop(form, None)
            if values is None:
                continue
            expires_ms = None
            if self.lifetime is not None and self.lifetime.ms:
                written_ms = _ms(values[-1]) if self.lifetime.column else clock_ms
                if written_ms is not None:
                    expires_ms = written_ms + self.lifetime.ms
                    latest_ms = max(latest_ms, written_ms)
            entries[form] = Entry(values, expires_ms)
        return State(entries, latest_ms, self.lifetime)

    def migrated(self, change: Callable[[Values], Values]) -> "State":
        """Return the state after a migration with this effect on each row."""
        return replace(self, entries={form: replace(e, values=change(e.values)) for form, e in self.entries.items()})

    def claimed(self, declared: Ttl | None) -> "State":
        """Return the state after a claim by a program with this declaration.

        Expiry times and the clock are unchanged.
        """
        if self.lifetime is None:
            begun = declared is None or not declared.column
            return replace(self, lifetime=declared, clock_ms=self.clock_ms if begun else BEFORE_FIRST_EVENT_MS)
        return replace(self, lifetime=declared or Ttl(0, self.lifetime.column))


def moment(at_ms: int) -> datetime:
    """Return a time in the form in which a row stores it."""
    return _EPOCH + at_ms * _MS


def _ms(at: object) -> int | None:
    return (at - _EPOCH) // _MS if isinstance(at, datetime) else None
