"""Writer of SSTs for a followed batch, from its changes, or from comparing a whole state with the stored rows.

Memory is bounded by the changed rows and a few SSTs: DuckDB sorts a whole state, on disk if it is large, and the state
is compared with the stored rows one hash range at a time.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, starmap
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...errors import Refused, Usage
from ...pipeline.batch.task_count import TaskCount
from ...snapshot.diff.key_changes import KeyChanges
from ...state.fits import evolve
from ...state.kinds.kind import Attached
from ...state.records import RECORD_OFFSET
from ...store.compaction.merge import iter_visible_rows
from ...store.objects.counting import ReadCounters
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import multi_get
from ...store.read.parts import find_parts
from ...store.sst import writer
from ...store.sst.arrow_types import from_arrow
from ...store.sst.hashing import hash_keys, normalise_keys, partition_of, sort_keys
from ...store.sst.schema import HASH, OP, PUT, SEQ, TOMBSTONE, arrow_schema, describe_schema, with_expiry
from ...store.versions import keys
from ...store.versions.column_types import parse_type
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Column, Manifest, SideTable, Table
from ..exchange.initialise import count_slots, sort_by_hash, split_by_slot
from .protocol import APPENDED, DELETED, LOGGED, ReadableTable

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
_MAX_NAME_LENGTH = 63


def valid_name(text: str, default: str) -> str:
    """Convert text to a valid name of a stage or table. Returns `default` if no valid character remains."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-_")[:_MAX_NAME_LENGTH] or default


def declare_tables(tables: Sequence[ReadableTable], partitions: int) -> dict[str, Table]:
    """Return the query's tables as a stage's tables, by side-table name; the stage's own table has the empty name.

    Raises `Refused` for columns that a stage's table cannot have.
    """
    tables_by_name: dict[str, Table] = {}
    for number, table in enumerate(tables):
        name = valid_name(table.name, f"table{number}") if number else ""
        if name in tables_by_name:
            name = f"{name[: _MAX_NAME_LENGTH - 4]}-{number}"
        is_topic = Attached.is_of_topic(Attached(table.kind).stored)
        label = "the topic's table" if is_topic else f"the table {table.name or 'of the query'} ({table.kind})"
        try:
            keys.check_columns(label, [*table.key.names, *table.values.names])
            keys.check_key(label, table.key.names)
            hash_keys(table.key.empty_table(), table.key.names)
            key, values = map(_columns, (table.key, table.values))
        except Usage as error:
            why = error.message.removeprefix(f"{label}: ")
            hint = error.hint or "a decoder of yours can return other columns: --value FILE:FUNCTION"
            raise Refused(f"{label} cannot be stored: {why}", hint=hint if is_topic else error.hint) from error
        tables_by_name[name] = Table(key, values, partitions, Attached(table.kind).stored)
    return tables_by_name


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    types = [from_arrow(field.type) for field in schema]
    for name in types:
        parse_type(name)
    return tuple(starmap(Column, zip(schema.names, types, strict=True)))


def reconcile_tables(
    stored: Mapping[str, Table], current: Mapping[str, Table], stage: str = "", version: int = 0
) -> dict[str, Table]:
    """Return the query's current tables, with the stored declarations of tables that are already stored.

    The table of a topic gets its new columns with `version`. Raises `Refused` if a stored table is missing in
    `current`, or has different columns there.
    """
    result, shape = {}, attrgetter("key", "values", "state")
    for name, table in current.items():
        previous = stored.get(name)
        if previous is not None and Attached.is_of_topic(previous.state) and shape(previous) != shape(table):
            result[name] = _with_new_columns(stage, previous, table, version)
            continue
        if previous is not None and shape(previous) != shape(table):
            previous_columns, current_columns = (
                describe_schema(arrow_schema(version.columns)) for version in (previous, table)
            )
            raise Refused(
                f"the columns of the query's {f'table {name}' if name else 'first table'} have changed from "
                f"{previous_columns} to {current_columns}",
                hint="attach it under another --app or --stage",
            )
        result[name] = previous or table
    if missing := sorted(stored.keys() - current.keys()):
        raise Refused(
            f"the query no longer has the table {missing[0]!r}", hint="attach it under another --app or --stage"
        )
    return result


