"""Results of the Python API: the log, a verification, differences between moments, and changes of a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ..snapshot.bisect.explained import Impact, MinimalRecords, ReachedRow, RowExplanation
from ..snapshot.bisect.verdict import SourceRecord
from ..snapshot.cut.graph import Cut
from ..snapshot.diff import key_history as history
from ..snapshot.diff.moments import TableDiff
from ..snapshot.query.answers import as_relation
from ..snapshot.query.log import LogEntry
from ..snapshot.verify.report import Finding
from ..snapshot.verify.verify import Report
from ..store.sst.arrow_types import python_rows
from .explain.result import explanation_blocks, impact_blocks
from .show.document import Block, TableBlock, Title
from .show.history import changes_table, commits_table, table_diff_blocks
from .show.shown import Displayable
from .show.status import verification_blocks

if TYPE_CHECKING:
    import duckdb


class Log(Displayable, tuple[LogEntry, ...]):
    """Commits of an app, newest first."""

    __slots__ = ()

    def _blocks(self) -> tuple[Block, ...]:
        return Title(f"{len(self)} commits, newest first"), commits_table(self)


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Displayable):
    """Result of verifying a moment."""

    report: Report

    @property
    def consistent(self) -> bool:
        """True if no difference was found."""
        return self.report.consistent

    @property
    def differences(self) -> tuple[Finding, ...]:
        """Ways in which the moment is inconsistent, incomplete or damaged."""
        return self.report.differences

    def _blocks(self) -> Iterator[Block]:
        report = self.report
        yield Title(f"{report.ref} is {'consistent' if report.consistent else 'not consistent'}")
        yield from islice(verification_blocks(report), 1, None)


@dataclass(frozen=True, slots=True, repr=False)
class TableDifference(Displayable):
    """Differing rows of one table between two moments."""

    full_diff: TableDiff
    """Numbers of differing rows, agreement of each column, and columns that could not be compared."""

    @property
    def equal(self) -> bool:
        """True if no row and no column differs."""
        return self.full_diff.is_equal

    @property
    def rows(self) -> duckdb.DuckDBPyRelation:
        """Differing rows: the key, `change` (`added`, `removed`, `changed`), `before_…` and `after_…` values."""
        return as_relation(self.full_diff.changes.to_table())

    def _blocks(self) -> Iterable[Block]:
        return table_diff_blocks(self.full_diff)


class Difference(Displayable, dict[str, TableDifference]):
    """Differences between the tables of two moments, by table."""

    def __init__(self, refs: tuple[str, str], cuts: tuple[Cut, Cut], diffs: Sequence[TableDiff]) -> None:
        super().__init__((diff.table, TableDifference(diff)) for diff in diffs)
        self.refs = refs
        self.cuts = cuts

    @property
    def equal(self) -> bool:
        """True if no table differs."""
        return all(table.equal for table in self.values())

    @property
    def full_diffs(self) -> tuple[TableDiff, ...]:
        """Full differences of each table."""
        return tuple(table.full_diff for table in self.values())

    def _blocks(self) -> Iterator[Block]:
        first, second = self.refs
        yield Title(f"{first} and {second} {'are equal' if self.equal else 'differ'}")
        rows = ((table.table, table.added, table.removed, table.changed) for table in self.full_diffs)
        yield TableBlock.from_rows(("table", "added", "removed", "changed"), rows)
        yield from (f"{table.table}: {reason}" for table in self.full_diffs for reason in table.unlike)


class KeyHistory(Displayable, tuple[history.RowChange, ...]):  # noqa: SLOT001 it also has attributes
    """Changes of one key, newest first."""

    full_history: history.RowHistory

    def __new__(cls, row_history: history.RowHistory) -> KeyHistory:
        """Create the tuple of changes, with the full history as `full_history`."""
        changes = super().__new__(cls, row_history.changes)
        changes.full_history = row_history
        return changes

    def _blocks(self) -> Iterator[Block]:
        key_history, (key,) = self.full_history, python_rows(self.full_history.key)
        named = ", ".join(f"{name} {value!r}" for name, value in key.items())
        yield Title(f"{key_history.app}/{key_history.table}, {named}: {len(self)} changes, newest first")
        yield changes_table(key_history)
        if key_history.whole_from:
            yield f"complete from v{key_history.whole_from} on: gc has thinned out older versions"


@dataclass(frozen=True, slots=True, repr=False)
class RowAnswer(Displayable):
    """Records that made a row."""

    full_explanation: RowExplanation
    """Versions that wrote the row, and upstream versions, each with the records that it read for the row."""

    @property
    def row(self) -> dict[str, object] | None:
        """Values of the row; None if there is none."""
        return self.full_explanation.row

    @property
    def records(self) -> tuple[SourceRecord, ...]:
        """Records of users' topics that went into the row. They have payloads only if the caller requested them."""
        return self.full_explanation.sources

    @property
    def minimal(self) -> MinimalRecords | None:
        """Smallest set of records that gives the row; None if not requested, or if unknown."""
        return self.full_explanation.minimal

    @property
    def unknown(self) -> tuple[str, ...]:
        """Reasons why `records` may lack records or have too many; empty if `records` is exact."""
        return tuple(
            f"{version.name}: {version.unknown}" for version in self.full_explanation.versions if version.unknown
        )

    def _blocks(self) -> Iterator[Block]:
        return explanation_blocks(self.full_explanation)


@dataclass(frozen=True, slots=True, repr=False)
class RecordImpact(Displayable):
    """Rows and copies that a record reached."""

    full_impact: Impact
    """Reached rows, sent rows, snapshots and clones; versions that read the record; and reasons for missing facts."""

    @property
    def rows(self) -> tuple[ReachedRow, ...]:
        """Rows of tables, each with its key and the first version that wrote the row with the record."""
        return self.full_impact.rows

    def _blocks(self) -> Iterator[Block]:
        return impact_blocks(self.full_impact)
