"""Find the commit that made something wrong: a binary search over the app's line with a SQL predicate.

The predicate is a query that returns rows when something is wrong. It is asked at prefixes of the line (`line`), which
are consistent cuts that a ref names: so a wrong answer is wrong state, never a torn look at a running app, and whoever
types the ref gets the same answer.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log2

import duckdb
import pyarrow as pa

from ...errors import Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import horizon
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..cut.line import Line
from ..cut.lineage import trace
from ..cut.moments import line_of, with_retired
from ..cut.refs import parse
from ..cut.resolve import resolve
from ..query.answers import answer
from ..query.channel_tables import names_channels
from ..query.sql import named_tables
from ..take.capture import ChannelReader
from .changed_keys import turned_keys
from .lattice import Between
from .verdict import MAX_ROWS, Step, Verdict

__all__ = ["Step", "Verdict", "bisect"]

_PROBES = 2
"""Prefixes looked at after the search on each side, for a history that was bad, then good, then bad again."""


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
    """The first commit of the app's line, between two moments, at which `where` returns rows.

    Tables that had no version yet at a moment are empty there. Versions whose tables hold the same rows are not
    evaluated twice, nor those of tables that `where` does not name, so there are O(log versions) evaluations
    per table. An end that is no prefix of the line, as a snapshot, is moved to the next one that is: the good end
    back, the bad one forward.

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
    asked = {text: resolve(store, text, now_ms=moment_ms) for text in (good, bad) if text}
    # After the ends, so that they lie on it. What the app commits from now on does not move it.
    line = line_of(store, app)
    asked = {text: with_retired(line, cut) for text, cut in asked.items()}
    lost = _lost(store, line, asked)
    begin = line.beginning()
    low = line.within(asked[good]) if good else begin
    high = line.around(asked[bad]) if bad else line.heads
    asks = names_channels(where)
    watched = frozenset(line.heads.stages) if asks else named_tables(where, line.heads)
    _check_not_retired(where, high, bad or app)
    if lost and not Between(line, begin, low, watched, asks).ordered():
        low = begin  # the prefix within a snapshot may lie where history is not whole
    between = Between(line, low, high, watched, asks)
    if not between.ordered():
        raise Refused(
            f"the good moment {good or f'(the beginning of {app})'} is not before the bad one, {bad or app}",
            hint="good must be the earlier of the two",
        )
    search = _Search(store, cache, where, between, on_step, reader)
    begins = search.ref(low) if lost and not good else ""
    search.check_ends(_End(good, asked), _End(bad, asked), begins)
    return replace(search.run(), asked=asked, begins=begins)


def _lost(store: ObjectStore, line: Line, asked: Mapping[str, Cut]) -> bool:
    """Whether garbage collection took some of the app's history; raises `Refused` for an end that lies there."""
    limit = horizon.newest(store, line.heads.app)
    lost = [stage for stage, first in (limit.first if limit else {}).items() if first > 1]
    for ref, cut in asked.items():
        for stage in line.heads.stages:
            first, at = line.first(stage), cut.stages.get(stage)
            if (at is None and stage in lost) or (at is not None and at.version < first):
                left = f"{stage}@v{at.version} is left, but from there" if at else f"of {stage} nothing is left, and"
                raise Refused(
                    f"{ref} lies where the history of {cut.app} was thinned out: {left} "
                    f"to v{first} versions were collected, and the search needs them all",
                    hint=f"choose moments from {cut.app}/{stage}@v{first} on; leave --good away to search all of those",
                )
    return bool(lost)


