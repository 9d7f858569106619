"""The other moments that a statement names: from its clauses to cuts, each resolved once."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...common.durations import parse_ms
from ...errors import NotFound, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.range_reads import at_once
from ...store.versions import apps, history, horizon
from ...store.versions.manifest import Former, Manifest, Table
from ...store.versions.side_tables import owner
from ..cut.graph import Cut
from ..cut.moments import called_since, having_table, later_stages, name_at
from ..cut.refs import AtTime, Named, Ref, parse
from ..cut.resolve import resolve
from ..cut.stored import find_snapshot
from .clauses import TableAt, Versions

MAX_VERSIONS = 1_000
"""Versions that one `versions()` has at most: each has all rows of the table."""

_VERSION = re.compile(r"v\d{1,19}")

OnMoment = Callable[[str, Cut], None]
"""Told of each moment that a statement names: the whole ref, and what it is."""


@dataclass(frozen=True, slots=True)
class ClauseTable:
    """What a clause stands for: a table at one version, or at several of them."""

    clause: TableAt | Versions
    cuts: tuple[Cut, ...]
    """The moments, oldest first. Of `Versions`, cuts of that one stage; none where the table had not begun."""
    table: Table | None
    """The columns; None where no such table is known."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Finds what clauses stand for."""

    store: ObjectStore
    app: str
    """Whose moments are meant where no other app is named."""
    now_ms: int
    """What relative times count from."""
    is_steady: bool
    """Whether words that may mean another moment later are refused: for what is asked again and again."""
    on_moment: OnMoment
    _known: dict[str, Cut] = field(default_factory=dict)
    """By ref."""

    def find(self, clauses: Sequence[TableAt | Versions]) -> tuple[ClauseTable, ...]:
        """What each of them stands for. Clauses that name the same moment see the same cut.

        Raises `Usage` (a moment is malformed, or moves where that is refused; or there are too many versions), and
        `NotFound` (there is no such app, snapshot, version or table, or the history begins later).
        """
        return tuple(self._at(each) if isinstance(each, TableAt) else self._versions(each) for each in clauses)

    def _at(self, clause: TableAt) -> ClauseTable:
        cut, newest = self._with(clause.table, self._cut(clause.moment, clause.table))
        return ClauseTable(clause, (cut,), newest.table if newest is not None else None)

    def _with(self, table: str, cut: Cut) -> tuple[Cut, Manifest | None]:
        """The cut, under names of now where the table has such a one, and the version that has its columns."""
        if table not in cut.tables:
            later = later_stages(self.store, cut)
            cut = cut.under_names_of(later)
            if table not in cut.tables:
                return cut, later.get(table)
        return cut, cut.tables[table]

    def _versions(self, clause: Versions) -> ClauseTable:
        until, newest = self._with(clause.table, self._cut(clause.until, clause.table))
        since = Cut(until.app, {})
        try:
            since = self._cut(clause.since, clause.table) if clause.since else since
        except NotFound:
            # The empty cut at a time when the app had not begun.
            ref = self._ref(clause.since, clause.table)
            if not isinstance(ref.moment, AtTime) or horizon.newest(self.store, ref.app).number:
                raise
            since = Cut(ref.app, {})
        if since.app != until.app:
            raise Usage(f"versions(): {clause.since} is a moment of {since.app}, and {clause.until} one of {until.app}")
        if newest is None:
            name = called_since(self.store, until.app, clause.table)
            hint = f"it is called {name} since, and versions('{name}', …) has those from before, too" if name else ""
            raise NotFound(f"table of app {until.app!r}", clause.table, until.tables, hint=hint)
        stage = owner(clause.table, until.stages)
        found = _between(self.store, clause, stage, self._with(clause.table, since)[0], until)
        return ClauseTable(clause, tuple(Cut(each.app, {stage: each}) for each in found), newest.table)

    def _cut(self, words: str, table: str) -> Cut:
        ref, known = self._ref(words, table), self._known
        if ref.text not in known:
            if self.is_steady and ref.moves:
                raise Usage(
                    f"{words!r} may be another moment each time that it is looked up",
                    hint="name a snapshot, a time or a version",
                )
            known[ref.text] = resolve(self.store, ref.text, now_ms=self.now_ms)
            self.on_moment(ref.text, known[ref.text])
        return known[ref.text]

    def _ref(self, words: str, table: str) -> Ref:
        # A table beside a stage's own has another name than the stage whose versions these are.
        stage = having_table(self.store, self.app, table) if _VERSION.fullmatch(words) else ""
        text = ref_of_words(self.store, self.app, words, now_ms=self.now_ms, stage=stage)
        return parse(text, now_ms=self.now_ms)


