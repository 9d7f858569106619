"""Formatting of values and Arrow tables: as text for people, as JSON, and as files."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...common.whole_file import atomic_file, check_parent_folder
from ...errors import Refused, Usage
from ...store.sst.arrow_types import bytes_to_hex, escape_invalid_text, python_rows, python_values
from . import formats
from .document import Cell, Name, TableBlock
from .shown import attributes, encode_json

if TYPE_CHECKING:
    from ...snapshot.diff.key_changes import KeyChange, KeyChanges
    from ...snapshot.diff.moments import TableDiff

ENDINGS = (".parquet", ".csv", ".json")
"""File extensions that `write_table` supports."""
NOT_TEXT = "not valid UTF-8, as hex: "
_MAX_CHARACTERS = 4_000


def grid(table: pa.Table, limit: int | None = None) -> TableBlock:
    """Return a table block of the first `limit` rows (None for all); numbers are right-aligned."""
    is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    to_right = tuple(any(is_kind(kind) for is_kind in is_number) for kind in table.schema.types)
    some = table if limit is None else table.slice(0, min(limit, table.num_rows))
    lines = tuple(tuple(map(format_value, row.values())) for row in rows_as_dicts(some))
    return TableBlock(tuple(map(Name, table.column_names)), to_right, lines)


def format_value(value: object) -> str:
    """Format one value for people; numbers are neither rounded nor grouped by commas."""
    from ...snapshot.query.key_text import format_value

    match value:
        case None | str():
            # As in a key, where null differs from the text "null".
            return format_value(value)
        case bool():
            return str(value).lower()
        case Decimal():
            return f"{value:f}"
        case bytes():
            return value.hex()
        case list() | dict() | tuple():
            return encode_json(value).decode()
        case _:
            return str(value)


def format_key_value(value: object, show: Callable[[object], Cell] = format_value) -> Cell:
    """Format one value of a key in a form that a user can type, or with the function `show`."""
    from ...snapshot.query import key_text

    return key_text.format_value(value) if show is format_value else key_text.NULL if value is None else show(value)


def format_bytes(data: bytes, max_characters: int = _MAX_CHARACTERS, more: str = "") -> str:
    """Format bytes as text, or as labelled hexadecimal if they are not UTF-8, cut to `max_characters`."""
    try:
        return shorten(data.decode(), max_characters, more)
    except UnicodeDecodeError:
        return f"{NOT_TEXT}{shorten(data.hex(), max_characters, more)}"


def shorten(text: str, max_characters: int = _MAX_CHARACTERS, more: str = "") -> str:
    """Cut a text to `max_characters`, followed by `more` or by the number of omitted characters."""
    cut_off = len(text) - max_characters
    return (
        text if cut_off <= 0 else text[:max_characters] + (more or f"… and {formats.plural(cut_off, 'character')} more")
    )


def value_lines(
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    show: Callable[[object], Cell] = format_value,
    none: str = "(no row)",
) -> Iterator[tuple[Name, Cell, Cell]]:
    """Yield the columns in which two rows differ, with both values; all columns if no value differs.

    If one row is None and the other row has no values, yields one line without a column. The function `show` formats a
    value; `none` is the text for values of a missing row.
    """

    def side(row: Mapping[str, object] | None, name: str, show: Callable[[object], Cell]) -> Cell:
        return none if row is None else show(row.get(name)) if name else ""

    names = list(after or before or [""])
    differing = [name for name in names if side(before, name, format_value) != side(after, name, format_value)]
    for name in differing or names:
        yield Name(name), side(before, name, show), side(after, name, show)


def key_changes_table(
    keys: "KeyChanges",
    before: str = "before",
    after: str = "after",
    show: Callable[[object], Cell] = format_value,
    none: str = "(no row)",
) -> TableBlock:
    """Return a table of the first changed keys, with a line per changed value; `before` and `after` are headings."""
    names = (Name(name) for name in keys.keys.column_names)
    rows = (
        (*(format_key_value(value, show) for value in key.key.values()), *line)
        for key in keys.head(formats.MAX_SHOWN)
        for line in value_lines(key.before, key.after, show, none)
    )
    return TableBlock.from_rows((*names, "column", f">{before}", f">{after}"), rows)


def changed_rows(changes: "Iterable[KeyChange]", *, with_values: bool = True) -> msgspec.Raw:
    """Encode changed keys as a JSON array, with the kind of change and, if `with_values`, both rows."""
    sides = ("before", "after") if with_values else ()
    return encode_array({"key": change.key, "change": change.kind, **attributes(change, *sides)} for change in changes)


def rows_as_dicts(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as dicts of Python values; binary is hexadecimal, and duplicate column names are numbered."""
    return [*chain.from_iterable(_batches(table))]


def row_encoder(schema: pa.Schema) -> Callable[[Mapping[str, object] | None], bytes]:
    """Return a function that encodes a row with these columns as JSON; None becomes null, binary hexadecimal."""
    binary = [field.name for field in schema if _holds_binary(field.type)]

    def encode(row: Mapping[str, object] | None) -> bytes:
        if row is not None and binary:
            row = {**row, **{name: bytes_to_hex(row[name]) for name in binary if name in row}}
        return encode_json(row)

    return encode


