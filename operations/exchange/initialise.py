"""Loading of imported rows (`slackwater init`) and their commit as version 1 of a stage.

The SSTs are put first, then one commit names them in version 1. A call that is killed before the commit can be
repeated; garbage collection deletes the SSTs of the first call. A call that is repeated after the commit compares its
rows with those of version 1.

DuckDB sorts the rows by key hash, on disk if they exceed the memory limit. Each key must have one row. Several threads
encode SSTs.
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
from ...snapshot.query.row_source import MAX_EXAMPLES, RowSource, check_schema, convert_rows, format_examples, open_rows
from ...snapshot.query.sql import empty_database
from ...snapshot.take.audit_log import record_operation_once
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.sst.hashing import hash_keys, normalise_keys, partition_of, sort_keys
from ...store.sst.schema import HASH, OP, PREV, PUT, SEQ, arrow_schema, latest_event_ms, sst_schema, with_expiry
from ...store.sst.writer import SstWriter
from ...store.versions import apps, history
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import conflict_error
from ...store.versions.entries.ssts import Sst
from ...store.versions.kinds import INIT
from ...store.versions.manifest import AppInfo, Manifest, Output, Table

SORT_MEMORY = "512 MiB"
"""Memory limit of DuckDB when it sorts. Larger inputs are sorted on disk."""

_BATCH_ROWS = 1 << 17


def sort_by_hash(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema, key: tuple[str, ...], on_read: Callable[[int, int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield rows sorted by the hash of their key, which is added as first column `_hash`. Equal hashes have no order.

    Reads all rows before the first is yielded. `on_read` gets the number of rows and bytes of each batch. Rows beyond
    `SORT_MEMORY` are sorted in Python's folder for temporary files. Raises `SlackwaterError` if that disk is full, and
    any error of `rows`.
    """
    hashed = pa.schema([pa.field(HASH, pa.int64()), *schema])
    failure: BaseException | None = None

    def with_hash() -> Iterator[pa.RecordBatch]:
        nonlocal failure
        try:
            for batch in rows:
                columns = [pa.array(hash_keys(batch, key)), *batch.columns]
                hashed_batch = pa.RecordBatch.from_arrays(columns, schema=hashed)
                on_read(hashed_batch.num_rows, hashed_batch.nbytes)
                yield hashed_batch
        except BaseException as error:
            # DuckDB would wrap the error in its own message.
            failure = error
            raise

    with closing(empty_database()) as con:
        con.execute(f"SET TimeZone = 'UTC'; SET preserve_insertion_order = false; SET memory_limit = '{SORT_MEMORY}'")
        con.register("rows", pa.RecordBatchReader.from_batches(hashed, with_hash()))
        try:
            for batch in con.sql(f"FROM rows ORDER BY {HASH}").to_arrow_reader(_BATCH_ROWS):
                yield batch.cast(hashed)
        except (duckdb.Error, pa.ArrowException) as error:
            if failure is not None:
                raise failure from None
            sentence, _, more = str(error).strip().partition("\n")
            hint = "rows are sorted on disk, in TMPDIR: set it to a folder with more free space"
            raise SlackwaterError(f"the rows cannot be sorted: {sentence}", quoted=more.strip(), hint=hint) from error


def count_slots(table: Table, num_bytes: int) -> int:
    """Return the number of slots (equal hash ranges) of a table. The rows of a slot fill about one SST."""
    partitions, size = table.partitions, table.compaction.target_file_bytes
    return partitions << max(0, ceil(log2(max(1, num_bytes / (partitions * size)))))


def split_by_slot(
    rows: Iterable[pa.RecordBatch], slots_when_read: Callable[[], int]
) -> Iterator[tuple[int, int, pa.Table]]:
    """Split rows that are sorted by hash into slots. Yields the slot, the number of slots, and the rows.

    Slots without rows are left out. `slots_when_read` is a function that returns the number of slots. It is called at
    the first row, when all input has been read.
    """
    slots, current = 0, -1
    pending: list[pa.RecordBatch] = []
    for batch in rows:
        slots = slots or slots_when_read()
        numbers = partition_of(batch.column(HASH).to_numpy(), slots)
        ends = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
        for start, end in pairwise((0, *ends, batch.num_rows)):
            if int(numbers[start]) != current:
                if pending:
                    yield current, slots, pa.Table.from_batches(pending)
                current, pending = int(numbers[start]), []
            pending.append(batch.slice(start, end - start))
    if pending:
        yield current, slots, pa.Table.from_batches(pending)


_SEQ = 1
_LEVEL = 1
"""Level of the SSTs: 1, because the SSTs form one sorted run. SSTs of level 0 would have to be merged."""
_MAX_WORKERS = 4
"""Maximum number of threads that encode SSTs. Each thread has two copies of an SST's rows in memory."""


@dataclass(slots=True)
class LoadProgress:
    """Progress of a load: rows read, and the SSTs written so far, which no version names yet."""

    read: int = 0
    rows: int = 0
    ssts: list[Sst] = field(default_factory=list)
    """The written SSTs; sorted by hash when loading is complete."""
    latest_ms: int | None = None
    """Largest event time in milliseconds, if rows of the table expire by event time; else None."""


