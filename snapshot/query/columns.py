"""A table's columns as users see them, keys as they type them, and the row of one key.

A row is read from the few pages that can hold it: no download, no scan, no cache.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import DEFAULT_READ_AHEAD, ReadAhead, multi_get
from ...store.sst.arrow_types import python_value, python_values
from ...store.sst.hashing import PLAIN, hash_key, hash_keys, normalise_keys
from ...store.sst.types import arrow_schema, visible_columns
from ...store.versions.manifest import Manifest, Table
from ..cut.graph import Cut
from ..cut.moments import having

_ZONED = re.compile(r"Z$|:.*[+-]\d{2}(:?\d{2})?$")
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""As Arrow and Python both read it."""
_TOO_LARGE = {f"int{bits}": 1 << bits - 1 for bits in (8, 16, 32, 64)}
_UNPARSABLE = (pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError)
_AS_JSON = """write a struct as JSON, with all its fields: '{"origin": "EWR", "number": 1545}'"""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, as users see it."""

    name: str
    type: str
    """As Arrow writes it."""
    key: bool
    """Whether it is part of the key."""
    since: int = 0
    """The version that added it; 0 for a column that the table was born with."""


def columns(manifest: Manifest) -> tuple[TableColumn, ...]:
    """The columns of a stage's table that users see, the key first; none for a stage without a table."""
    if (table := manifest.table) is None:
        return ()
    visible = enumerate(visible_columns(table))
    return tuple(TableColumn(each.name, each.type, at < len(table.key), each.since) for at, each in visible)


def visible_schema(table: Table) -> pa.Schema:
    """The columns of a table that users see: the key, and the values whose names do not start with `_`."""
    return arrow_schema(visible_columns(table))


def parse_key(name: str, table: Table, key_values: Sequence[object]) -> pa.Table:
    """`parse_keys` of one key."""
    return parse_keys(name, table, [key_values])


def parse_keys(name: str, table: Table, keys: Sequence[Sequence[object]]) -> pa.Table:
    """A table of the key columns with a row for each key, from text or from Python's own values; None for a null.

    The text of bytes is hexadecimal, that of a struct a JSON object with all its fields. `name` is what the table is
    called. Raises `Usage` (not as many values as key columns, or not of their types).
    """
    schema = arrow_schema(table.key)
    expected = ", ".join(f"{field.name} ({field.type})" for field in schema)
    for each in keys:
        if (found := len(each)) != len(schema):
            raise Usage(f"the key of table {name!r} is {expected}; found {found} value{'' if found == 1 else 's'}")
    columns = []
    for number, field in enumerate(schema):
        texts = [each[number] for each in keys]
        try:
            columns.append(_parse_all(texts, field.type))
        except _UNPARSABLE:
            columns.append(pa.chunked_array([_parse_or_say(each, field, name, expected) for each in texts]))
    return normalise_keys(pa.table(columns, schema=schema), schema.names)


def hashed_key(table: Table, values: Sequence[object]) -> tuple[int, tuple[object, ...]] | None:
    """The hash of a key and its values in Python, of text and whole numbers; None for what only `parse_keys` reads."""
    if len(values) != len(table.key):
        return None
    found: list[str | int | None] = []
    for value, column in zip(values, table.key, strict=True):
        if column.type not in PLAIN or not (value is None or isinstance(value, str)):
            return None
        if value is None or (column.type == "string" and (value.isascii() or _is_unicode(value))):
            found.append(value)
        elif column.type != "string" and _NUMBER.fullmatch(value) and abs(int(value)) < _TOO_LARGE[column.type]:
            found.append(int(value))
        else:
            return None
    return hash_key(found, [column.type for column in table.key]), tuple(found)


def hashed_keys(name: str, table: Table, keys: Sequence[Sequence[object]]) -> list[tuple[int, tuple[object, ...]]]:
    """The hash of each key and its values as Python has them, of any types. Raises as `parse_keys`."""
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


def _parse_or_say(text: object, field: pa.Field, name: str, expected: str) -> pa.Array:
    try:
        return _parse(text, field.type)
    except UnicodeEncodeError as error:
        raise Usage(
            f"{text!r} for key column {field.name!r} of table {name!r} is not valid UTF-8",
            hint=r"in Python, bytes ask for a key that is not UTF-8: get('TABLE', b'\xff')",
        ) from error
    except _UNPARSABLE as error:
        raise Usage(
            f"{text!r} is no {field.type} for key column {field.name!r}: the key of table {name!r} is {expected}",
            hint=_AS_JSON if pa.types.is_struct(field.type) else "",
        ) from error


