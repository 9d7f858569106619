"""Other moments that a statement names: from clauses to cuts, each resolved once."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...common.durations import parse_ms
from ...errors import NotFound, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.fetch import at_once
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
"""Maximum number of versions in one `versions()` clause, each with all rows of the table."""

_VERSION = re.compile(r"v\d{1,19}")

OnMoment = Callable[[str, Cut], None]
"""Called with the ref and the cut of each moment that a statement names."""


@dataclass(frozen=True, slots=True)
class ClauseTable:
    """Resolved clause: a table at one version or at several."""

    clause: TableAt | Versions
    cuts: tuple[Cut, ...]
    """Cuts, oldest first. For `Versions`, cuts of one stage; empty if the table did not exist yet."""
    table: Table | None
    """Declared columns; None if no such table is known."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Resolves clauses to tables at moments."""

    store: ObjectStore
    app: str
    """App of moments that name no app."""
    now_ms: int
    """Origin of relative times."""
    is_steady: bool
    """True to refuse moments that may change their meaning, for statements that are repeated."""
    on_moment: OnMoment
    _known: dict[str, Cut] = field(default_factory=dict)
    """Cuts by ref."""

    def find(self, clauses: Sequence[TableAt | Versions]) -> tuple[ClauseTable, ...]:
        """Resolve clauses. Clauses that name the same moment get the same cut.

        Raises `Usage` (a moment is malformed, or may change its meaning where that is refused; or there are too many
        versions) and `NotFound` (no such app, snapshot, version or table, or the history begins later).
        """
        return tuple(self._at(clause) if isinstance(clause, TableAt) else self._versions(clause) for clause in clauses)

    def _at(self, clause: TableAt) -> ClauseTable:
        cut, newest = self._with_table(clause.table, self._cut(clause.moment, clause.table))
        return ClauseTable(clause, (cut,), newest.table if newest is not None else None)

    def _with_table(self, table: str, cut: Cut) -> tuple[Cut, Manifest | None]:
        """Return the cut, with current names if only they include the table, and the version with its columns."""
        if table not in cut.tables:
            later = later_stages(self.store, cut)
            cut = cut.under_names_of(later)
            if table not in cut.tables:
                return cut, later.get(table)
        return cut, cut.tables[table]

    def _versions(self, clause: Versions) -> ClauseTable:
        until, newest = self._with_table(clause.table, self._cut(clause.until, clause.table))
        since = Cut(until.app, {})
        try:
            since = self._cut(clause.since, clause.table) if clause.since else since
        except NotFound:
            # Before its first version, the app has an empty cut.
            ref = self._ref(clause.since, clause.table)
            if not isinstance(ref.moment, AtTime) or horizon.newest(self.store, ref.app).number:
                raise
            since = Cut(ref.app, {})
        if since.app != until.app:
            raise Usage(f"versions(): {clause.since} is a moment of {since.app}, and {clause.until} one of {until.app}")
        if newest is None:
            name = called_since(self.store, until.app, clause.table)
            hint = f"it was renamed to {name}; versions('{name}', …) includes the versions from before" if name else ""
            raise NotFound(f"table of app {until.app!r}", clause.table, until.tables, hint=hint)
        stage = owner(clause.table, until.stages)
        manifests = _between(self.store, clause, stage, self._with_table(clause.table, since)[0], until)
        return ClauseTable(clause, tuple(Cut(manifest.app, {stage: manifest}) for manifest in manifests), newest.table)

    def _cut(self, moment: str, table: str) -> Cut:
        ref, cuts = self._ref(moment, table), self._known
        if ref.text not in cuts:
            if self.is_steady and ref.moves:
                raise Usage(
                    f"{moment!r} may mean a different moment each time",
                    hint="name a snapshot, a time or a version",
                )
            cuts[ref.text] = resolve(self.store, ref.text, now_ms=self.now_ms)
            self.on_moment(ref.text, cuts[ref.text])
        return cuts[ref.text]

    def _ref(self, moment: str, table: str) -> Ref:
        # A version belongs to a stage, and side tables have other names than their stage.
        stage = having_table(self.store, self.app, table) if _VERSION.fullmatch(moment) else ""
        text = ref_of_words(self.store, self.app, moment, now_ms=self.now_ms, stage=stage)
        return parse(text, now_ms=self.now_ms)


def ref_of_words(store: ObjectStore, app: str, words: str, *, now_ms: int, stage: str = "") -> str:
    """Return the whole ref for a moment that a user names while working with an app.

    A whole ref is returned unchanged. Otherwise `words` is the part after `@`; `v42` is a version of `stage`, if given.
    A name that is not a snapshot of the app but another app means that app now. Raises `Usage` (none of these).
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
    """Return the version at the start and all later ones that may have different rows; with steps, the last of each."""
    last, begin = until.stages.get(stage), since.stages.get(stage)
    if last is None:
        return ()
    if begin is not None and begin.version > last.version:
        raise Usage(f"versions(): {clause.since} is after {clause.until}", hint="write the earlier moment first")
    first = begin.version if begin is not None else 1
    limit = horizon.newest(store, until.app)
    numbers: list[int] = []
    # A renamed stage continues its version numbers.
    for former in (*last.formerly, Former(last.stage, last.version + 1)):
        name, end = former.stage, former.version
        if (first_whole := history.first_version(store, until.app, name)) and first < end:
            first_whole, kept_versions = max(first, first_whole), limit.kept.get(name, ())
            numbers += (
                *(version for version in kept_versions if first <= version < min(first_whole, end)),
                *range(first_whole, end),
            )
            first = end

    def read(number: int) -> Manifest:
        return history.read(store, until.app, name_at(last, number), number)

    if clause.step:
        begin_ms, end_ms = since.seen_ms or since.time_ms or read(numbers[0]).time_ms, until.seen_ms or until.time_ms
        step_ms = parse_ms("versions(): the step", clause.step)
        if step_ms <= 0:
            raise Usage(f"versions(): the step is {clause.step!r}; expected more than 0")
        ends = range(begin_ms + step_ms, end_ms + step_ms, step_ms)
        if len(ends) >= MAX_VERSIONS:
            raise _too_many(clause, f"{len(ends):,} steps")

        def newest(time_ms: int) -> int:
            """Return the last version of the step that ends at `time_ms`, by a binary search."""
            after = bisect_right(numbers, min(time_ms, end_ms), key=lambda number: read(number).time_ms)
            return numbers[max(after - 1, 0)]

        numbers = sorted({numbers[0], *at_once().map(newest, ends)})
    elif len(numbers) > MAX_VERSIONS:
        raise _too_many(clause, f"{len(numbers):,} versions")
    earliest, *later = at_once().map(read, numbers)
    return (earliest, *(manifest for manifest in later if manifest.traits.changes_rows))


def _too_many(clause: Versions, count: str) -> Usage:
    since = clause.since or "-1h"
    return Usage(
        f"versions() of {clause.table} would return the whole table at {count}; at most {MAX_VERSIONS:,} are allowed",
        hint="use a shorter period or a longer step: "
        f"versions('{clause.table}', '{since}', '{clause.until}', '10m') returns the last version of every ten minutes",
    )