@dataclass(frozen=True, slots=True)
class _End:
    """One end of the search, as it was asked for; no text for the default."""

    text: str | None
    asked: Mapping[str, Cut]

    def said(self, prefix: Cut, ref: str, default: str) -> str:
        """How messages call it: by what was typed, unless the search uses another moment."""
        if self.text is None:
            return default
        if self.asked[self.text].versions == prefix.versions:
            return self.text
        return f"{ref or 'the beginning'}, the moment of the app's line next to {self.text}"


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
        self._judged: dict[tuple[frozenset[object], ...], Step] = {}
        """The evaluations, by what decides them."""

    def check_ends(self, good: _End, bad: _End, begins: str) -> None:
        """Raise `Refused` unless the ends are good and bad; `begins` is where thinned history begins to be whole."""
        low, high, app = self._between.low, self._between.high, self._between.high.app
        if not self._is_bad(high, 1 + _halvings(self._between)):
            raise Refused(
                f"the predicate returns no rows at {bad.said(high, self.ref(high), f'{app}@now')}: "
                "nothing is wrong there",
                hint="give --bad a moment at which it returns rows; `slackwater query` shows what it returns",
            )
        if not self._is_bad(low, _halvings(self._between)):
            return
        if begins:
            raise Refused(
                f"the predicate returns rows already at {begins}: before that, the history of {app} was thinned out",
                hint="`slackwater query` tells at which of the moments that are left it returned none; "
                "the search goes from a later --good only",
            )
        if good.text is None:
            raise Refused(
                f"the predicate returns rows already at the beginning of the history of {app}",
                hint="give --good a later moment, or a predicate that was not true from the start",
            )
        earlier = self._earlier()
        raise Refused(
            f"the predicate returns rows already at {good.said(low, self.ref(low), '')}: it is not good there",
            hint=f"try --good {earlier}" if earlier else "leave --good away to search all of it",
        )

    def run(self) -> Verdict:
        between = self._between
        # Prefixes known to be good, and to be bad, each nearer to the verdict than the one before it.
        good, bad = [between.low], [between.high]
        while (cut := self._next(between)) is not None:
            if self._is_bad(cut, _halvings(between) - 1):
                between = replace(between, high=cut)
                bad.append(cut)
            else:
                between = replace(between, low=cut)
                good.append(cut)
        commit = between.only()
        if commit is None or commit.kind in ("claim", "compaction", "rescale", "retire"):
            raise _unsteady()  # these change no row
        last_good, first_bad = between.line.before(commit), between.line.up_to(commit)
        contradictions = tuple(self._contradictions(good, bad))
        rows = self._evaluate(first_bad, MAX_ROWS + 1)
        if not rows.num_rows:
            raise _unsteady()
        before, previous = last_good.stages.get(commit.stage), between.whole.last(last_good)
        return Verdict(
            app=commit.app,
            where=self._where,
            stage=commit.stage,
            good=last_good,
            bad=first_bad,
            good_ref=_ref(previous),
            bad_ref=_ref(commit),
            good_version=before.version if before else 0,
            bad_version=commit.version,
            good_time_ms=previous.time_ms if previous else 0,
            bad_time_ms=commit.time_ms,
            lineage=trace(self._store, before, commit),
            rows=rows.slice(0, MAX_ROWS),
            more_rows=rows.num_rows > MAX_ROWS,
            keys=turned_keys(self._store, self._cache, before, commit, rows.slice(0, MAX_ROWS)),
            steps=tuple(self._judged.values()),
            non_monotone=contradictions,
        )

    def ref(self, cut: Cut) -> str:
        """A ref to a prefix, empty for the empty one."""
        return _ref(self._between.whole.last(cut))

    def _next(self, between: Between) -> Cut | None:
        """The prefix to look at next, None when the first bad commit is found."""
        if (commit := between.middle()) is not None:
            return between.line.up_to(commit)
        if (commit := between.only()) is None:
            return None
        # Commits of other watched tables that were undone may lie beside it: then both its sides must be looked at.
        before, up_to = between.line.before(commit), between.line.up_to(commit)
        if self._is_bad(before, 0):
            return before
        return None if self._is_bad(up_to, 0) else up_to

    def _contradictions(self, good: list[Cut], bad: list[Cut]) -> Iterator[Step]:
        """Look into the widest stretches that the search jumped over, where nothing proves the order."""
        probes: list[tuple[Cut, bool]] = []
        for chain, expected in ((good, False), (bad[::-1], True)):
            gaps = [replace(self._between, low=low, high=high) for low, high in pairwise(chain)]
            gaps.sort(key=lambda gap: sum(gap.length(stage) for stage in gap.differing()), reverse=True)
            commits = ((gap, gap.middle()) for gap in gaps[:_PROBES])
            probes += [(gap.line.up_to(commit), expected) for gap, commit in commits if commit is not None]
        for number, (cut, expected) in enumerate(probes, 1):
            if (step := self._judge(cut, len(probes) - number)).bad != expected:
                yield step

    def _is_bad(self, cut: Cut, to_come: int) -> bool:
        return self._judge(cut, to_come).bad

    def _judge(self, cut: Cut, to_come: int) -> Step:
        """The verdict on a prefix; `to_come` is how many evaluations will follow, as far as one can tell."""
        content = self._between.content(cut)
        if content not in self._judged:
            is_bad = self._evaluate(cut, 1).num_rows > 0
            number = len(self._judged) + 1
            step = self._judged[content] = Step(number, number + to_come, self.ref(cut), cut, is_bad)
            if self._on_step is not None:
                self._on_step(step)
        return self._judged[content]

    def _evaluate(self, cut: Cut, max_rows: int) -> pa.Table:
        """What the predicate returns at a cut. Tables without a version yet are empty."""
        later, only = self._between.whole.heads.stages, self._between.watched
        try:
            return answer(
                self._store,
                self._cache,
                cut,
                self._where,
                later=later,
                only=only,
                reader=self._reader,
                max_rows=max_rows,
            )
        except Usage as error:
            if isinstance(error.__cause__, duckdb.ParserException) and _is_condition(self._where):
                error.hint = f"write a query that returns rows: SELECT KEY FROM TABLE WHERE {self._where.strip()}"
            raise

    def _earlier(self) -> str:
        """A ref to the middle of what lies before the good end, empty when nothing does."""
        before = replace(self._between, low=self._between.whole.beginning(), high=self._between.low)
        return _ref(before.middle()) if before.ordered() else ""


def _ref(commit: Manifest | None) -> str:
    return f"{commit.app}/{commit.stage}@v{commit.version}" if commit is not None else ""


def _halvings(between: Between) -> int:
    """How many evaluations it will take from here, as far as one can tell."""
    differing = between.differing()
    longest = max((between.length(stage) for stage in differing), default=1)
    return ceil(log2(max(longest, 1))) + ceil(log2(max(len(differing), 1))) + _PROBES


def _is_condition(text: str) -> bool:
    """Whether the text, which is no query, is what stands behind a query's WHERE."""
    with duckdb.connect() as con:
        try:
            con.extract_statements(f"SELECT 1 WHERE {text}")
        except duckdb.Error:
            return False
    return True


def _check_not_retired(where: str, high: Cut, bad: str) -> None:
    """Raise `Refused` when the predicate names the table of a stage that is retired at the bad end."""
    for stage, last in high.tables.items():
        if last.retired and re.search(rf"\b{re.escape(stage)}\b", where, re.IGNORECASE):
            raise Refused(
                f"the predicate names the table {stage}, whose stage is not part of {bad}: it was retired",
                hint=f"search up to a moment that has it: --bad {high.app}/{stage}@v{last.version - 1}",
            )


def _unsteady() -> Refused:
    return Refused(
        "the predicate returned rows at one moment and none at another whose tables hold the same rows",
        hint="let it depend on the tables alone: no random(), now() or settings",
    )