OnProgress = Callable[[LoadProgress], None]


def delete_unnamed_ssts(store: ObjectStore | None, ssts: list[Sst]) -> None:
    """Delete SSTs that no version names. If a deletion fails, garbage collection deletes the SST later."""
    if store is not None:
        for sst in ssts:
            with suppress(SlackwaterError):
                store.delete(sst.object)


@dataclass(frozen=True, slots=True)
class _Written:
    rows: int = 0
    latest_ms: int | None = None
    num_repeats: int = 0
    """Number of rows whose key occurs in another row. If it is not 0, no SST of the slot is written."""
    repeated: str = ""


@dataclass(slots=True)
class RowLoader:
    """Writes rows as SSTs for the first version of a stage. `names` are the names of app and stage.

    The SSTs are deterministic except for their names. Needs memory for a few SSTs, and `SORT_MEMORY` for sorting. Makes
    one put for each SST, or none if `store` is None. If rows expire, their time to live starts at `clock_ms`.
    `on_progress` is called after each batch and each SST.
    """

    store: ObjectStore | None
    names: tuple[str, str]
    table: Table
    clock_ms: int
    on_progress: OnProgress
    progress: LoadProgress = field(default_factory=LoadProgress)
    bytes: int = 0
    num_repeats: int = 0
    repeated: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.key)

    def load(self, source: RowSource) -> LoadProgress:
        """Read, sort and write all rows.

        Raises `Refused` if the source cannot be read or does not fit the table, a key is null, or a key has several
        rows; `SlackwaterError` if the disk is too small to sort. After an error, SSTs that were put are deleted.
        """
        try:
            with open_rows(source) as batches:
                check_schema(batches.schema, self.table, source)
                self._load(batches, source)
        except BaseException:
            delete_unnamed_ssts(self.store, self.progress.ssts)
            raise
        self.progress.ssts.sort(key=lambda sst: sst.hash_min)
        return self.progress

    def _load(self, batches: pa.RecordBatchReader, source: RowSource) -> None:
        schema = arrow_schema((*self.table.key, *self.table.values))
        in_order = sort_by_hash(
            (convert_rows(batch, self.table, source) for batch in batches), schema, self.key, self._on_read
        )
        workers = min(os.cpu_count() or 1, _MAX_WORKERS)
        parts = split_by_slot(in_order, lambda: count_slots(self.table, self.bytes))
        for written in map_concurrently(lambda part: self._write(*part), parts, workers, max_unread=workers):
            self._count(written)
        if self.num_repeats:
            raise Refused(
                f"{self.num_repeats:,} rows of {source} repeat the key of another row: expected one row for each key; "
                f"repeated keys: {'; '.join(self.repeated)}",
                hint="nothing was written; choose a row for each key with --sql: SELECT DISTINCT ON (…) … ORDER BY …",
            )

    def _on_read(self, num_rows: int, num_bytes: int) -> None:
        self.progress.read += num_rows
        self.bytes += num_bytes
        self.on_progress(self.progress)

    def _write(self, slot: int, slots: int, rows: pa.Table) -> _Written:
        rows = normalise_keys(rows, self.key)
        keys = rows.select(self.key)
        order, repeats = sort_keys(rows.column(HASH).to_numpy(), keys)
        if repeats.any():
            repeated_keys = keys.take(pa.array(order[repeats][:MAX_EXAMPLES]))
            return _Written(num_repeats=int(repeats.sum()), repeated=format_examples(repeated_keys))
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
        # Recorded before the put, so that `discard` deletes a partly written SST as well.
        self.progress.ssts.append(sst)
        if self.store is not None:
            self.store.put(sst.object, data)
        return _Written(sst.rows, latest_event_ms(rows, self.table.ttl))

    def _count(self, written: _Written) -> None:
        self.progress.rows += written.rows
        self.num_repeats += written.num_repeats
        if written.repeated and len(self.repeated) < MAX_EXAMPLES:
            self.repeated.append(written.repeated)
        if written.latest_ms is not None:
            self.progress.latest_ms = max(written.latest_ms, self.progress.latest_ms or written.latest_ms)
        self.on_progress(self.progress)


Channels = Callable[[], Mapping[str, Output]]


