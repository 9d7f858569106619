"""Find the commit that made something wrong: a binary search over consistent cuts with a SQL predicate.

The predicate is a query that returns rows when something is wrong. It is asked at cuts in which no stage is ahead of
what its senders sent, so a wrong answer is wrong state, never a torn look at a running app.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log2

import pyarrow as pa

from ..store import history
from ..store.cache import SstCache
from ..store.errors import Refused
from ..store.manifest import Manifest
from ..store.objects import ObjectStore
from .cut import first_cut, resolve
from .lineage import Lineage, trace
from .narrowing import Between
from .tables import connect, run_query
from .topology import Cut
from .turned import KeyChange, turned_keys

__all__ = ["KeyChange", "Step", "Verdict", "bisect"]

_MAX_ROWS = 1000
"""Rows of the predicate's result that are looked at: enough to name keys, and DuckDB may stop there."""
_PROBES = 2
"""Cuts looked at after the search on each side, for a history that was bad, then good, then bad again."""


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluation of the predicate."""

    number: int
    """From 1."""
    total: int
    """How many there will be, as far as one can tell."""
    cut: Cut
    bad: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The commit between the last good and the first bad cut, which differ by it alone."""

    app: str
    where: str
    stage: str
    """The stage whose commit made it bad."""
    good: Cut
    bad: Cut
    good_version: int
    """The version of `stage` before; 0 when it had none."""
    bad_version: int
    good_time_ms: int
    """When `good_version` was committed; 0 when there is none."""
    bad_time_ms: int
    lineage: Lineage
    """The input windows behind `bad_version`."""
    rows: pa.Table
    """What the predicate returns at the first bad cut, up to 1,000 rows."""
    keys: tuple[KeyChange, ...]
    """Up to ten keys that turned bad: those the predicate names, else those the commit wrote."""
    evaluations: int
    non_monotone: tuple[Step, ...] = ()
    """Evaluations against the order: good after the first bad cut, or bad before the last good one. Empty as far as
    could be seen when the history went from good to bad once; otherwise the verdict is one of several changes."""

    @property
    def good_ref(self) -> str:
        """A ref to the last good moment, empty when the stage had no version before."""
        return f"{self.app}/{self.stage}@v{self.good_version}" if self.good_version else ""

    @property
    def bad_ref(self) -> str:
        """A ref to the first bad moment."""
        return f"{self.app}/{self.stage}@v{self.bad_version}"


