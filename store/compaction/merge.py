"""Runs compactions out of core: inputs are read, merged and written one slice of the hash range at a time.

Regardless of the size of the runs, memory holds only the keys of one slice of all inputs, a few megabytes of its rows
or a single larger row, and one encoded SST. A sorted run is written as several SSTs with disjoint hash ranges. Also
rewrites a single SST with other values, or without some rows; the remaining rows keep their order and their `_seq`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from ...common import runtime
from ...errors import Refused
from ..objects.protocol import ObjectStore
from ..read.cache import SstCache
from ..read.decode import Block, check_columns, decode
from ..read.fetch import fetch
from ..sst.hashing import same_keys, sort_keys
from ..sst.schema import EXPIRES, HASH, OP, TOMBSTONE, add_missing_columns, expired_mask, sst_schema
from ..sst.sorted_runs import estimate_within, overlapping, sorted_runs
from ..sst.ttl import drop_expired_suffix
from ..sst.writer import ROW_GROUP_BYTES, ROW_GROUP_ROWS, SstWriter, release_unused_memory
from ..versions.entries.hash_ranges import hash_bounds, partition_of_hash
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from .cursors import CHUNK_BYTES, Cursor, Part, take_rows
from .plan import Compaction, CompactionResult

_SLICE_ROWS = 1 << 16
_SLICE_BYTES = 8 << 20
"""Limit on the stored bytes of a slice; a single interval may exceed it."""
_INTERVALS_PER_SST = 8
_READ_BYTES = 32 << 20
_MAX_MERGE_S = 1800.0
"""Time limit of a merge in seconds. After a longer merge, garbage collection could delete the first outputs."""


class MergeStopped(Exception):
    """A merge was stopped on request. Its outputs are in no manifest."""


def run_compaction(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    stage: str,
    table: Table,
    compaction: Compaction,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> CompactionResult:
    """Merge the input SSTs, and put the resulting SSTs into the store and the cache, under new names.

    Keeps the newest row of each key. Costs one put for each output; an uncached input costs one read of its footer and
    one for every few megabytes. A trivial move (only the level changes) makes no request. Oldest inputs in which all
    rows have expired are not read. `should_stop` is called before each part of a slice is written.

    Raises `MergeStopped` if `should_stop` returned True, `Refused` if the merge takes over half an hour, `Corruption`,
    and `ValueError` if an input reaches beyond the compaction's hashes.
    """
    low, high = compaction.hash_range
    beyond = [sst.object for sst in compaction.inputs if sst.hash_min < low or sst.hash_max > high]
    if beyond and not compaction.is_piece:
        raise ValueError(f"expected inputs with hashes from {low} to {high}; {beyond[0]} reaches beyond them")
    if compaction.is_trivial_move:
        return CompactionResult(
            compaction, tuple(replace(sst, level=compaction.output_level) for sst in compaction.inputs)
        )
    to_read = _inputs_to_read(compaction)
    if not to_read:
        return CompactionResult(compaction, ())
    began_s = runtime.monotonic()
    row_bytes = _row_bytes(to_read)
    interval_rows = max(1, min(_SLICE_ROWS, int(compaction.target_file_bytes / row_bytes / _INTERVALS_PER_SST)))
    finish = partial(_put, store=store, cache=cache, app=app, stage=stage, compaction=compaction)
    rolling = _RollingWriter(table, finish, target_file_bytes=compaction.target_file_bytes, row_bytes=row_bytes)
    slots = compaction.slots or compaction.partitions
    for intervals, parts in _read_slices(store, cache, to_read, table, compaction.hash_range, slots, interval_rows):
        check_time(compaction, began_s)
        drop, clock_ms = compaction.drops_tombstones, compaction.clock_ms
        chunks = _merge_parts(parts, table, drop_tombstones=drop, clock_ms=clock_ms)
        for rows, interval in _split_by_interval(chunks, intervals):
            # A slice may fill many small SSTs, each of which needs a put.
            if should_stop():
                raise MergeStopped
            if rows is not None:
                rolling.append(rows)
            elif interval.ends_slot:
                rolling.end_slot(guard=compaction.cuts or interval.high + 1 in compaction.guards)
            else:
                rolling.may_cut()
    return CompactionResult(compaction, rolling.finish())


def _row_bytes(ssts: Collection[Sst]) -> float:
    return sum(sst.bytes for sst in ssts) / sum(sst.rows for sst in ssts)


def _put(
    writer: SstWriter, *, store: ObjectStore, cache: SstCache, app: str, stage: str, compaction: Compaction
) -> Sst:
    partition, level = partition_of_hash(writer.hash_min, compaction.partitions), compaction.output_level
    return writer.put(store, app=app, stage=stage, partition=partition, level=level, cache=cache)


def _inputs_to_read(compaction: Compaction) -> tuple[Sst, ...]:
    if compaction.drops_tombstones and compaction.clock_ms is not None:
        return drop_expired_suffix(compaction.inputs, compaction.clock_ms)
    return compaction.inputs


def check_time(compaction: Compaction, began_s: float) -> None:
    """Raise `Refused` if a merge that began at `began_s` (`runtime.monotonic`) takes over half an hour."""
    if runtime.monotonic() - began_s > _MAX_MERGE_S:
        raise Refused(
            f"merging {len(compaction.inputs)} SSTs of {compaction.input_bytes} bytes of hash range "
            f"{compaction.partition} takes more than {_MAX_MERGE_S / 60:.0f} minutes, so garbage collection "
            "could delete their result before it is committed",
            hint="make merges smaller: more `tasks=` for the table, or leveled compaction",
        )


def iter_visible_rows(
    store: ObjectStore,
    cache: SstCache | None,
    ssts: Iterable[Sst],
    table: Table,
    partition: int,
    clock_ms: int,
    columns: Collection[str] | None = None,
    window: tuple[int, int] | None = None,
) -> Iterator[pa.Table]:
    """Yield the visible rows of a state partition in batches, in SST order. Batches have the columns of an SST.

    A row is visible if it is the newest of its key, is no tombstone and has not expired by `clock_ms`. `columns` are
    the columns to read besides the key; None for all. `window` is the lowest and the highest hash to read; None for the
    whole partition.
    """
    window = window or hash_bounds(partition, table.partitions)
    inputs = [sst for run in sorted_runs(overlapping(ssts, *window)) for sst in run]
    slices = _read_slices(store, cache, inputs, table, window, table.partitions, _SLICE_ROWS, columns) if inputs else ()
    for _, parts in slices:
        yield from _merge_parts(parts, table, drop_tombstones=True, clock_ms=clock_ms)


def _read_slices(
    store: ObjectStore,
    cache: SstCache | None,
    inputs: Sequence[Sst],
    table: Table,
    window: tuple[int, int],
    slots: int,
    interval_rows: int,
    columns: Collection[str] | None = None,
) -> Iterator[tuple[list["_Interval"], list[Part]]]:
    read_bytes = _READ_BYTES // len(sorted_runs(inputs))
    cursors = [Cursor(store, cache, sst, table, window, read_bytes, columns) for sst in inputs]
    slice_rows = min(_SLICE_ROWS, int(_SLICE_BYTES / _row_bytes(inputs)))
    for intervals in _group_into_slices(_intervals(inputs, window, slots, interval_rows), slice_rows):
        yield intervals, [part for cursor in cursors for part in cursor.read(intervals[0].low, intervals[-1].high)]


def merge_rows(parts: Sequence[pa.Table], table: Table, *, drop_tombstones: bool) -> pa.Table:
    """Merge rows of several SSTs: return the newest row of each key, in SST order, with all columns of an SST.

    Each element of `parts` has the rows of one SST, newest SST first. Keys are unique within a part. With
    `drop_tombstones`, a key is dropped if its newest row is a tombstone.
    """
    schema = sst_schema(table)
    complete = [Part(add_missing_columns(part, schema)) for part in parts]
    return pa.concat_tables([schema.empty_table(), *_merge_parts(complete, table, drop_tombstones=drop_tombstones)])


def _merge_parts(
    parts: Sequence[Part], table: Table, *, drop_tombstones: bool, clock_ms: int | None = None
) -> Iterator[pa.Table]:
    """Yield the newest row of each key, in SST order, in the chunks of `take_rows`. The newest SST's part is first.

    With `drop_tombstones`, a key is dropped if its newest row is a tombstone or has expired by `clock_ms` (None if no
    row expires).
    """
    if parts:
        yield from take_rows(parts, _rows_to_keep(parts, table, drop_tombstones=drop_tombstones, clock_ms=clock_ms))


def _rows_to_keep(
    parts: Sequence[Part], table: Table, *, drop_tombstones: bool, clock_ms: int | None
) -> npt.NDArray[np.int64]:
    """Return the rows that `_merge_parts` yields, as positions in the concatenated parts, in the same order."""
    key = [column.name for column in table.key]
    names = [name for name in (HASH, OP, EXPIRES, *key) if name in parts[0].keys.column_names]
    keys = pa.concat_tables([part.keys.select(names) for part in parts]).combine_chunks()
    order, repeats = sort_keys(keys.column(HASH).to_numpy(), keys.select(key))
    # Of rows with equal keys, the first is from the newest input.
    keep = order[~repeats]
    if drop_tombstones:
        keep = keep[keys.column(OP).to_numpy()[keep] != TOMBSTONE]
        is_expired = expired_mask(keys, clock_ms)
        keep = keep if is_expired is None else keep[~is_expired[keep]]
    if keys.nbytes > CHUNK_BYTES:
        release_unused_memory()
    return keep


@dataclass(frozen=True, slots=True)
class _Interval:
    """Range of hashes (inclusive) between two positions at which an output SST may end."""

    low: int
    high: int
    ends_slot: bool
    num_rows: int


def _split_by_interval(
    chunks: Iterable[pa.Table], intervals: Sequence[_Interval]
) -> Iterator[tuple[pa.Table | None, _Interval]]:
    """Yield the rows of each interval, in several tables if needed, followed by None at the interval's end."""
    number = 0
    for rows in chunks:
        hashes, start = rows.column(HASH).to_numpy(), 0
        while start < rows.num_rows:
            interval = intervals[number]
            end = int(np.searchsorted(hashes, interval.high, side="right"))
            if start < end:
                yield rows.slice(start, end - start), interval
                start = end
            if start < rows.num_rows:
                yield None, interval
                number += 1
    for interval in intervals[number:]:
        yield None, interval


