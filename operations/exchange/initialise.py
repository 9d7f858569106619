"""A stage begins with a table from elsewhere: its SSTs are put, and then one commit makes them version 1.

Until that commit nobody sees anything: SSTs that no version names are nothing to readers. Killed before it, the same
call begins again, and what was put lies there until garbage collection takes it, some time after the first claim.
Killed after it, the same call finds that the version has the rows that it would load.

The rows are sorted, one of each key, and encoded on several cores. However many there are, DuckDB sorts them by their
hashes, on disk where they do not fit into memory.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log2

import duckdb
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ...common import instants
from ...errors import Refused, SlackwaterError
from ...snapshot.query.row_source import EXAMPLES, RowSource, check, examples, fit, reading
from ...snapshot.query.sql import empty_database
from ...snapshot.take.audit_log import record_once
from ...store.objects.many import many
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.sst.expiry import latest_event_ms, with_expiry
from ...store.sst.hashing import hash_keys, normalise_keys, partition_of, sort_keys
from ...store.sst.types import HASH, OP, PREV, PUT, SEQ, arrow_schema, sst_schema
from ...store.sst.writer import SstWriter
from ...store.versions import apps, history
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import lost_to
from ...store.versions.kinds import INIT
from ...store.versions.manifest import AppInfo, Manifest, Output, Sst, Table

MEMORY = "512 MiB"
"""What sorting may take; beyond that, DuckDB goes to disk."""

_BATCH_ROWS = 1 << 17


def by_hash(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema, key: tuple[str, ...], on_read: Callable[[int, int], None]
) -> Iterator[pa.RecordBatch]:
    """The rows with the `_hash` of their key before their columns, ascending by it; rows of one hash in any order.

    Takes all rows before it gives the first, and tells `on_read` of each batch, as rows and bytes. What does not fit
    into `MEMORY` goes to Python's folder of temporary files. Raises `SlackwaterError` when there is no room on the
    disk, and whatever `rows` raises.
    """
    hashed = pa.schema([pa.field(HASH, pa.int64()), *schema])
    failure: BaseException | None = None

    def with_hash() -> Iterator[pa.RecordBatch]:
        nonlocal failure
        try:
            for batch in rows:
                columns = [pa.array(hash_keys(batch, key)), *batch.columns]
                made = pa.RecordBatch.from_arrays(columns, schema=hashed)
                on_read(made.num_rows, made.nbytes)
                yield made
        except BaseException as error:
            # DuckDB would tell of it in words of its own.
            failure = error
            raise

    with closing(empty_database()) as con:
        con.execute(f"SET TimeZone = 'UTC'; SET preserve_insertion_order = false; SET memory_limit = '{MEMORY}'")
        con.register("rows", pa.RecordBatchReader.from_batches(hashed, with_hash()))
        try:
            for batch in con.sql(f"FROM rows ORDER BY {HASH}").to_arrow_reader(_BATCH_ROWS):
                yield batch.cast(hashed)
        except (duckdb.Error, pa.ArrowException) as error:
            if failure is not None:
                raise failure from None
            sentence, _, more = str(error).strip().partition("\n")
            hint = "it sorts on disk, in the folder that TMPDIR names: let it name one with room"
            raise SlackwaterError(f"the rows cannot be sorted: {sentence}", quoted=more.strip(), hint=hint) from error


def slots_of(table: Table, num_bytes: int) -> int:
    """Equal ranges of all hashes: state partitions, each in so many parts that an SST of one is not too large."""
    partitions, size = table.partitions, table.compaction.target_file_bytes
    return partitions << max(0, ceil(log2(max(1, num_bytes / (partitions * size)))))


def by_slot(rows: Iterable[pa.RecordBatch], slots_when_read: Callable[[], int]) -> Iterator[tuple[int, int, pa.Table]]:
    """Rows that come by hash, cut where slots end: of each slot that has rows, its number, of how many, and them.

    How many there are is asked for when the first rows come: all were read then.
    """
    slots, current = 0, -1
    waiting: list[pa.RecordBatch] = []
    for batch in rows:
        slots = slots or slots_when_read()
        numbers = partition_of(batch.column(HASH).to_numpy(), slots)
        ends = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
        for start, end in pairwise((0, *ends, batch.num_rows)):
            if int(numbers[start]) != current:
                if waiting:
                    yield current, slots, pa.Table.from_batches(waiting)
                current, waiting = int(numbers[start]), []
            waiting.append(batch.slice(start, end - start))
    if waiting:
        yield current, slots, pa.Table.from_batches(waiting)


_SEQ = 1
_LEVEL = 1
"""SSTs side by side are one sorted run; none of them waits to be merged, as those of level 0 do."""
_MOST_WORKERS = 4
"""Each has the rows of an SST in memory, twice."""


@dataclass(slots=True)
class Loaded:
    """SSTs that nothing names yet, and how far writing them is."""

    read: int = 0
    """Rows that were read; all are, before the first SST is written."""
    rows: int = 0
    """Rows of the SSTs that are written."""
    ssts: list[Sst] = field(default_factory=list)
    """These; once all are there, by their hashes, ascending."""
    latest_ms: int | None = None
    """The largest event time, for a table whose rows expire by one."""


OnProgress = Callable[[Loaded], None]


def discard(store: ObjectStore | None, ssts: list[Sst]) -> None:
    """Delete SSTs that no version will name. Those that cannot be are left to garbage collection."""
    if store is not None:
        for sst in ssts:
            with suppress(SlackwaterError):
                store.delete(sst.object)


@dataclass(frozen=True, slots=True)
class _Written:
    rows: int = 0
    latest_ms: int | None = None
    num_repeats: int = 0
    """Rows with the key of another: then none of the slot is written."""
    repeated: str = ""


@dataclass(slots=True)
class Loading:
    """Writes rows as SSTs of the first version of a stage, whose app and itself are `names`.

    The same rows give the same SSTs, but for their names. Takes memory for a few SSTs, and as much as sorting may
    (`MEMORY`). One put for each SST; none where `store` is None. A time to live counts from `clock_ms`; `on_progress`
    is called after each batch and each SST.
    """

    store: ObjectStore | None
    names: tuple[str, str]
    table: Table
    clock_ms: int
    on_progress: OnProgress
    done: Loaded = field(default_factory=Loaded)
    bytes: int = 0
    num_repeats: int = 0
    repeated: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the table's key columns."""
        return tuple(column.name for column in self.table.key)

    def load(self, source: RowSource) -> Loaded:
        """Read, sort and write all rows.

        Raises `Refused` where the source cannot be read or does not fit the table, a key is null, or rows have the same
        key, and `SlackwaterError` where there is no room to sort them. What was put is deleted then.
        """
        try:
            with reading(source) as batches:
                check(batches.schema, self.table, source)
                self._load(batches, source)
        except BaseException:
            discard(self.store, self.done.ssts)
            raise
        self.done.ssts.sort(key=lambda sst: sst.hash_min)
        return self.done

    def _load(self, batches: pa.RecordBatchReader, source: RowSource) -> None:
        schema = arrow_schema((*self.table.key, *self.table.values))
        in_order = by_hash((fit(batch, self.table, source) for batch in batches), schema, self.key, self._on_read)
        workers = min(os.cpu_count() or 1, _MOST_WORKERS)
        parts = by_slot(in_order, lambda: slots_of(self.table, self.bytes))
        for written in many(lambda part: self._write(*part), parts, workers, ahead=workers):
            self._count(written)
        if self.num_repeats:
            raise Refused(
                f"{self.num_repeats:,} rows of {source} have the key of another row: expected one row of each key; "
                f"there are more of {'; '.join(self.repeated)}",
                hint="nothing was written; --sql says which to take: SELECT DISTINCT ON (…) … ORDER BY …",
            )

    def _on_read(self, num_rows: int, num_bytes: int) -> None:
        self.done.read += num_rows
        self.bytes += num_bytes
        self.on_progress(self.done)

    def _write(self, slot: int, slots: int, rows: pa.Table) -> _Written:
        """One SST with these rows of a slot, unless nothing is to be written any more. Changes no count."""
        rows = normalise_keys(rows, self.key)
        keys = rows.select(self.key)
        order, repeats = sort_keys(rows.column(HASH).to_numpy(), keys)
        if repeats.any():
            some = keys.take(pa.array(order[repeats][:EXAMPLES]))
            return _Written(num_repeats=int(repeats.sum()), repeated=examples(some))
        if self.num_repeats:
            return _Written()
        rows = rows.take(pa.array(order)).combine_chunks()
        rows = rows.append_column(SEQ, pa.array(np.full(rows.num_rows, _SEQ, np.int64)))
        rows = rows.append_column(OP, pa.array(np.full(rows.num_rows, PUT, np.uint8)))
        rows = rows.append_column(PREV, pa.array(np.zeros(rows.num_rows, np.int64)))
        schema = sst_schema(self.table)
        rows = with_expiry(rows, self.table, self.clock_ms).select(schema.names).cast(schema)
        writer = SstWriter(self.table)
        writer.append(rows)
        app, stage = self.names
        sst, data = writer.finish(app=app, stage=stage, partition=slot * self.table.partitions // slots, level=_LEVEL)
        # Before it is there: whoever gives up deletes it.
        self.done.ssts.append(sst)
        if self.store is not None:
            self.store.put(sst.object, data)
        return _Written(sst.rows, latest_event_ms(rows, self.table.ttl))

    def _count(self, written: _Written) -> None:
        self.done.rows += written.rows
        self.num_repeats += written.num_repeats
        if written.repeated and len(self.repeated) < EXAMPLES:
            self.repeated.append(written.repeated)
        if written.latest_ms is not None:
            self.done.latest_ms = max(written.latest_ms, self.done.latest_ms or written.latest_ms)
        self.on_progress(self.done)


Channels = Callable[[], Mapping[str, Output]]
"""Makes the channels that the stage writes, where there are none, and says where they end."""


@dataclass(frozen=True, slots=True)
class Initialised:
    """What an init did, or would do."""

    app: str
    stage: str
    version: int
    rows: int
    ssts: int
    """Objects that hold them, and then their bytes."""
    bytes: int
    offsets: Mapping[str, tuple[int, ...]]
    """Where reading begins, by topic."""
    already: bool
    """Whether an earlier call had done it: the table has these rows."""
    others: tuple[str, ...] = ()
    """The app's other stages, which begin empty."""
    starts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Offsets at which these begin to read, by topic; other topics begin where the program says."""


def initialise(
    store: ObjectStore,
    first: Manifest,
    source: RowSource,
    *,
    info: AppInfo | None = None,
    channels: Channels = dict,
    dry_run: bool = False,
    on_progress: OnProgress = lambda _so_far: None,
) -> Initialised:
    """Make rows the first version of a stage's table. The app need not exist; other stages are not touched.

    `first` is the version as it is to be but for rows, time and outputs: kind "init", version 1. `info` is the app's
    identity, which is written if there is none; None for one that says nothing more. `channels` is called when all rows
    are there. With `dry_run`, everything is checked and nothing is changed.

    Raises `Refused` where the stage has versions that are not this very one, the app is an unfinished clone or is being
    removed, or the rows are not the table's (`Loading.load`), with nothing changed, and `Unavailable`: the same call
    again finishes it.
    """
    table = first.table
    if table is None:
        raise Refused(
            f"stage {first.app}/{first.stage} keeps no table, so there is nothing to begin with",
            hint="name a stage with state=",
        )
    check_free(store, first.app, first.stage)
    if (head := history.head(store, first.app, first.stage)) is not None:
        return _again(store, first, head, source, dry_run=dry_run, on_progress=on_progress)
    began_ms = instants.now_ms()
    clock_ms = began_ms if ttl.by_write_time(table.ttl) else ttl.first_clock_ms(None, table, 0)
    names = first.app, first.stage
    loaded = Loading(None if dry_run else store, names, table, clock_ms, on_progress).load(source)
    if not loaded.rows:
        raise Refused(f"{source} has no rows: {first.app}/{first.stage} begins empty without init, too")
    latest_ms = clock_ms if loaded.latest_ms is None else max(clock_ms, loaded.latest_ms)
    first = replace(first, ssts=tuple(loaded.ssts), clock_ms=latest_ms)

    def none_came_first(head: Manifest) -> bool:
        raise _taken(head.app, head.stage, lost_to(head, 1).message)

    if not dry_run:
        try:
            # From its identity on an app is there for everybody.
            found = apps.ensure_app(store, info or AppInfo(first.app, began_ms))
            if info is not None and found.starts != info.starts:
                raise begun_elsewhere(found)
            now_ms = instants.now_ms()
            made = replace(first, outputs=dict(channels()), time_ms=now_ms, duration_ms=now_ms - began_ms)
            change = Amendment("init", lambda _draft: made, requires=none_came_first)
            first = amend(store, names, change, by=made.by, now_ms=now_ms, writer=made.writer).manifest
        except Refused:
            # Not so when nobody knows whether it was committed.
            discard(store, loaded.ssts)
            raise
    return _done(store, first, already=False, dry_run=dry_run)


def check_free(store: ObjectStore, app: str, stage: str) -> None:
    """See that a stage may begin with rows: it has no version, or just the one that an init has made.

    Raises `Refused` where it has others, or the app is an unfinished clone.
    """
    history.list_stages(store, app)  # says so where it is half a clone
    head = history.head(store, app, stage)
    if head is not None and (head.version != 1 or head.traits is not INIT):
        raise _taken(app, stage, f"up to v{head.version}, {head.traits.noun} by {head.by or head.writer}")


def _again(
    store: ObjectStore, first: Manifest, head: Manifest, source: RowSource, *, dry_run: bool, on_progress: OnProgress
) -> Initialised:
    """What there is, if it is what this call would do. Costs what loading the rows costs, but for the puts."""
    made = f"v1 by `slackwater init` of {instants.iso(head.time_ms)}, by {head.by}"
    if head.table != first.table or first.table is None:
        raise _taken(head.app, head.stage, f"{made}, with another table than the program declares")
    loaded = Loading(None, (head.app, head.stage), first.table, head.clock_ms, on_progress).load(source)
    if [(sst.checksum, sst.rows) for sst in loaded.ssts] != [(sst.checksum, sst.rows) for sst in head.ssts]:
        raise _taken(head.app, head.stage, f"{made}, with other rows")
    if (there := _offsets(head)) != (expected := _offsets(first)):
        raise _taken(head.app, head.stage, f"{made}, with these rows; it begins at {there}, and not at {expected}")
    return _done(store, head, already=True, dry_run=dry_run)


def _offsets(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    return {each.topic: each.offsets for _, each in sorted(manifest.inputs.items())}


def _done(store: ObjectStore, first: Manifest, *, already: bool, dry_run: bool) -> Initialised:
    rows, size = sum(sst.rows for sst in first.ssts), sum(sst.bytes for sst in first.ssts)
    if not dry_run:
        detail = f"{first.stage} v{first.version}: {rows:,} rows"
        record_once(store, first.app, "init", detail, first.by, {first.stage: (0, first.version)}, since_ms=0)
    offsets = _offsets(first)
    return Initialised(first.app, first.stage, first.version, rows, len(first.ssts), size, offsets, already)


def begun_elsewhere(info: AppInfo) -> Refused:
    """The error for other offsets than an app was begun at, which its identity says, written once."""
    starts = ", ".join(f"{topic} {at}" for topic, at in sorted(info.starts.items())) or "where the program says"
    return Refused(
        f"app {info.name!r} exists already, and begins at other offsets: {starts}",
        hint="leave the offsets out, which takes these; or load the rows under another app name",
    )


def _taken(app: str, stage: str, what: str) -> Refused:
    return Refused(
        f"stage {app}/{stage} has versions already: {what}; rows from elsewhere can only be its first",
        hint="load them under another app name, or remove the app: slackwater app rm " + app,
    )
