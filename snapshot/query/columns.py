"""Rows of a table without SQL: visible columns, parsing of keys, look-ups by key, and the first rows.

A look-up reads the few pages that can hold the row, without a download, a scan or a cache. The first rows are those
with the lowest hashes, in the order of SSTs, so the cost depends on the number of rows and not on the size of the
table. Hashes are evenly distributed, so the number of wanted rows determines the range of hashes to read.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Usage
from ...store.compaction.merge import iter_visible_rows
from ...store.objects.counting import ReadCounters
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import DEFAULT_READ_AHEAD, ReadAhead, multi_get
from ...store.read.remote_sst import SMALL_BYTES
from ...store.sst.arrow_types import python_value, python_values
from ...store.sst.hashing import FAST_KEY_TYPES, hash_key, hash_keys, normalise_keys
from ...store.sst.schema import HASH, arrow_schema, visible_columns
from ...store.sst.sorted_runs import estimate_within, overlapping
from ...store.versions.entries.hash_ranges import hash_bounds, partition_of_hash
from ...store.versions.keys import hashed_columns
from ...store.versions.manifest import Manifest, Table
from ..cut.graph import Cut
from ..cut.moments import require_tables

_ZONE_SUFFIX = re.compile(r"Z$|:.*[+-]\d{2}(:?\d{2})?$")
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""Pattern of integers whose text Arrow and Python parse to the same value."""
_INTEGER_LIMITS = {f"int{bits}": 1 << bits - 1 for bits in (8, 16, 32, 64)}
_UNPARSABLE = (pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError)
_AS_JSON = """write a struct as JSON, with all its fields: '{"origin": "EWR", "number": 1545}'"""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Visible column of a table."""

    name: str
    type: str
    key: bool
    since: int = 0
    """Version that added the column; 0 if the table was created with it."""


def describe_columns(manifest: Manifest) -> tuple[TableColumn, ...]:
    """Return the visible columns of a stage's table, key first; empty for a stage without a table."""
    if (table := manifest.table) is None:
        return ()
    visible = enumerate(visible_columns(table))
    return tuple(TableColumn(column.name, column.type, at < len(table.key), column.since) for at, column in visible)


def visible_schema(table: Table) -> pa.Schema:
    """Return the visible columns of a table: key columns, and value columns whose names do not start with `_`."""
    return arrow_schema(visible_columns(table))


def parse_key(name: str, table: Table, key_values: Sequence[object]) -> pa.Table:
    return parse_keys(name, table, [key_values])


def parse_keys(name: str, table: Table, keys: Sequence[Sequence[object]]) -> pa.Table:
    """Return a table with the key columns and one row per key, from text or Python values; None stands for null.

    Bytes are given in hexadecimal, a struct as a JSON object with all its fields. `name` is the table's name, for
    errors. Raises `Usage` (wrong number of values, or wrong types).
    """
    schema = arrow_schema(table.key)
    expected = ", ".join(f"{field.name} ({field.type})" for field in schema)
    for key in keys:
        if (num_values := len(key)) != len(schema):
            raise Usage(
                f"the key of table {name!r} is {expected}; found {num_values} value{'' if num_values == 1 else 's'}"
            )
    columns = []
    for number, field in enumerate(schema):
        texts = [key[number] for key in keys]
        try:
            columns.append(_parse_all(texts, field.type))
        except _UNPARSABLE:
            columns.append(pa.chunked_array([_parse_or_explain(text, field, name, expected) for text in texts]))
    return normalise_keys(pa.table(columns, schema=schema), schema.names)


def hashed_key(table: Table, values: Sequence[object]) -> tuple[int, tuple[object, ...]] | None:
    """Return the hash and Python values of a key whose columns are text or integers; None if it needs `parse_keys`."""
    if len(values) != len(table.key):
        return None
    parsed: list[str | int | None] = []
    for value, column in zip(values, table.key, strict=True):
        if column.type not in FAST_KEY_TYPES or not (value is None or isinstance(value, str)):
            return None
        if value is None or (column.type == "string" and (value.isascii() or _is_unicode(value))):
            parsed.append(value)
        elif column.type != "string" and _NUMBER.fullmatch(value) and abs(int(value)) < _INTEGER_LIMITS[column.type]:
            parsed.append(int(value))
        else:
            return None
    count = len(hashed_columns([column.name for column in table.key]))
    return hash_key(parsed[:count], [column.type for column in table.key[:count]]), tuple(parsed)