def _intervals(ssts: Sequence[Sst], window: tuple[int, int], slots: int, interval_rows: int) -> Iterator[_Interval]:
    for slot in range(partition_of_hash(window[0], slots), partition_of_hash(window[1], slots) + 1):
        low, high = hash_bounds(slot, slots)
        low, high = max(low, window[0]), min(high, window[1])
        num_rows = sum(estimate_within(sst.rows, sst, low, high) for sst in ssts)
        count = min(max(1, -(-num_rows // interval_rows)), high - low + 1)
        edges = [low + number * (high - low + 1) // count for number in range(count + 1)]
        for number in range(count):
            yield _Interval(edges[number], edges[number + 1] - 1, number == count - 1, num_rows // count)


def _group_into_slices(intervals: Iterable[_Interval], slice_rows: int) -> Iterator[list[_Interval]]:
    slice_: list[_Interval] = []
    num_rows = 0
    for interval in intervals:
        if slice_ and num_rows + interval.num_rows > slice_rows:
            yield slice_
            slice_, num_rows = [], 0
        slice_.append(interval)
        num_rows += interval.num_rows
    yield slice_


class _RollingWriter:
    """Writes rows, in SST order, to SSTs of about `target_file_bytes`.

    Slots are equal ranges of hashes (`Compaction.slots`). The caller marks the end of each slot. An SST covers whole
    slots, or a part of one slot.
    """

    def __init__(
        self, table: Table, finish: Callable[[SstWriter], Sst], *, target_file_bytes: int, row_bytes: float
    ) -> None:
        self._table, self._finish = table, finish
        self._target_file_bytes, self._row_bytes = target_file_bytes, row_bytes
        self._finished: list[Sst] = []
        # State of the SST being written:
        self._writer: SstWriter | None = None
        self._waiting: list[pa.Table] = []
        self._num_waiting = self._waiting_bytes = 0
        self._slots, self._before_slot, self._began_inside = 0, 0.0, False

    def append(self, rows: pa.Table) -> None:
        """Append rows, in SST order."""
        self._waiting.append(rows)
        self._num_waiting += rows.num_rows
        self._waiting_bytes += rows.nbytes
        # Only whole row groups are written, even if few rows are appended at a time.
        if self._num_waiting >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write(self._num_waiting // ROW_GROUP_ROWS * ROW_GROUP_ROWS or self._num_waiting)

    def may_cut(self) -> None:
        """Mark a position within a slot. The SST ends here if it has reached its target size and has no whole slot."""
        if self._num_bytes >= self._target_file_bytes and not self._slots:
            self._cut(inside_a_slot=True)

    def end_slot(self, *, guard: bool) -> None:
        """Mark the end of a slot. The SST ends here if it began within the slot, or if another slot may not fit.

        With `guard`, the SST always ends here.
        """
        size = self._num_bytes
        if guard or self._began_inside or size + (size - self._before_slot) > self._target_file_bytes:
            self._cut(inside_a_slot=False)
        else:
            self._slots, self._before_slot = self._slots + 1, size

    def finish(self) -> tuple[Sst, ...]:
        self._cut(inside_a_slot=False)
        return tuple(self._finished)

    @property
    def _num_bytes(self) -> float:
        return (self._writer.num_bytes if self._writer else 0) + self._num_waiting * self._row_bytes

    def _write(self, num_rows: int) -> None:
        waiting = pa.concat_tables(self._waiting)
        self._writer = self._writer or SstWriter(self._table)
        self._writer.append(waiting.slice(0, num_rows))
        self._num_waiting -= num_rows
        self._waiting = [waiting.slice(num_rows)] if self._num_waiting else []
        self._waiting_bytes = sum(rows.nbytes for rows in self._waiting)

    def _cut(self, *, inside_a_slot: bool) -> None:
        if self._num_waiting:
            self._write(self._num_waiting)
        if self._writer:
            self._finished.append(self._finish(self._writer))
        self._writer = None
        self._slots, self._before_slot, self._began_inside = 0, 0.0, inside_a_slot


RowSelector = Callable[[Block], npt.NDArray[np.bool_]]


def encode_blocks(
    table: Table,
    blocks: Iterable[Block],
    *,
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    removed: RowSelector | None = None,
) -> SstWriter:
    """Encode a new SST from another SST's blocks, without the rows that `removed` selects.

    `change` is a function that computes the new rows from batches of the remaining rows, with the columns of `table`.
    The new SST may have no rows. Nothing is stored or cached. Raises the errors of `change`, and `Corruption`.
    """
    writer, schema = SstWriter(table), sst_schema(table)
    for block in blocks:
        count = block.stored.num_rows
        keep = pa.array(~removed(block)) if removed is not None else None
        # SSTs from before the table got a ttl lack `_expires_at`.
        stored = [name for name in schema.names if name != EXPIRES or name in block.stored.schema.names]
        for start in range(0, count, ROW_GROUP_ROWS):
            rows = pa.Table.from_batches([block.rows(stored, start, min(ROW_GROUP_ROWS, count - start))])
            rows = add_missing_columns(rows, schema)
            rows = rows if keep is None else rows.filter(keep.slice(start, rows.num_rows))
            writer.append(change(rows).cast(schema))
    return writer


def read_blocks(store: ObjectStore, sst: Sst, table: Table) -> Iterable[Block]:
    for rows in decode(fetch(store, sst), sst, table):
        yield Block.from_rows(rows, check_columns(sst, table, rows.schema, sst.rows))


def select_keys(hashes: npt.NDArray[np.int64], keys: pa.Table) -> RowSelector:
    """Return a function that selects the rows of these keys in a block.

    In a table of parts, it selects all parts of the keys.

    `keys` has the hashed key columns, and `hashes` the keys' hashes, ascending.
    """

    def chosen(block: Block) -> npt.NDArray[np.bool_]:
        mask = np.zeros(block.stored.num_rows, np.bool_)
        owners, at = block.rows_with(hashes)
        same = same_keys(keys.take(pa.array(owners)), block.take(at, keys.schema.names), keys.schema.names)
        mask[at[same]] = True
        return mask

    return chosen
