"""What asking gives: the log, a verdict of bisect, a verification."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import duckdb

from ..results.document import Block, Shown, Table, Time, Title
from ..snapshot.bisect.record import Guilty
from ..snapshot.bisect.verdict import Verdict
from ..snapshot.cut.lineage import Window
from ..snapshot.query.answers import as_relation
from ..snapshot.query.log import Entry
from ..snapshot.verify.report import Difference
from ..snapshot.verify.verify import Report

if TYPE_CHECKING:
    from .moment import Moment

_MAX_KEYS = 10
"""Keys that are shown."""


class Log(Shown, tuple[Entry, ...]):
    """Commits of an app, newest first."""

    __slots__ = ()

    def _blocks(self) -> Iterator[Block]:
        yield Title(f"{len(self)} commits, newest first")
        headings = ("committed", "stage", "version", "kind", "rows", "snapshots", "read")
        yield Table.of(
            headings,
            (
                (
                    Time(each.time_ms),
                    each.stage,
                    f"v{each.version}",
                    each.kind,
                    each.rows_in,
                    ", ".join(each.snapshots),
                    ", ".join(map(str, each.windows)),
                )
                for each in self
            ),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Bisection(Shown):
    """The first commit at which something was wrong; the last that may be, where moments could not be judged."""

    verdict: Verdict
    """All that was found out."""
    good: "Moment | None"
    """The moment right before it; None when it is the first commit."""
    bad: "Moment"
    """The moment that ends with it."""
    record: Guilty | None = None
    """The input record behind it, and how it was found; None where nothing was replayed."""

    @property
    def stage(self) -> str:
        """The stage whose commit it is."""
        return self.verdict.stage

    @property
    def version(self) -> int:
        """The commit's version."""
        return self.verdict.bad_version

    @property
    def windows(self) -> tuple[Window, ...]:
        """The offsets behind the commit, on users' topics."""
        return self.verdict.lineage.sources

    @property
    def rows(self) -> duckdb.DuckDBPyRelation:
        """What the query returns at the bad moment, up to `verdict.MAX_ROWS` rows."""
        return as_relation(self.verdict.rows)

    @property
    def keys(self) -> duckdb.DuckDBPyRelation | None:
        """The keys that the commit turned bad, with `before_…` and `after_…` values; None for a stage without table."""
        return as_relation(self.verdict.keys.flat()) if self.verdict.keys is not None else None

    def _blocks(self) -> Iterator[Block]:
        found = self.verdict
        good = found.good_ref or "before the first commit"
        yield Title(f"{found.stage} v{found.bad_version} is the first bad commit of {found.app} (last good: {good})")
        keys = islice(found.keys or (), _MAX_KEYS)
        yield Table.of(("key", "before", "after"), ((short(k.key), short(k.before), short(k.after)) for k in keys))
        if (more := len(found.keys or ()) - _MAX_KEYS) > 0:
            yield f"and {more:,} more keys"
        yield f"read {', '.join(map(str, self.windows))}"
        yield f"found with {found.evaluations} evaluations"
        if self.record is not None:
            hops = self.record.hops
            yield f"behind it: {hops[-1].record}" if hops else f"not replayed: {self.record.reason}"
        if found.candidates:
            yield f"not certain: one of {', '.join(map(str, found.candidates))}"
        if found.non_monotone:
            yield "it went from good to bad more than once: this is one of the changes"


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
    def differences(self) -> tuple[Difference, ...]:
        """What is not as it must be."""
        return self.report.differences

    def _blocks(self) -> Iterator[Block]:
        report = self.report
        yield Title(f"{report.ref} is {'consistent' if report.consistent else 'not consistent'}")
        rows = ((each.check, each.checked, each.differences) for each in report.checks)
        yield Table.of(("looked at", "number", "differences"), rows)
        yield from (each.message for each in report.differences)
        yield from report.not_reread


def short(row: object) -> str:
    """A row in one line."""
    if not isinstance(row, dict):
        return "(no row)"
    return ", ".join(f"{name} {value!r}" for name, value in row.items())
