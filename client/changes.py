"""What changed: the difference of two moments, and the history of a key."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import duckdb

from ..results.document import Block, Shown, Table, Time, Title
from ..snapshot.diff import history
from ..snapshot.diff.moments import TableDiff
from ..snapshot.query.answers import as_relation
from ..store.sst.python_values import python_rows
from .results import short

_MAX_KEYS = 10
"""Keys that are shown."""


@dataclass(frozen=True, slots=True, repr=False)
class TableDifference(Shown):
    """The rows of one table that differ between two moments."""

    found: TableDiff
    """All that was found out: counts, how far each column agrees, what could not be compared."""

    @property
    def equal(self) -> bool:
        """Whether no row and no column differs."""
        return self.found.equal

    @property
    def rows(self) -> duckdb.DuckDBPyRelation:
        """The rows that differ: the key, `change` (`added`, `removed`, `changed`), `before_…` and `after_…` values."""
        return as_relation(self.found.changes.flat())

    def _blocks(self) -> Iterator[Block]:
        found = self.found
        yield Title(f"{found.table}: {found.added:,} added, {found.removed:,} removed, {found.changed:,} changed")
        some = found.changes.head(_MAX_KEYS)
        rows = ((each.kind, short(each.key), short(each.before), short(each.after)) for each in some)
        yield Table.of(("", "key", "before", "after"), rows)
        yield from found.unlike
        if (more := len(found.changes) - _MAX_KEYS) > 0:
            yield f"and {more:,} more rows"
        if matches := ", ".join(f"{each.column} in {each.differing:,}" for each in found.columns if each.differing):
            yield f"differing: {matches}, of {'about ' if found.about else ''}{found.rows_in_both:,} rows"


class Difference(Shown, Mapping[str, TableDifference]):
    """How the tables of two moments differ, by table."""

    def __init__(self, before: str, after: str, found: Sequence[TableDiff]) -> None:
        self._refs = before, after
        self._found = {each.table: TableDifference(each) for each in found}

    def __getitem__(self, table: str) -> TableDifference:
        return self._found[table]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return all(each.equal for each in self._found.values())

    def _blocks(self) -> Iterator[Block]:
        before, after = self._refs
        tables = [each.found for each in self._found.values()]
        yield Title(f"{before} and {after} {'are equal' if self.equal else 'differ'}")
        rows = ((each.table, each.added, each.removed, each.changed) for each in tables)
        yield Table.of(("table", "added", "removed", "changed"), rows)
        yield from (f"{each.table}: {what}" for each in tables for what in each.unlike)


class KeyHistory(Shown, Sequence[history.Change]):
    """The changes of one key, newest first."""

    def __init__(self, found: history.KeyHistory) -> None:
        self.found = found
        """All that was found out."""

    @overload
    def __getitem__(self, place: int) -> history.Change: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[history.Change]: ...
    def __getitem__(self, place: int | slice) -> history.Change | Sequence[history.Change]:
        return self.found.changes[place]

    def __len__(self) -> int:
        return len(self.found.changes)

    def _blocks(self) -> Iterator[Block]:
        found = self.found
        (key,) = python_rows(found.key)
        yield Title(f"{found.app}/{found.table}, {short(key)}: {len(self)} changes, newest first")
        rows = (
            (
                Time(each.time_ms),
                f"v{each.version}",
                "expired" if each.expired else each.kind,
                short(each.before),
                short(each.after),
                ", ".join(map(str, each.windows)),
            )
            for each in self
        )
        yield Table.of(("committed", "version", "", "before", "after", "read"), rows)
        if found.whole_from:
            yield f"whole from v{found.whole_from} on: older versions were thinned out by gc"