@dataclass(frozen=True, slots=True)
class Initialised:
    """Result of `slackwater init` or of its dry run."""

    app: str
    stage: str
    version: int
    rows: int
    ssts: int
    bytes: int
    offsets: Mapping[str, tuple[int, ...]]
    """Offsets at which the stage begins to read, by topic."""
    already: bool
    """True if an earlier call committed these rows."""
    others: tuple[str, ...] = ()
    starts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Offsets at which the other stages begin to read, by topic, if `init` set them."""


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
    """Commit rows as the first version of a stage's table. Creates the app if missing; other stages do not change.

    `first` is the version without rows, time and outputs: kind `init`, version 1. `info` is the app's identity, which
    is written if the app is missing; None for an app without offsets. `channels` is a function that creates the stage's
    missing channels and returns its outputs; it is called when all rows are written. With `dry_run`, everything is
    checked and nothing is written.

    Raises `Refused` if the stage has other versions, the app is an unfinished clone or is being removed, or the rows do
    not fit the table (`RowLoader.load`); nothing is changed then. After `Unavailable`, a repeated call continues.
    """
    table = first.table
    if table is None:
        raise Refused(
            f"stage {first.app}/{first.stage} has no table, so it cannot begin with rows",
            hint="choose a stage that declares state=",
        )
    check_no_versions(store, first.app, first.stage)
    if (head := history.head(store, first.app, first.stage)) is not None:
        return _existing_init(store, first, head, source, dry_run=dry_run, on_progress=on_progress)
    began_ms = instants.now_ms()
    clock_ms = began_ms if ttl.expires_by_write_time(table.ttl) else ttl.claim_clock_ms(None, table, 0)
    names = first.app, first.stage
    loaded = RowLoader(None if dry_run else store, names, table, clock_ms, on_progress).load(source)
    if not loaded.rows:
        raise Refused(
            f"{source} has no rows to load into {first.app}/{first.stage}",
            hint="start the app without init: a new stage begins empty",
        )
    latest_ms = clock_ms if loaded.latest_ms is None else max(clock_ms, loaded.latest_ms)
    first = replace(first, ssts=tuple(loaded.ssts), clock_ms=latest_ms)

    def no_other_version(head: Manifest) -> bool:
        raise _has_versions(head.app, head.stage, conflict_error(head, 1).message)

    if not dry_run:
        try:
            # The app is visible once its identity is stored.
            stored_info = apps.ensure_app(store, info or AppInfo(first.app, began_ms))
            if info is not None and stored_info.starts != info.starts:
                raise other_start_offsets_error(stored_info)
            now_ms = instants.now_ms()
            complete = replace(first, outputs=dict(channels()), time_ms=now_ms, duration_ms=now_ms - began_ms)
            change = Amendment("init", lambda _draft: complete, requires=no_other_version)
            first = amend(store, names, change, by=complete.by, now_ms=now_ms, writer=complete.writer).manifest
        except Refused:
            # Not after `Unavailable`, because the commit may have succeeded.
            delete_unnamed_ssts(store, loaded.ssts)
            raise
    return _done(store, first, already=False, dry_run=dry_run)


def check_no_versions(store: ObjectStore, app: str, stage: str) -> None:
    """Raise `Refused` unless a stage may begin with imported rows.

    The stage must have no version, or only version 1 of kind `init`. The app must not be an unfinished clone.
    """
    history.list_stages(store, app)  # raises for an unfinished clone
    head = history.head(store, app, stage)
    if head is not None and (head.version != 1 or head.traits is not INIT):
        raise _has_versions(app, stage, f"up to v{head.version}, {head.traits.noun} by {head.by or head.writer}")


def _existing_init(
    store: ObjectStore, first: Manifest, head: Manifest, source: RowSource, *, dry_run: bool, on_progress: OnProgress
) -> Initialised:
    earlier = f"v1 by `slackwater init` of {instants.format_iso(head.time_ms)}, by {head.by}"
    if head.table != first.table or first.table is None:
        raise _has_versions(head.app, head.stage, f"{earlier}, whose table is not the one that the program declares")
    loaded = RowLoader(None, (head.app, head.stage), first.table, head.clock_ms, on_progress).load(source)
    if [(sst.checksum, sst.rows) for sst in loaded.ssts] != [(sst.checksum, sst.rows) for sst in head.ssts]:
        raise _has_versions(head.app, head.stage, f"{earlier}, with other rows")
    if (actual := _offsets(head)) != (expected := _offsets(first)):
        raise _has_versions(
            head.app, head.stage, f"{earlier}, with the same rows but at offsets {actual} instead of {expected}"
        )
    return _done(store, head, already=True, dry_run=dry_run)


def _offsets(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    return {source.topic: source.offsets for _, source in sorted(manifest.inputs.items())}


def _done(store: ObjectStore, first: Manifest, *, already: bool, dry_run: bool) -> Initialised:
    rows, size = sum(sst.rows for sst in first.ssts), sum(sst.bytes for sst in first.ssts)
    if not dry_run:
        detail = f"{first.stage} v{first.version}: {rows:,} rows"
        record_operation_once(store, first.app, "init", detail, first.by, {first.stage: (0, first.version)}, since_ms=0)
    offsets = _offsets(first)
    return Initialised(first.app, first.stage, first.version, rows, len(first.ssts), size, offsets, already)


def other_start_offsets_error(info: AppInfo) -> Refused:
    """Return the error for a request of first offsets that differ from those of the existing app."""
    starts = ", ".join(f"{topic} {at}" for topic, at in sorted(info.starts.items())) or "the program's starting offsets"
    return Refused(
        f"app {info.name!r} already exists, with other start offsets: {starts}",
        hint="omit the offsets to use these, or load the rows under another app name",
    )


def _has_versions(app: str, stage: str, existing: str) -> Refused:
    return Refused(
        f"cannot load rows into {app}/{stage}: it already has versions, {existing}",
        hint="load them under another app name, or remove the app: slackwater app rm " + app,
    )