def table_data(table: pa.Table) -> dict[str, Any]:
    """Return the columns of a table, and its rows as encoded JSON. Binary is hexadecimal."""
    names = _unique(table.column_names)
    columns = [{"name": name, "type": str(kind)} for name, kind in zip(names, table.schema.types, strict=True)]
    return {"columns": columns, "rows": msgspec.Raw(b"".join(_json(table)))}


def encode_array(objects: Iterable[dict[str, Any]]) -> msgspec.Raw:
    """Encode dicts of Python values, one by one, as a JSON array. Binary is hexadecimal."""
    return msgspec.Raw(b"[" + b",".join(encode_json(bytes_to_hex(item)) for item in objects) + b"]")


def tolerance_lines(near: Mapping[str, int]) -> Iterator[str]:
    """Yield a line per column whose floats are equal only within the tolerance, with the number of such rows."""
    from ...snapshot.diff.equality import TOLERANCE  # imports DuckDB, which `get` does not need

    for column, rows in near.items():
        yield f"  {column}: {formats.plural(rows, 'row')} equal within the tolerance of floats, {TOLERANCE}"


def stack_diffs(diffs: "Iterable[TableDiff]") -> pa.Table:
    """Return the differing rows of all tables as one table, with the table's name as the first column.

    Raises `Usage` if columns of these tables have conflicting types.
    """
    flat = ((diff.table, diff.changes.to_table()) for diff in diffs)
    tables = [rows.add_column(0, "table", pa.array([name] * rows.num_rows, pa.string())) for name, rows in flat]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise Usage(f"these tables do not fit into one file: {error}", hint="--table NAME writes one of them") from None


def check_ending(path: Path) -> None:
    """Raise `Usage` unless `write_table` supports the file's extension."""
    if path.suffix.lower() not in ENDINGS:
        *other_endings, last = ENDINGS
        expected = f"expected a name that ends with {', '.join(other_endings)} or {last}"
        raise Usage(f"--out {path} has no supported format: {expected}")


def write_table(table: pa.Table, path: Path) -> None:
    """Write rows to `path` atomically, as Parquet, CSV or a JSON array.

    Raises `Refused` if the file cannot be written or the format cannot hold a column.
    """
    from pyarrow import csv, parquet

    check_parent_folder(path, "--out")
    table = escape_invalid_text(table.rename_columns(_unique(table.column_names)))
    try:
        with atomic_file(path, "--out") as temporary:
            match path.suffix.lower():
                case ".parquet":
                    parquet.write_table(table, temporary, compression="zstd")
                case ".csv":
                    csv.write_csv(_with_text_columns(table), temporary)
                case _:
                    with temporary.open("wb") as file:
                        file.writelines(_json(table))
                        file.write(b"\n")
    except pa.ArrowException as error:
        hint = "let the query return text, as in column::VARCHAR, or choose another ending"
        raise Refused(f"{path} cannot hold these columns: {error}", hint=hint) from None


def _with_text_columns(table: pa.Table) -> pa.Table:
    """Convert columns to text if CSV lacks their type, or if they contain times that Python cannot represent."""
    types = pa.types
    worded = (types.is_nested, types.is_interval, types.is_time, types.is_duration, _holds_binary)
    for number, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        is_worded = any(is_one(field.type) for is_one in worded)
        if not is_worded and (types.is_timestamp(field.type) or types.is_date(field.type)):
            (extremes,) = python_values(pa.array([pc.min_max(column)]))
            is_worded = isinstance(extremes, dict) and any(isinstance(value, str) for value in extremes.values())
        if is_worded:
            texts = [None if value is None else format_value(bytes_to_hex(value)) for value in python_values(column)]
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    return table


def _json(table: pa.Table) -> Iterator[bytes]:
    separator = b"["
    for row in chain.from_iterable(_batches(table)):
        yield separator + encode_json(row)
        separator = b",\n "
    yield b"]" if table.num_rows else b"[]"


def _batches(table: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in batches, so that a large table is not in memory twice."""
    table = table.rename_columns(_unique(table.column_names))
    binary = [field.name for field in table.schema if _holds_binary(field.type)]
    for batch in table.to_batches(max_chunksize=10_000):
        batch_rows = python_rows(batch)
        for row in batch_rows if binary else ():
            row.update((name, bytes_to_hex(row[name])) for name in binary)
        yield batch_rows


def _holds_binary(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_nested(kind):
        return any(_holds_binary(kind.field(number).type) for number in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _unique(names: list[str]) -> list[str]:
    """Number duplicate names: `a`, `a_1`, `a_2`."""
    unique: dict[str, None] = {}
    for name in names:
        candidates = chain([name], (f"{name}_{number}" for number in count(1)))
        unique[next(candidate for candidate in candidates if candidate not in unique)] = None
    return list(unique)
