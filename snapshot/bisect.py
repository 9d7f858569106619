"""Find the commit that made something wrong: a binary search over consistent cuts with a SQL predicate.

The predicate is a query that returns rows when something is wrong. It is asked at cuts in which no stage is
ahead of what its senders sent, so a wrong answer is wrong state, never a torn look at a running app.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import ceil, log2

import duckdb
import pyarrow as pa

from ..store import history
from ..store.cache import SstCache
from ..store.errors import Refused, Usage
from ..store.objects import ObjectStore
from .capture import ChannelReader
from .channel_tables import channel_tables, names_channels
from .cut import resolve, telling_if_collected
from .lineage import Lineage, trace
from .moments import first_cut
from .narrowing import Between
from .refs import parse
from .tables import connect, named_tables, run_query
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
    """Evaluations against the order: good after the first bad cut, or bad before the last good one. Empty as
    far as could be seen when the history went from good to bad once; otherwise the verdict is one of several
    changes."""

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
    reader: ChannelReader | None = None,
) -> Verdict:
    """The first commit, between two moments, at which `where` returns rows.

    Tables that had no version yet at a cut are empty there. Versions whose tables hold the same rows are not
    evaluated twice, nor those of tables that `where` does not name, so there are O(log versions) evaluations
    per table.

    Args:
        store: where the app lives.
        cache: where SSTs of a remote store come to lie.
        app: name of the app.
        where: SQL over the app's tables that returns rows when something is wrong.
        good: ref of a moment where it returns none; default the beginning of the app's history.
        bad: ref of a moment where it returns rows; default now.
        on_step: told of each evaluation.
        now_ms: what relative refs count from; default the wall clock.
        reader: reads records in flight, which `where` may ask for as `inflight('channel')`.

    Raises:
        Usage: a ref or the SQL is malformed, or it asks for records in flight without a `reader`.
        NotFound: there is no such app, moment, table or column.
        Refused: the predicate returns no rows at `bad`, or some at `good`; or `good` is not before `bad`.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    moment_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    for text in (good, bad):
        if text and (other := parse(text, now_ms=moment_ms).app) != app:
            raise Refused(
                f"{text} is a moment of app {other!r}; expected one of {app!r}",
                hint=f"did you mean {app}@{text}" if text == other else "",
            )
    low = resolve(store, good, now_ms=moment_ms) if good else first_cut(store, app)
    high = resolve(store, bad or app, now_ms=moment_ms)
    low = _without_retired(store, low, high, where, bad or app)
    # Commits are compared, so each is seen as it was committed: no row expires between two of them.
    low, high = replace(low, seen_ms=0), replace(high, seen_ms=0)
    first = {stage: history.first_version(store, app, stage) for stage in high.stages}
    for ref, cut in ((good, low), (bad, high)):
        if before := [stage for stage, m in cut.stages.items() if m.version < first.get(stage, 0)]:
            stage = before[0]
            raise Refused(
                f"{ref} lies where the history of {app} was thinned out: {stage}@v{cut.stages[stage].version} is left, "
                f"but from there to v{first[stage]} versions were collected, and the search needs them all",
                hint=f"choose moments from {app}/{stage}@v{first[stage]} on; leave --good away to search all of those",
            )
    asks = names_channels(where)
    watched = frozenset(high.stages) if asks else named_tables(where, high)
    between = Between(low, high, partial(history.read, store, app), first, watched, asks)
    if not between.ordered():
        raise Refused(
            f"the good moment {good or f'(the beginning of {app})'} is not before the bad one, {bad or app}",
            hint="good must be the earlier of the two",
        )
    search = _Search(store, cache, where, between, on_step, reader)
    search.check_ends(good, bad)
    return search.run()