def value_of(value: object, kind: pa.DataType) -> object:
    """A value of a type, from JSON's: text for what JSON has no word for. Raises `ValueError` and Arrow's errors."""
    if value is None or not isinstance(value, str | int | float | bool):
        return value
    if pa.types.is_decimal(kind) and not isinstance(value, str):
        value = str(value)
    return python_value(_parse(value, kind)[0])


def _parse_all(texts: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Many values at once, where they are plain text; one after the other else. Raises as `_parse`, of any of them."""
    plain = [each for each in texts if isinstance(each, str)]
    if not plain or len(plain) < len(texts) or pa.types.is_nested(kind):
        return pa.chunked_array([_parse(each, kind) for each in texts], kind)
    if pa.types.is_binary(kind):
        return pa.array(map(bytes.fromhex, plain), kind)
    values, zoned = pa.array(plain, pa.string()), 0
    if pa.types.is_timestamp(kind) and kind.tz:
        # Arrow wants an offset for a timestamp with a zone, and none for one without: a plain time is UTC.
        zoned = sum(_ZONED.search(each) is not None for each in plain)
        if 0 < zoned < len(plain):
            return pa.chunked_array([_parse_all([each], kind) for each in plain], kind)
        values = values if zoned else values.cast(pa.timestamp(kind.unit))
    return values.cast(kind)


def _booleans_as_text(found: dict[str, object]) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, bool) else value for name, value in found.items()}


def _parse(value: object, kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind) and isinstance(value, str):
        # Numbers stay text, so that none loses digits on the way to its type; so do booleans.
        value = json.loads(value, parse_int=str, parse_float=str, parse_constant=str, object_hook=_booleans_as_text)
    if value is None:
        return pa.nulls(1, kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        if not isinstance(value, dict) or value.keys() != {field.name for field in fields}:
            raise ValueError(f"expected an object with {', '.join(field.name for field in fields)}")
        return pa.StructArray.from_arrays([_parse(value[field.name], field.type) for field in fields], fields=fields)
    if isinstance(value, bytes) and pa.types.is_string(kind):
        # A key may be no UTF-8, which no text names.
        return pa.array([value], pa.binary()).cast(options=pc.CastOptions(kind, allow_invalid_utf8=True))
    if not isinstance(value, str):
        if pa.types.is_integer(kind) and not isinstance(value, Integral):
            raise ValueError("Arrow would cut off what lies behind the point")
        return pa.array([value], kind)
    return pa.array([value]).cast(kind) if pa.types.is_nested(kind) else _parse_all([value], kind)


def get(store: ObjectStore, cut: Cut, table: str, key_values: Sequence[object]) -> pa.Table:
    """The row of one key at the cut: one row of the table's visible columns, or none.

    The key's values are those of its columns, in their order, as text or as Python's own; None for a null. A table that
    was renamed since is found by either name. Raises `NotFound` (the cut has no such table), and `Usage` (there are not
    as many values as key columns, or one is not of its column's type).
    """
    cut = having(store, cut, (table,))
    declared = cut.tables[table].table
    assert declared is not None  # noqa: S101  `Cut.tables` are versions with one
    rows, present = look_up(store, None, cut, table, parse_key(table, declared, key_values))
    return rows.slice(0, int(present[0]))


def look_up(
    store: ObjectStore,
    cache: SstCache | None,
    cut: Cut,
    table: str,
    keys: pa.Table,
    *,
    haste: ReadAhead = DEFAULT_READ_AHEAD,
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """The visible columns of the rows of many keys, as `parse_keys` gives them, in their order; and which are there.

    Of one that is not, all but the key is null. The cut has the table. Raises as `multi_get`, whose cache and
    `haste` these are.
    """
    manifest = cut.table(table)
    assert manifest is not None and manifest.table is not None  # noqa: S101, PT018  the cut has it
    hashes, clock_ms = hash_keys(keys, keys.schema.names), cut.clock_ms(table)
    values, present = multi_get(
        store, cache, manifest.ssts, manifest.table, hashes, keys, clock_ms=clock_ms, read_ahead=haste
    )
    rows = pa.table([*keys.columns, *values.columns], [*keys.schema.names, *values.schema.names])
    return rows.select(visible_schema(manifest.table).names), present


def select(table: str, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Some columns of rows of a table, or all where none is named. Raises `NotFound`, which tells the nearest."""
    check_columns(table, rows.schema.names, names)
    return rows.select(names) if names else rows


def check_columns(table: str, known: Sequence[str], names: Sequence[str]) -> None:
    """Raise `NotFound`, which tells the nearest, unless a table has columns of these names."""
    for name in names:
        if name not in known:
            raise NotFound(f"column of table {table!r}", name, known)