def bisect(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    where: str,
    *,
    good: str | None = None,
    bad: str | None = None,
    on_step: Callable[[Step], None] | None = None,
    now_ms: int | None = None,
) -> Verdict:
    """The first commit, between two moments, at which `where` returns rows.

    Tables that had no version yet at a cut are empty there. Versions whose tables hold the same rows are not evaluated
    twice, nor those of tables that `where` does not name, so there are O(log versions) evaluations per table.

    Args:
        store: where the app lives.
        cache: where SSTs of a remote store come to lie.
        app: name of the app.
        where: SQL over the app's tables that returns rows when something is wrong.
        good: ref of a moment where it returns none; default the beginning of the app's history.
        bad: ref of a moment where it returns rows; default now.
        on_step: told of each evaluation.
        now_ms: what relative refs count from; default the wall clock.

    Raises:
        Usage: a ref or the SQL is malformed.
        NotFound: there is no such app, moment, table or column.
        Refused: the predicate returns no rows at `bad`, or some at `good`; or `good` is not before `bad`.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    moment_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    low = resolve(store, good, now_ms=moment_ms) if good else first_cut(store, app)
    high = resolve(store, bad or app, now_ms=moment_ms)
    for ref, cut in ((good, low), (bad, high)):
        if cut.app != app:
            raise Refused(f"{ref} is a moment of app {cut.app!r}; expected one of {app!r}")
    first = {stage: history.first_version(store, app, stage) for stage in high.stages}
    between = Between(low, high, partial(history.read, store, app), first, _named(where, high))
    if not between.ordered():
        raise Refused(
            f"the good moment {good or f'(the beginning of {app})'} is not before the bad one, {bad or app}",
            hint="good must be the earlier of the two",
        )
    search = _Search(store, cache, where, between, on_step)
    search.check_ends(good, bad)
    return search.run()


def _named(where: str, cut: Cut) -> frozenset[str]:
    """The tables that decide what `where` returns: those it names, or all when it may name them in another way."""
    text = where.casefold()
    named = frozenset(name for name in cut.tables if name.casefold() in text)
    # The table functions query() and query_table() take names as data.
    return frozenset(cut.tables) if not named or "query" in text else named


class _Search:
    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        where: str,
        between: Between,
        on_step: Callable[[Step], None] | None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._where = where
        self._between = between
        self._on_step = on_step
        self._steps: list[Step] = []
        # Tables without a version yet are shown empty, with the columns they were to have.
        self._tables = {
            name: manifest.table
            for name, manifest in between.high.tables.items()
            if manifest.table is not None
        }
        self._good = [between.low]
        self._bad = [between.high]

    def check_ends(self, good: str | None, bad: str | None) -> None:
        app = self._between.high.app
        if not self._is_bad(self._between.high):
            raise Refused(
                f"the predicate returns no rows at {bad or f'{app}@now'}: nothing is wrong there",
                hint="give --bad a moment at which it returns rows; `slackwater query` shows what it returns",
            )
        if self._is_bad(self._between.low):
            if good is None:
                raise Refused(
                    f"the predicate returns rows already at the beginning of the history of {app}",
                    hint="say in the predicate what is wrong and was not wrong then, or give --good a later moment",
                )
            raise Refused(
                f"the predicate returns rows already at {good}: it is not good there",
                hint=f"try --good {self._earlier()}"
                if self._earlier()
                else "leave --good away to search all of it",
            )

    def run(self) -> Verdict:
        between = self._between
        while (cut := between.middle()) is not None:
            if not replace(between, low=between.low, high=cut).differing():
                is_bad = False  # the very rows of the good cut
            elif not replace(between, low=cut, high=between.high).differing():
                is_bad = True  # the very rows of the bad cut
            else:
                is_bad = self._is_bad(cut, between)
            if is_bad:
                between = replace(between, high=cut)
                self._bad.append(cut)
            else:
                between = replace(between, low=cut)
                self._good.append(cut)
        if not between.differing():
            raise Refused(
                "the predicate returned rows at one cut and none at another with the same tables",
                hint="let it depend on the tables alone: no random(), now() or settings",
            )
        stage, good, bad = between.last_step()
        return self._verdict(stage, good, bad, tuple(self._contradictions()))

    def _verdict(self, stage: str, good: Cut, bad: Cut, contradictions: tuple[Step, ...]) -> Verdict:
        before: Manifest | None = good.stages.get(stage)
        after = bad.stages[stage]
        rows = self._rows(bad)
        return Verdict(
            app=bad.app,
            where=self._where,
            stage=stage,
            good=good,
            bad=bad,
            good_version=before.version if before else 0,
            bad_version=after.version,
            good_time_ms=before.time_ms if before else 0,
            bad_time_ms=after.time_ms,
            lineage=trace(self._store, before, after),
            rows=rows,
            keys=turned_keys(self._store, self._cache, before, after, rows),
            evaluations=len(self._steps),
            non_monotone=contradictions,
        )

    def _contradictions(self) -> Iterator[Step]:
        """Look into the widest stretches that the search jumped over, where nothing proves the order."""
        for cuts, expected_bad in ((self._good, False), (self._bad, True)):
            # Each cut of a side lies nearer to the verdict than the one before it.
            chain = cuts if not expected_bad else cuts[::-1]
            gaps = [
                replace(self._between, low=low, high=high)
                for low, high in zip(chain, chain[1:], strict=False)
            ]
            widest = sorted(gaps, key=lambda gap: -sum(gap.length(stage) for stage in gap.differing()))
            for gap in widest[:_PROBES]:
                cut = gap.middle()
                if cut is not None and self._is_bad(cut) != expected_bad:
                    yield self._steps[-1]

    def _is_bad(self, cut: Cut, between: Between | None = None) -> bool:
        is_bad = self._rows(cut).num_rows > 0
        step = Step(len(self._steps) + 1, len(self._steps) + 1 + self._to_come(between), cut, is_bad)
        self._steps.append(step)
        if self._on_step is not None:
            self._on_step(step)
        return is_bad

    def _to_come(self, between: Between | None) -> int:
        if between is None:
            between = self._between if len(self._steps) < 2 else None
        if between is None:
            return 0
        differing = between.differing()
        longest = max((between.length(stage) for stage in differing), default=1)
        return ceil(log2(max(longest, 1))) + ceil(log2(max(len(differing), 1))) - 1 + _PROBES

    def _rows(self, cut: Cut) -> pa.Table:
        with closing(connect(self._store, self._cache, cut, empty=self._tables)) as con:
            return run_query(con, self._where, max_rows=_MAX_ROWS)

    def _earlier(self) -> str:
        """A ref to the middle of what lies before the good end, empty when nothing does."""
        low = self._between.low
        before = replace(self._between, low=first_cut(self._store, low.app), high=low)
        stages = before.differing()
        longest = max(stages, key=before.length, default="")
        middle = (before.lowest(longest) + low.stages[longest].version) // 2 if longest else 0
        return f"{low.app}/{longest}@v{middle}" if middle >= before.first.get(longest, 1) else ""