def hashed_keys(name: str, table: Table, keys: Sequence[Sequence[object]]) -> list[tuple[int, tuple[object, ...]]]:
    """Return the hash and Python values of each key, for keys of any type. Raises the errors of `parse_keys`."""
    parsed = parse_keys(name, table, keys)
    hashes = hash_keys(parsed, parsed.schema.names).tolist()
    columns = (python_values(column) for column in parsed.columns)
    return [*zip(hashes, zip(*columns, strict=True), strict=True)]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_or_explain(text: object, field: pa.Field, name: str, expected: str) -> pa.Array:
    try:
        return _parse(text, field.type)
    except UnicodeEncodeError as error:
        raise Usage(
            f"{text!r} for key column {field.name!r} of table {name!r} is not valid UTF-8",
            hint=r"in Python, give a key that is not UTF-8 as bytes: get('TABLE', b'\xff')",
        ) from error
    except _UNPARSABLE as error:
        raise Usage(
            f"{text!r} is no {field.type} for key column {field.name!r}: the key of table {name!r} is {expected}",
            hint=_AS_JSON if pa.types.is_struct(field.type) else "",
        ) from error


def value_from_json(value: object, kind: pa.DataType) -> object:
    """Convert a JSON value to a Python value of an Arrow type. Types that JSON lacks are read from text.

    Raises `ValueError` and Arrow's errors.
    """
    if value is None or not isinstance(value, str | int | float | bool):
        return value
    if pa.types.is_decimal(kind) and not isinstance(value, str):
        value = str(value)
    return python_value(_parse(value, kind)[0])


def _parse_all(texts: Sequence[object], kind: pa.DataType) -> pa.Array:
    plain = [text for text in texts if isinstance(text, str)]
    if not plain or len(plain) < len(texts) or pa.types.is_nested(kind):
        return pa.chunked_array([_parse(value, kind) for value in texts], kind)
    if pa.types.is_binary(kind):
        return pa.array(map(bytes.fromhex, plain), kind)
    values, zoned = pa.array(plain, pa.string()), 0
    if pa.types.is_timestamp(kind) and kind.tz:
        # For a timestamp with a zone, Arrow requires an offset, and for a timestamp without zone it rejects one. A time
        # without offset is UTC.
        zoned = sum(_ZONE_SUFFIX.search(text) is not None for text in plain)
        if 0 < zoned < len(plain):
            return pa.chunked_array([_parse_all([text], kind) for text in plain], kind)
        values = values if zoned else values.cast(pa.timestamp(kind.unit))
    return values.cast(kind)


def _booleans_as_text(fields: dict[str, object]) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, bool) else value for name, value in fields.items()}


