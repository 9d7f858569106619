"""Values of a backfill brought into rows: what columns that were added would have, had they been there before.

A backfill is a table of an app of its own (`Backfill.app`) that has read what the stage had read before the migration,
and nothing that it read later. So a row's value is found from the row and from the backfill's row of its key alone:

- An aggregate of the row is of the records since the migration, the backfill's of those before: merged, of all.
- A row of an `upsert` that was written since has its value. One that was written before is of one record; where the
  backfill's row is of the same record, all columns that both have are equal, and its value is that record's.

The rule holds for every stored row of a key, whichever hides another, so an SST is filled by itself: the rows stay, and
their order, and their `_seq`. One commit puts all filled SSTs in the place of those that were. Who loses the race for a
number fills what the new head has more, and tries again; a batch that is committed later fills its own SSTs.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...errors import Refused
from ...fold.kinds.aggregate import NoRoom
from ...fold.kinds.kind import kind_of
from ...moments.status.lag import beats, runner_of
from ...store.compaction.rewrite import rewritten
from ...store.objects.counting import CountingStore
from ...store.objects.protocol import ObjectStore, exists
from ...store.read.cache import SstCache
from ...store.read.multi_get import multi_get
from ...store.sst.hashing import digests, same_keys
from ...store.sst.sorted_runs import overlapping
from ...store.sst.types import HASH, OP, PUT, SEQ
from ...store.versions import history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import Backfill, Manifest, Sst, Table
from ..maintain.removal import discard

_WORKERS = min(os.cpu_count() or 1, 4)
"""Each has the rows of an SST in memory, encoded."""


@dataclass(frozen=True, slots=True)
class Fill:
    """One backfill, and how its values come into rows of a table."""

    store: ObjectStore
    cache: SstCache
    table: Table
    source: Manifest
    """The version of the backfill's app that has the values."""
    since: int
    """The version of the table's stage from which on it has the columns."""
    names: tuple[str, ...]
    """The columns that get values, internal ones included."""
    parts: tuple[str, ...]
    """Of these, those whose values join with those of the past. Empty where a row is of one record."""

    def rows(self, rows: pa.Table) -> pa.Table:
        """These rows of an SST of the table, which have all its columns, with the backfill's values in them.

        Raises `Refused` where a sum has no room, and as `multi_get`.
        """
        key = [column.name for column in self.table.key]
        hashes = rows.column(HASH).combine_chunks().to_numpy()
        ssts = overlapping(self.source.ssts, int(hashes[0]), int(hashes[-1]))
        assert self.source.table is not None  # noqa: S101  it was made for its table
        values, found = multi_get(self.store, self.cache, ssts, self.source.table, hashes, rows.select(key))
        takes = found & (rows.column(OP).to_numpy() == PUT)
        if self.parts:
            kind = kind_of(self.table.state).core
            later = rows.select(self.names).cast(values.select(self.names).schema)
            made: dict[str, Any] = {}
            for name in self.parts:
                try:
                    made |= kind.join_parts(name, values, later)
                except NoRoom as error:
                    raise Refused(
                        f"{name} of {self.source.stage} cannot be computed over the past: "
                        f"{error.of(rows.select(key)).sentence}",
                        hint="no sum of this type has room for all records; sum a decimal, under another name",
                    ) from error
        else:
            made = {name: values.column(name) for name in self.names}
            takes &= (rows.column(SEQ).to_numpy() < self.since) & self._same_record(rows, values)
        for name, filled in made.items():
            at = rows.schema.get_field_index(name)
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pc.if_else(pa.array(takes), filled.cast(field.type), rows.column(at)))
        return rows

    def _same_record(self, rows: pa.Table, values: pa.Table) -> npt.NDArray[np.bool_]:
        both = [column.name for column in self.table.values if column.name not in self.names]
        nested = [name for name in both if pa.types.is_nested(rows.schema.field(name).type)]
        same = same_keys(rows, values, [name for name in both if name not in nested])
        for name in nested:
            same &= digests(rows.column(name)) == digests(values.column(name))
        return same


def fill_of(store: ObjectStore, cache: SstCache, table: Table, backfill: Backfill, stage: str) -> Fill:
    """How a backfill of a stage is brought into rows of its table.

    Raises `Refused` where what it computed is gone, and `Unavailable`.
    """
    source = history.find(store, backfill.app, stage, backfill.at)
    if source is None or source.writer != backfill.writer:
        raise Refused(
            f"what was computed for {stage} in {backfill.app} is gone: rows that were read meanwhile cannot get it",
            hint="nothing committed is lost; start again: it goes on with the columns as they are filled",
        )
    names = [column.name for column, number in zip(table.columns, table.ids, strict=True) if number in backfill.columns]
    parts = tuple(name for name in names if name in kind_of(table.state).columns)
    return Fill(store, cache, table, source, backfill.since, tuple(names), parts)


def fill_ssts(
    store: ObjectStore, cache: SstCache, names: tuple[str, str], fills: Sequence[Fill], ssts: Sequence[Sst]
) -> tuple[Sst, ...]:
    """SSTs of a stage (`names`: its app and itself) with the values in them, in the same order.

    One put for each, under a new name; those in which nothing can change stay. What is read comes into the cache.

    Raises `Refused` where a sum has no room, `Corruption` where an SST is missing or damaged, and `Unavailable`.
    """

    def one(sst: Sst) -> Sst:
        due = [fill for fill in fills if fill.parts or sst.seq_min < fill.since]
        if not due:
            return sst
        table = due[0].table

        def filled(rows: pa.Table) -> pa.Table:
            for fill in due:
                rows = fill.rows(rows)
            return rows

        writer = rewritten(store, cache, sst, table, filled)
        made, data = writer.finish(app=names[0], stage=names[1], partition=sst.partition, level=sst.level)
        store.put(made.object, data)
        cache.add_encoded(made, table, data)
        return made

    with ThreadPoolExecutor(_WORKERS, "fill") as pool:
        return tuple(pool.map(one, ssts))


def fill_changes(
    store: ObjectStore, cache: SstCache, head: Manifest, ssts: Sequence[Sst], due: Sequence[Backfill]
) -> tuple[Sst, ...]:
    """SSTs of a batch that was computed before the head had these backfills. Raises as `fill_of` and `fill_ssts`."""
    assert head.table is not None  # noqa: S101  only a table is backfilled
    fills = [fill_of(store, cache, head.table, each, head.stage) for each in due]
    return fill_ssts(store, cache, (head.app, head.stage), fills, ssts)


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