class _Search:
    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        where: str,
        between: Between,
        on_step: Callable[[Step], None] | None,
        reader: ChannelReader | None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._where = where
        self._between = between
        self._on_step = on_step
        self._reader = reader
        self._steps: list[Step] = []
        # Tables without a version yet are shown empty, with the columns they were to have.
        self._tables = {
            name: manifest.table for name, manifest in between.high.tables.items() if manifest.table is not None
        }
        self._bad_rows = pa.table({})
        """What the predicate returned at the earliest bad cut so far."""

    def check_ends(self, good: str | None, bad: str | None) -> None:
        app = self._between.high.app
        if not self._ask(self._between.high, 1 + _halvings(self._between)):
            raise Refused(
                f"the predicate returns no rows at {bad or f'{app}@now'}: nothing is wrong there",
                hint="give --bad a moment at which it returns rows; `slackwater query` shows what it returns",
            )
        if not self._ask(self._between.low, _halvings(self._between)):
            return
        if good is None:
            raise Refused(
                f"the predicate returns rows already at the beginning of the history of {app}",
                hint="give --good a later moment, or a predicate that was not true from the start",
            )
        earlier = self._earlier()
        raise Refused(
            f"the predicate returns rows already at {good}: it is not good there",
            hint=f"try --good {earlier}" if earlier else "leave --good away to search all of it",
        )

    def run(self) -> Verdict:
        between = self._between
        # Cuts known to be good, and to be bad, each nearer to the verdict than the one before it.
        good, bad = [between.low], [between.high]
        while (cut := between.middle()) is not None:
            if self._is_bad(cut, between):
                between = replace(between, high=cut)
                bad.append(cut)
            else:
                between = replace(between, low=cut)
                good.append(cut)
        if not between.differing():
            raise _unsteady()
        rows = self._bad_rows
        stage, last_good, first_bad = between.last_step()
        if first_bad.stages[stage].kind not in ("batch", "clone"):
            raise _unsteady()  # claims, compactions and rescales change no row
        contradictions = tuple(self._contradictions(good, bad))
        before, after = last_good.stages.get(stage), first_bad.stages[stage]
        return Verdict(
            app=after.app,
            where=self._where,
            stage=stage,
            good=last_good,
            bad=first_bad,
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

    def _is_bad(self, cut: Cut, between: Between) -> bool:
        """The verdict on a cut between two that are known; with the very rows of one, it is that one's."""
        if not replace(between, high=cut).differing():
            return False
        if not replace(between, low=cut).differing():
            return True
        return self._ask(cut, _halvings(between) - 1)

    def _contradictions(self, good: list[Cut], bad: list[Cut]) -> Iterator[Step]:
        """Look into the widest stretches that the search jumped over, where nothing proves the order."""
        probes: list[tuple[Cut, bool]] = []
        for chain, expected in ((good, False), (bad[::-1], True)):
            gaps = [replace(self._between, low=low, high=high) for low, high in pairwise(chain)]
            gaps.sort(key=lambda gap: sum(gap.length(stage) for stage in gap.differing()), reverse=True)
            middles = (gap.middle() for gap in gaps[:_PROBES])
            probes += [(middle, expected) for middle in middles if middle is not None]
        for number, (cut, expected) in enumerate(probes, 1):
            if self._ask(cut, len(probes) - number) != expected:
                yield self._steps[-1]

    def _ask(self, cut: Cut, to_come: int) -> bool:
        """Evaluate the predicate; `to_come` is how many evaluations will follow, as far as one can tell."""
        flying = channel_tables(self._store, cut, self._where, self._reader) if self._between.channels else None
        with telling_if_collected(self._store, cut), self._connect(cut, flying) as con:
            try:
                rows = run_query(con, self._where, max_rows=_MAX_ROWS)
            except Usage as error:
                if isinstance(error.__cause__, duckdb.ParserException) and _is_condition(con, self._where):
                    error.hint = f"write a query that returns rows: SELECT KEY FROM TABLE WHERE {self._where.strip()}"
                raise
        is_bad: bool = rows.num_rows > 0
        if is_bad:
            self._bad_rows = rows
        number = len(self._steps) + 1
        self._steps.append(Step(number, number + to_come, cut, is_bad))
        if self._on_step is not None:
            self._on_step(self._steps[-1])
        return is_bad

    def _connect(self, cut: Cut, flying: Mapping[str, pa.Table] | None) -> closing[duckdb.DuckDBPyConnection]:
        only, empty = self._between.watched, self._tables
        return closing(connect(self._store, self._cache, cut, only=only, empty=empty, channels=flying))

    def _earlier(self) -> str:
        """A ref to the middle of what lies before the good end, empty when nothing does."""
        low = self._between.low
        before = replace(self._between, low=first_cut(self._store, low.app), high=low)
        longest = max(before.differing(), key=before.length, default="")
        if not longest:
            return ""
        middle = (before.lowest(longest) + low.stages[longest].version) // 2
        return f"{low.app}/{longest}@v{max(middle, before.first[longest])}"


def _halvings(between: Between) -> int:
    """How many evaluations it will take from here, as far as one can tell."""
    differing = between.differing()
    longest = max((between.length(stage) for stage in differing), default=1)
    return ceil(log2(longest)) + ceil(log2(max(len(differing), 1))) + _PROBES


def _is_condition(con: duckdb.DuckDBPyConnection, text: str) -> bool:
    """Whether the text, which is no query, is what stands behind a query's WHERE."""
    try:
        con.extract_statements(f"SELECT 1 WHERE {text}")
    except duckdb.Error:
        return False
    return True


def _without_retired(store: ObjectStore, low: Cut, high: Cut, where: str, bad: str) -> Cut:
    """The good cut without the stages that were retired in between: these have no part in the answer.

    Raises:
        Refused: the predicate names the table of one.
    """
    gone = set()
    for stage in sorted(low.stages.keys() - high.stages.keys()):
        head = history.head(store, low.app, stage)
        then = history.latest_at(store, low.app, stage, high.time_ms)
        if not any(found is not None and found.retired for found in (head, then)):
            continue
        gone.add(stage)
        if stage in low.tables and re.search(rf"\b{re.escape(stage)}\b", where, re.IGNORECASE):
            last = head.version - 1 if head is not None and head.retired else low.stages[stage].version
            raise Refused(
                f"the predicate names the table {stage}, whose stage is not part of {bad}: it was retired",
                hint=f"search up to a moment that has it: --bad {low.app}/{stage}@v{last}",
            )
    return replace(low, stages={stage: found for stage, found in low.stages.items() if stage not in gone})


def _unsteady() -> Refused:
    return Refused(
        "the predicate returned rows at one cut and none at another whose tables hold the same rows",
        hint="let it depend on the tables alone: no random(), now() or settings",
    )
