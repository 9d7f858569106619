"""Bringing a backfill into its table: every SST is filled, and one commit puts them in the place of those that were.

The app goes on meanwhile. What it commits before that is filled too: whoever loses the race for a number fills what the
new head has more, and tries again. A batch that is under way then, and is committed after it, fills its own SSTs
(`pipeline.batch.committer`). Filled SSTs that no version names are litter, which garbage collection takes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from ...errors import CommitConflict, Fenced, Refused
from ...store.objects.counting import CountingStore
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Stats
from ...store.read.cache import SstCache
from ...store.read.read_stats import charged
from ...store.versions import commit, history
from ...store.versions.manifest import Backfill, Manifest, Sst, Table
from .fill import fill_of, fill_ssts

_ATTEMPTS = 100
"""Lost races for the next number before it gives up."""
_LONGEST_S = 1800.0
"""As a merge: garbage collection takes what a batch has not named an hour after it was written for litter."""
_AT_ONCE = 16
"""SSTs that are filled between two words on how far it is."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """A backfill that was brought in."""

    manifest: Manifest
    ssts: int
    """Objects that were filled for it."""
    bytes: int


def swap(
    store: ObjectStore,
    cache: SstCache,
    names: tuple[str, str],
    backfill: Backfill,
    *,
    writer: str,
    by: str,
    now_ms: Callable[[], int],
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Swapped:
    """Commit a version of the stage whose columns have the backfill's values. It takes the stage from nobody.

    Args:
        store: the store of the app.
        cache: where SSTs come to lie.
        names: app and stage.
        backfill: what is brought in; its `version` does not count.
        writer: unique id of the caller.
        by: user@host.
        now_ms: the wall clock.
        on_progress: told how many SSTs are filled, and of how many.

    Raises:
        Refused: the stage is retired, its table was changed meanwhile, a sum has no room, or it took more than half an
            hour.
        CommitConflict: others kept winning the race for the next version.
        Corruption: an SST is missing or damaged.
        Unavailable: storage did not answer; the version may have been committed.
    """
    app, stage = names
    counted, taken, began_s, known = CountingStore(store), Stats(), time.monotonic(), 0
    filled: dict[str, Sst] = {}
    for attempt in count(1):
        head = history.head(counted, app, stage, known=known)
        if head is None or head.table is None or head.retired:
            raise Refused(
                f"stage {app}/{stage} has no table any more that could be backfilled",
                hint="a program that has the stage brings it back; the same command goes on then",
            )
        known = head.version
        if is_there(head, backfill):
            return Swapped(head, 0, 0)
        if missing := set(backfill.columns) - set(head.table.ids):
            raise Refused(
                f"stage {app}/{stage} was migrated meanwhile: {len(missing)} of the columns are gone",
                hint="run the same command with the program that the app was migrated to",
            )
        fill = fill_of(counted, cache, head.table, backfill, stage)
        todo = [sst for sst in head.ssts if sst.object not in filled]
        for start in range(0, len(todo), _AT_ONCE):
            if time.monotonic() - began_s > _LONGEST_S:
                raise _too_long(app, stage, len(head.ssts))
            some = todo[start : start + _AT_ONCE]
            made = fill_ssts(counted, cache, names, [fill], some)
            filled.update(zip((sst.object for sst in some), made, strict=True))
            on_progress(len(head.ssts) - len(todo) + start + len(some), len(head.ssts))
        draft = commit.successor(
            head, kind="backfill", epoch=head.epoch, writer=writer, by=by, now_ms=now_ms(), duration_ms=0
        )
        done = replace(backfill, version=draft.version)
        manifest = replace(
            draft,
            ssts=tuple(filled[sst.object] for sst in head.ssts),
            table=_with(head.table, done),
            backfills=(*head.backfills, done),
        )
        taken += counted.take()
        try:
            commit.commit(counted, charged(head, manifest, taken))
        except (CommitConflict, Fenced):
            if attempt == _ATTEMPTS:
                raise
        else:
            break
    written = [made for before, made in filled.items() if made.object != before]
    return Swapped(manifest, len(written), sum(sst.bytes for sst in written))


def is_there(head: Manifest, backfill: Backfill) -> bool:
    """Whether a version has this backfill."""
    return any((one.since, one.columns) == (backfill.since, backfill.columns) for one in head.backfills)


def _with(table: Table, done: Backfill) -> Table:
    """The table, whose columns are as if it had been born with them, where nothing of their past is missing."""
    if not done.whole:
        return table
    ids = dict(zip(table.columns, table.ids, strict=True))
    values = (replace(each, since=0) if ids[each] in done.columns else each for each in table.values)
    return replace(table, values=tuple(values))


def _too_long(app: str, stage: str, ssts: int) -> Refused:
    return Refused(
        f"bringing values into the {ssts} SSTs of {app}/{stage} takes more than {_LONGEST_S / 60:.0f} minutes, so "
        "garbage collection could take the first of them for litter before they are committed",
        hint="do it on a machine that is nearer to the store; what was computed is kept for the same command",
    )
