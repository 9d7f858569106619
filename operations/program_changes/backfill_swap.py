"""A backfill's values brought into a stage: one commit with filled SSTs, and the backfill's app removed after it.

Who loses the race for a version fills what the new head has more, and tries again.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from msgspec.structs import replace

from ...errors import Refused
from ...snapshot.change.fill import fill_of, fill_ssts
from ...snapshot.under_way.runners import beats, runner_of
from ...store.objects.counting import CountingStore
from ...store.objects.protocol import ObjectStore, exists
from ...store.read.cache import SstCache
from ...store.versions import history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import Backfill, Manifest, Sst
from ..maintenance.removal import discard

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


def swap_in(
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
    """Commit a version of a stage (`names`: its app and itself) whose columns have the backfill's values.

    It takes the stage from nobody. After a lost race, what is new is filled, too. The backfill's `version` does not
    count. `on_progress` is told how many SSTs are filled, and of how many.

    Raises `CommitConflict` where others kept winning the race for the next version, `Refused` where the table is gone
    or was changed meanwhile, a sum has no room, or it took more than half an hour, `Corruption` where an SST is missing
    or damaged, and `Unavailable`: the version may have been committed then.
    """
    app, stage = names
    store = counting = CountingStore(store)
    began_s = time.monotonic()
    filled: dict[str, Sst] = {}
    """By its object before."""

    def fits(head: Manifest) -> bool:
        """Whether it is still to be brought in behind this version, all of whose SSTs are filled then."""
        if head.table is None or head.retired:
            raise Refused(
                f"stage {app}/{stage} has no table any more that could be backfilled",
                hint="a program that has the stage brings it back; the same command goes on then",
            )
        if any((one.since, one.columns) == (backfill.since, backfill.columns) for one in head.backfills):
            return False
        if missing := set(backfill.columns) - set(head.table.ids):
            raise Refused(
                f"stage {app}/{stage} was migrated meanwhile: {len(missing)} of the columns are gone",
                hint="run the same command with the program that the app was migrated to",
            )
        fill = fill_of(store, cache, head.table, backfill, stage)
        todo = [sst for sst in head.ssts if sst.object not in filled]
        for start in range(0, len(todo), _AT_ONCE):
            if time.monotonic() - began_s > _LONGEST_S:
                raise Refused(
                    f"bringing values into the {len(head.ssts)} SSTs of {app}/{stage} takes more than "
                    f"{_LONGEST_S / 60:.0f} minutes, so garbage collection could take the first of them for litter "
                    "before they are committed",
                    hint="do it on a machine that is nearer to the store; what was computed is kept for the same "
                    "command",
                )
            some = todo[start : start + _AT_ONCE]
            made = fill_ssts(store, cache, names, [fill], some)
            filled.update(zip((sst.object for sst in some), made, strict=True))
            on_progress(len(head.ssts) - len(todo) + start + len(some), len(head.ssts))
        return True

    def update(draft: Manifest) -> Manifest:
        table, done = draft.table, replace(backfill, version=draft.version)
        assert table is not None  # noqa: S101  it fits no other
        if done.whole:
            # Nothing of the columns' past is missing: they are as if the table had been born with them.
            new = {column for column, number in zip(table.columns, table.ids, strict=True) if number in done.columns}
            table = replace(table, values=tuple(replace(one, since=0) if one in new else one for one in table.values))
        ssts = tuple(filled[sst.object] for sst in draft.ssts)
        return replace(draft, ssts=ssts, table=table, backfills=(*draft.backfills, done))

    change = Amendment("backfill", update, requires=fits)
    committed = amend(store, names, change, by=by, now_ms=now_ms, writer=writer, taken=counting.take)
    if not committed.changed:
        return Swapped(committed.manifest, 0, 0)
    written = [after for before, after in filled.items() if after.object != before]
    return Swapped(committed.manifest, len(written), sum(sst.bytes for sst in written))


def is_needed(store: ObjectStore, head: Manifest, backfill: Backfill, now_ms: int) -> bool:
    """Whether a batch may be under way that was computed without this backfill, which `head` has, and needs its values.

    Not when a runner has claimed the stage since, or a batch has been built on a version with it: batches are built one
    on the other. Nor when no runner gives signs of life.
    """
    swapped = history.find(store, head.app, head.stage, backfill.version)
    if swapped is None or head.epoch > swapped.epoch:
        return False
    # A batch that was computed before has another number in its rows than it was committed under.
    since = takewhile(lambda each: each.version > backfill.version, history.backwards(store, head))
    if any(each.kind == "batch" and not each.seq for each in since):
        return False
    return bool(runner_of(head, beats(store, head.app, now_ms)))


def sweep(store: ObjectStore, head: Manifest, now_ms: int) -> Iterator[str]:
    """Remove the apps of backfills that a stage has, unless one may be needed; those that still may."""
    for each in head.backfills:
        if not (exists(store, keys.app_info(each.app)) or any(True for _ in store.list_folders(keys.stages(each.app)))):
            continue
        if is_needed(store, head, each, now_ms):
            yield each.app
        else:
            discard(store, each.app)