def _parse(value: object, kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind) and isinstance(value, str):
        # Numbers and booleans stay text until they are cast, so that no digits are lost.
        value = json.loads(value, parse_int=str, parse_float=str, parse_constant=str, object_hook=_booleans_as_text)
    if value is None:
        return pa.nulls(1, kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        if not isinstance(value, dict) or value.keys() != {field.name for field in fields}:
            raise ValueError(f"expected an object with {', '.join(field.name for field in fields)}")
        return pa.StructArray.from_arrays([_parse(value[field.name], field.type) for field in fields], fields=fields)
    if isinstance(value, bytes) and pa.types.is_string(kind):
        # A key may be invalid UTF-8, which a `str` cannot express.
        return pa.array([value], pa.binary()).cast(options=pc.CastOptions(kind, allow_invalid_utf8=True))
    if not isinstance(value, str):
        if pa.types.is_integer(kind) and not isinstance(value, Integral):
            raise ValueError("expected a whole number")
        return pa.array([value], kind)
    return pa.array([value]).cast(kind) if pa.types.is_nested(kind) else _parse_all([value], kind)


def get(store: ObjectStore, cut: Cut, table: str, key_values: Sequence[object]) -> pa.Table:
    """Return the row of one key at the cut, with the visible columns; no row if the key has none.

    `key_values` are the values of the key columns in their order, as text or Python values; None for null. A renamed
    table is found by its old and its new name. Raises `NotFound` (the cut has no such table) and `Usage` (wrong number
    of values, or a value of the wrong type).
    """
    cut = require_tables(store, cut, (table,))
    declared = cut.tables[table].table
    assert declared is not None  # noqa: S101  `Cut.tables` has only versions with a table
    rows, present = look_up(store, None, cut, table, parse_key(table, declared, key_values))
    return rows.slice(0, int(present[0]))


def look_up(
    store: ObjectStore,
    cache: SstCache | None,
    cut: Cut,
    table: str,
    keys: pa.Table,
    *,
    read_ahead: ReadAhead = DEFAULT_READ_AHEAD,
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Return the rows of many keys with the visible columns, and a flag for each key: True if it has a row.

    `keys` is a result of `parse_keys`; the rows are in its order. If a key has no row, its row in the result has nulls
    in all columns but the key. The cut must have the table. `cache`, `read_ahead` and errors are those of `multi_get`.
    """
    manifest = cut.table(table)
    assert manifest is not None and manifest.table is not None  # noqa: S101, PT018  the cut has it
    hashes, clock_ms = hash_keys(keys, keys.schema.names), cut.clock_ms(table)
    values, present = multi_get(
        store, cache, manifest.ssts, manifest.table, hashes, keys, clock_ms=clock_ms, read_ahead=read_ahead
    )
    rows = pa.table([*keys.columns, *values.columns], [*keys.schema.names, *values.schema.names])
    return rows.select(visible_schema(manifest.table).names), present


def select(table: str, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the named columns, or all columns if `names` is empty. Raises `NotFound` with the nearest name."""
    check_columns(table, rows.schema.names, names)
    return rows.select(names) if names else rows


def check_columns(table: str, existing: Sequence[str], names: Sequence[str]) -> None:
    """Raise `NotFound` with the nearest name unless a table has all of these columns."""
    for name in names:
        if name not in existing:
            raise NotFound(f"column of table {table!r}", name, existing)


FIRST_HASH = -(1 << 63)
_LAST_HASH = (1 << 63) - 1
_EXTRA_ROWS_FACTOR = 2


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Consecutive rows of a table, sorted by hash. The cursor `next_hash` continues after them."""

    rows: pa.Table
    hashes: npt.NDArray[np.int64]
    next_hash: int | None
    """Hash at which the next rows start; None if no rows follow."""

    def below_hash(self, end: int | None) -> "FirstRows":
        """Return the rows whose hash is below `end`, all rows for None. The next rows then start at `end`."""
        if end is None or (self.next_hash is not None and self.next_hash <= end):
            return self
        count = int(np.searchsorted(self.hashes, end))
        return FirstRows(self.rows.slice(0, count), self.hashes[:count], end)


def first_rows(
    store: ObjectStore, cache: SstCache | None, cut: Cut, table: str, limit: int, start: int = FIRST_HASH
) -> FirstRows:
    """Return the first `limit` rows with a hash of at least `start`; more if several rows share the last hash.

    The cut must have the table.
    """
    manifest = cut.tables[table]
    assert manifest.table is not None  # noqa: S101  `Cut.tables` has only versions with a table
    schema = visible_schema(manifest.table)
    batches: list[pa.Table] = []
    count, next_hash = 0, start
    for partition, window in _hash_ranges(cut, table, limit, start):
        for sst in overlapping(manifest.ssts, *window):
            # Reading a small SST whole takes fewer requests than reading parts of it.
            if cache is not None and sst.bytes <= SMALL_BYTES and cache.cached_rows(sst, manifest.table) is None:
                cache.fetch_rows(store, sst, manifest.table, ReadCounters())
        for rows in iter_visible_rows(
            store,
            cache,
            manifest.ssts,
            manifest.table,
            partition,
            cut.clock_ms(table),
            columns=schema.names,
            window=window,
        ):
            batches.append(rows.select([HASH, *schema.names]))
            count += rows.num_rows
        next_hash = window[1] + 1
        if count > limit:
            break
    joined = pa.concat_tables(batches) if batches else pa.schema([(HASH, pa.int64()), *schema]).empty_table()
    hashes = joined.column(HASH).to_numpy()
    rows = joined.drop_columns([HASH])
    if count > limit:
        return FirstRows(rows, hashes, next_hash if next_hash <= _LAST_HASH else None).below_hash(
            int(hashes[limit - 1]) + 1
        )
    return FirstRows(rows, hashes, None)


def _hash_ranges(cut: Cut, table: str, limit: int, start: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the ranges of hashes to read, in order, each with its state partition.

    The first range of a partition should hold `_EXTRA_ROWS_FACTOR` times `limit` rows. Each further range should hold
    twice as many rows as the previous range.
    """
    manifest = cut.tables[table]
    assert manifest.table is not None  # noqa: S101
    partitions = manifest.table.partitions
    num_rows = limit * _EXTRA_ROWS_FACTOR
    for partition in range(partition_of_hash(start, partitions), partitions):
        low, high = hash_bounds(partition, partitions)
        low = max(low, start)
        while low <= high:
            rows = sum(estimate_within(sst.rows, sst, low, high) for sst in overlapping(manifest.ssts, low, high))
            end = high if rows <= num_rows else min(high, low + (high - low + 1) * num_rows // rows)
            yield partition, (low, end)
            low, num_rows = end + 1, num_rows * 2
