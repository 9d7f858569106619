"""What methods give: the log, a verification, what changed between moments or of a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ..snapshot.cut.graph import Cut
from ..snapshot.diff import key_history as history
from ..snapshot.diff.moments import TableDiff
from ..snapshot.query.answers import as_relation
from ..snapshot.query.log import LogEntry
from ..snapshot.verify.report import Finding
from ..snapshot.verify.verify import Report
from ..store.sst.arrow_types import python_rows
from .show.document import Block, TableBlock, Title
from .show.history import changes_table, commits_table, table_diff
from .show.shown import Shown
from .show.status import verified

if TYPE_CHECKING:
    import duckdb


class Log(Shown, tuple[LogEntry, ...]):
    """Commits of an app, newest first."""

    __slots__ = ()

    def _blocks(self) -> tuple[Block, ...]:
        return Title(f"{len(self)} commits, newest first"), commits_table(self)


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Shown):
    """What verifying a moment found."""

    report: Report
    """All of it: the books of each channel, and what was looked at."""

    @property
    def consistent(self) -> bool:
        """Whether nothing was found that is not as it must be."""
        return self.report.consistent

    @property
    def differences(self) -> tuple[Finding, ...]:
        """What is not as it must be."""
        return self.report.differences

    def _blocks(self) -> Iterator[Block]:
        report = self.report
        yield Title(f"{report.ref} is {'consistent' if report.consistent else 'not consistent'}")
        yield from islice(verified(report), 1, None)


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

    def _blocks(self) -> Iterable[Block]:
        return table_diff(self.found)


class Difference(Shown, dict[str, TableDifference]):
    """How the tables of two moments differ, by table."""

    def __init__(self, refs: tuple[str, str], cuts: tuple[Cut, Cut], found: Sequence[TableDiff]) -> None:
        super().__init__((each.table, TableDifference(each)) for each in found)
        self.refs = refs
        self.cuts = cuts
        """Their manifests."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return all(each.equal for each in self.values())

    @property
    def found(self) -> tuple[TableDiff, ...]:
        """All that was found out, by table."""
        return tuple(each.found for each in self.values())

    def _blocks(self) -> Iterator[Block]:
        before, after = self.refs
        yield Title(f"{before} and {after} {'are equal' if self.equal else 'differ'}")
        rows = ((each.table, each.added, each.removed, each.changed) for each in self.found)
        yield TableBlock.of(("table", "added", "removed", "changed"), rows)
        yield from (f"{each.table}: {what}" for each in self.found for what in each.unlike)


class KeyHistory(Shown, tuple[history.RowChange, ...]):  # noqa: SLOT001  it has more than its items
    """The changes of one key, newest first."""

    found: history.RowHistory
    """All that was found out."""

    def __new__(cls, found: history.RowHistory) -> KeyHistory:
        """The changes, and all that was found out."""
        made = super().__new__(cls, found.changes)
        made.found = found
        return made

    def _blocks(self) -> Iterator[Block]:
        found, (key,) = self.found, python_rows(self.found.key)
        named = ", ".join(f"{name} {value!r}" for name, value in key.items())
        yield Title(f"{found.app}/{found.table}, {named}: {len(self)} changes, newest first")
        yield changes_table(found)
        if found.whole_from:
            yield f"whole from v{found.whole_from} on: older versions were thinned out by gc"