def _with_new_columns(stage: str, stored: Table, current: Table, version: int) -> Table:
    removed = [column for column in stored.values if column.name not in {new.name for new in current.values}]
    try:
        grown, _ = evolve(stage, stored, replace(current, values=(*current.values, *removed)), {})
    except Refused as error:
        raise Refused(
            error.message, hint="attach the topic under another --stage, with the types of --columns"
        ) from error
    old_ids = stored.column_ids
    values = (column if column.id in old_ids else replace(column, since=version) for column in grown.values)
    return replace(grown, values=tuple(values))


def tables_by_side(manifest: Manifest) -> dict[str, Table]:
    """Return a version's tables by side-table name; the stage's own table has the empty name."""
    own = {"": manifest.table} if manifest.table is not None else {}
    return own | {name: side.table for name, side in manifest.side_tables.items()}


def with_tables(manifest: Manifest, tables: Mapping[str, Table]) -> Manifest:
    """Return the version with these declarations of its tables. Its SSTs do not change."""
    sides = {
        name: replace(manifest.side_tables.get(name) or SideTable(table), table=table)
        for name, table in tables.items()
        if name
    }
    return replace(manifest, table=tables[""], side_tables=manifest.side_tables | sides)


def cast_to_columns(rows: pa.RecordBatch | pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Cast rows to exactly these columns. Raises `Refused` for a value that does not fit its column."""
    schema = arrow_schema(columns)
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    try:
        return table.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(
            f"state does not fit its table: expected {describe_schema(schema)}; found "
            f"{describe_schema(table.schema)} ({error})",
            hint="nothing was written of this batch",
        ) from error


_CONCURRENT_WRITES = 2
"""Maximum number of SSTs that are written at once."""


@dataclass(slots=True)
class RowWriter:
    """Writes SSTs for a stage's next version, before any version names them."""

    store: ObjectStore
    cache: SstCache
    app: str
    stage: str
    clock_ms: int = 0

    def write_changes(self, table: Table, rows: pa.Table, seq: int, ssts: Sequence[Sst] = ()) -> tuple[Sst, ...]:
        """Write a batch's changes (key, values, `DELETED`) as SSTs, each for one or several changed hash ranges.

        A row with `APPENDED` has only new elements of a list. The earlier elements are read from `ssts`, the table's
        SSTs.
        """
        if not rows.num_rows:
            return ()
        deleted, key = np.asarray(rows[DELETED]), [column.name for column in table.key]
        hashed = _with_hashes(cast_to_columns(rows, table.columns), key)
        if APPENDED in rows.column_names:
            hashed = self._with_stored_elements(table, ssts, hashed, np.flatnonzero(rows[APPENDED]))
        hashed = hashed.append_column(OP, pa.array(np.where(deleted, TOMBSTONE, PUT).astype(np.uint8)))
        return self._write_level_0(table, hashed, seq)

    def _write_level_0(self, table: Table, rows: pa.Table, seq: int) -> tuple[Sst, ...]:
        table = replace(table, tasks=TaskCount().choose(table.ranges, rows.num_rows))
        numbers = partition_of(rows[HASH].to_numpy(), table.ranges)
        parts = ((p, rows.filter(pa.array(numbers == p))) for p in np.unique(numbers).tolist())
        return self._write(table, parts, seq, level=0)

    def _with_stored_elements(
        self, table: Table, ssts: Sequence[Sst], changed: pa.Table, positions: npt.NDArray[np.int64]
    ) -> pa.Table:
        rows, (value,) = changed.take(pa.array(positions)), (column.name for column in table.values)
        hashes, keys = rows[HASH].to_numpy(), rows.select([column.name for column in table.key])
        stored, _ = multi_get(self.store, self.cache, ssts, table, hashes, keys, clock_ms=self.clock_ms)
        index, column = changed.column_names.index(value), changed[value].combine_chunks()
        stored_lists = pa.nulls(len(column), column.type) if not len(positions) else stored[value].combine_chunks()
        stored_rows = np.full(len(column), -1)
        stored_rows[positions] = np.arange(len(positions))
        lists = concat_lists(stored_lists.take(pa.array(stored_rows, mask=stored_rows < 0)), column)
        return changed.set_column(index, changed.schema.field(index), lists)

    def write_parts(self, version: Manifest, keys: pa.Table, parts: Iterable[pa.Table], seq: int) -> tuple[Sst, ...]:
        """Write the differences between the current parts of some keys and the parts stored in a version's table."""
        table = version.table
        assert table is not None  # noqa: S101  it is a version of a table of parts
        key, columns = [column.name for column in table.key], arrow_schema(table.columns)
        new = pa.concat_tables([columns.empty_table(), *parts])
        old = find_parts(
            self.store, self.cache, table, version.ssts, hash_keys(keys, keys.column_names), keys, ReadCounters()
        )[1]
        changed = diff_rows(_with_hashes(old, key), _with_hashes(new, key), key)
        return self._write_level_0(table, changed, seq) if changed.num_rows else ()

    def write_differences(self, version: Manifest, rows: Iterable[pa.RecordBatch], seq: int) -> tuple[Sst, ...]:
        """Write the differences between a whole state and the stored table, as puts and deletes.

        If the stored table is empty, the SSTs form one sorted run.
        """
        assert version.table is not None  # noqa: S101  it is a version of one table
        return self._write(
            version.table, self._differences(version, version.table, rows), seq, level=0 if version.ssts else 1
        )

    def _differences(
        self, version: Manifest, table: Table, rows: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.Table]]:
        key, size = [column.name for column in table.key], 0

        def on_read(_rows: int, num_bytes: int) -> None:
            nonlocal size
            size += num_bytes

        log, rows = _log_columns(rows)
        columns = pa.schema([*arrow_schema(table.columns), *log])
        fit = (part for batch in rows for part in _cast_log(batch, table.columns, log).combine_chunks().to_batches())
        no_rows = pa.schema([pa.field(HASH, pa.int64()), *arrow_schema(table.columns)]).empty_table()
        slots, following = table.partitions, 0
        for slot, slots, new in split_by_slot(
            sort_by_hash(fit, columns, tuple(key), on_read), lambda: count_slots(table, size)
        ):
            for missing in range(following, slot):
                yield from self._difference(version, table, missing, slots, no_rows)
            yield from self._difference(version, table, slot, slots, new)
            following = slot + 1
        for missing in range(following, slots):
            yield from self._difference(version, table, missing, slots, no_rows)

    def _difference(
        self, version: Manifest, table: Table, slot: int, slots: int, new: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        names, key = [HASH, *(column.name for column in table.columns)], [column.name for column in table.key]
        new = _newest_rows(new, key)
        old = new.slice(0, 0)
        if version.ssts:
            stored = iter_visible_rows(self.store, self.cache, version.ssts, replace(table, partitions=slots), slot, 0)
            old = pa.concat_tables([old, *(part.select(names).cast(old.schema) for part in stored)])
        changed = diff_rows(old, normalise_keys(new, key), key)
        if changed.num_rows:
            yield slot * table.partitions // slots, changed

    def _write(self, table: Table, parts: Iterable[tuple[int, pa.Table]], seq: int, *, level: int) -> tuple[Sst, ...]:
        # SSTs of level 1 may be the whole of a large state, which may not fit into the cache.
        cache = None if level else self.cache
        put = partial(writer.write_sst, self.store, cache, app=self.app, stage=self.stage, table=table)

        def write(part: tuple[int, pa.Table]) -> Sst:
            partition, rows = part
            stamped = rows.append_column(SEQ, pa.repeat(pa.scalar(seq, pa.int64()), rows.num_rows))
            sst = put(partition=partition, rows=with_expiry(stamped, table, self.clock_ms))
            return replace(sst, level=level)

        return tuple(map_concurrently(write, parts, _CONCURRENT_WRITES, max_unread=_CONCURRENT_WRITES))


def _log_columns(rows: Iterable[pa.RecordBatch]) -> tuple[list[pa.Field], Iterator[pa.RecordBatch]]:
    """Return the columns `DELETED` and `LOGGED` if rows are a log, and all rows."""
    batches = iter(rows)
    first = next(batches, None)
    if first is None:
        return [], iter(())
    return [field for field in first.schema if field.name in (DELETED, LOGGED)], chain([first], batches)


def _cast_log(rows: pa.RecordBatch, columns: Sequence[Column], log: list[pa.Field]) -> pa.Table:
    table = cast_to_columns(rows, columns)
    for column in log:
        table = table.append_column(column, rows[column.name])
    return table


def _newest_rows(rows: pa.Table, key: list[str]) -> pa.Table:
    """Return the newest row of each key of a log, without deleted rows. Other rows are returned unchanged."""
    if DELETED not in rows.column_names:
        return rows
    last = [(LOGGED, "ascending"), (RECORD_OFFSET, "ascending")]
    rows = normalise_keys(rows.take(pc.sort_indices(rows, sort_keys=last)), key)
    order, repeats = sort_keys(rows[HASH].to_numpy(), rows.select(key))
    newest = rows.take(pa.array(order[np.append(~repeats[1:], True)]))
    return newest.filter(pc.invert(newest[DELETED])).drop_columns([DELETED, LOGGED])


def diff_rows(old: pa.Table, new: pa.Table, key: list[str]) -> pa.Table:
    """Return the puts and deletes (column `_op`) that turn `old` into `new`.

    Both tables have the column `_hash`, and at most one row per key.
    """
    both = pa.concat_tables([old, new]).combine_chunks()
    order, repeats = sort_keys(both[HASH].to_numpy(), both.select(key))
    # The sort is stable: the stored row of a key comes right before the new row.
    repeated = np.flatnonzero(repeats)
    old_rows, new_rows = order[repeated - 1], order[repeated]
    values = [name for name in old.column_names if name not in (HASH, *key)]
    old_values, new_values = (both.take(pa.array(rows)) for rows in (old_rows, new_rows))
    both_exist = np.ones(len(repeated), np.bool_)
    pairs = KeyChanges.compare(
        new_values.select(key), old_values.select(values), new_values.select(values), both_exist, both_exist
    )
    unchanged = np.zeros(both.num_rows, np.bool_)
    unchanged[old_rows] = True
    unchanged[new_rows[pairs.kinds() == "same"]] = True
    ops = np.full(both.num_rows, PUT, np.uint8)
    ops[: old.num_rows] = TOMBSTONE
    return both.append_column(OP, pa.array(ops)).filter(pa.array(~unchanged))


def concat_lists(first: pa.ListArray, second: pa.ListArray) -> pa.ListArray:
    """Concatenate two list columns row by row. The result is null where both lists are null."""
    parts = (first, second)
    counts = [np.asarray(pc.fill_null(pc.list_value_length(lists), 0)) for lists in parts]
    rows = np.concatenate([np.repeat(np.arange(len(second)), count) for count in counts])
    values = pa.concat_arrays([lists.flatten() for lists in parts]).take(pa.array(np.argsort(rows, kind="stable")))
    ends = np.concatenate([[0], np.cumsum(counts[0] + counts[1])])
    nulls = pc.and_(*(lists.is_null() for lists in parts))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=second.type, mask=nulls)


def _with_hashes(rows: pa.Table, key: list[str]) -> pa.Table:
    rows = normalise_keys(rows, key)
    return rows.add_column(0, HASH, pa.array(hash_keys(rows, key)))