def ref_of_words(store: ObjectStore, app: str, words: str, *, now_ms: int, stage: str = "") -> str:
    """The whole ref for what a person calls a moment while they look at an app.

    A whole ref stays what it is. Else it is what stands behind the `@`; `v42` is a version of `stage`, if one is given.
    A name that no snapshot of the app has may be that of another app, which is then meant as it is now. Raises `Usage`
    (it is none of these).
    """
    if "@" in words or "/" in words:
        return words
    if stage and _VERSION.fullmatch(words):
        return f"{app}/{stage}@{words}"
    ref = f"{app}@{words}"
    is_name = isinstance(parse(ref, now_ms=now_ms).moment, Named)
    if is_name and find_snapshot(store, app, words) is None and apps.find_app(store, words) is not None:
        return words
    return ref


def _between(store: ObjectStore, clause: Versions, stage: str, since: Cut, until: Cut) -> tuple[Manifest, ...]:
    """The version at the beginning, then those that may hold other rows; of steps the last version of each."""
    last, begin = until.stages.get(stage), since.stages.get(stage)
    if last is None:
        return ()
    if begin is not None and begin.version > last.version:
        raise Usage(f"versions(): {clause.since} is after {clause.until}", hint="write the earlier moment first")
    first = begin.version if begin is not None else 1
    limit = horizon.newest(store, until.app)
    numbers: list[int] = []
    # Under another name a stage goes on with its numbers.
    for former in (*last.formerly, Former(last.stage, last.version + 1)):
        name, end = former.stage, former.version
        if (whole := history.first_version(store, until.app, name)) and first < end:
            whole, kept = max(first, whole), limit.kept.get(name, ())
            numbers += (*(each for each in kept if first <= each < min(whole, end)), *range(whole, end))
            first = end

    def read(number: int) -> Manifest:
        return history.read(store, until.app, name_at(last, number), number)

    if clause.step:
        begin_ms, end_ms = since.seen_ms or since.time_ms or read(numbers[0]).time_ms, until.seen_ms or until.time_ms
        step_ms = parse_ms("versions(): the step", clause.step)
        if step_ms <= 0:
            raise Usage(f"versions(): a step of {clause.step!r} leads nowhere; expected one longer than that")
        ends = range(begin_ms + step_ms, end_ms + step_ms, step_ms)
        if len(ends) >= MAX_VERSIONS:
            raise _too_many(clause, f"{len(ends):,} steps")

        def newest(time_ms: int) -> int:
            """The last version of the step that ends then, by a binary search."""
            after = bisect_right(numbers, min(time_ms, end_ms), key=lambda number: read(number).time_ms)
            return numbers[max(after - 1, 0)]

        numbers = sorted({numbers[0], *at_once().map(newest, ends)})
    elif len(numbers) > MAX_VERSIONS:
        raise _too_many(clause, f"{len(numbers):,} versions")
    earliest, *others = at_once().map(read, numbers)
    return (earliest, *(each for each in others if each.traits.changes_rows))


def _too_many(clause: Versions, found: str) -> Usage:
    since = clause.since or "-1h"
    return Usage(
        f"versions() of {clause.table} would have the whole table at {found}; {MAX_VERSIONS:,} are the most",
        hint="name moments that are nearer to each other, or a longer step: "
        f"versions('{clause.table}', '{since}', '{clause.until}', '10m') has the last version of every ten minutes",
    )
