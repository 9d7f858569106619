"""Formatting of values and Arrow tables: as text for people, as JSON, and as files."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...common.whole_file import check_folder, whole_file
from ...errors import Refused, Usage
from ...store.sst.arrow_types import escaped, hexadecimal, python_rows, python_values
from . import formats
from .document import Cell, Name, TableBlock
from .shown import fields

if TYPE_CHECKING:
    from ...snapshot.diff.key_changes import KeyChange, KeyChanges
    from ...snapshot.diff.moments import TableDiff

ENDINGS = (".parquet", ".csv", ".json")
"""File extensions that `write_table` supports."""
NOT_TEXT = "not valid UTF-8, as hex: "
_MOST = 4_000
# DuckDB returns sums of integers as decimals; JSON gets numbers.
_encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def grid(table: pa.Table, limit: int | None = None) -> TableBlock:
    """Return a table block of the first `limit` rows (None for all); numbers are right-aligned."""
    is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    to_right = tuple(any(is_kind(kind) for is_kind in is_number) for kind in table.schema.types)
    some = table if limit is None else table.slice(0, min(limit, table.num_rows))
    lines = tuple(tuple(map(word, row.values())) for row in rows(some))
    return TableBlock(tuple(map(Name, table.column_names)), to_right, lines)


def word(value: object) -> str:
    """Format one value for people, without rounding and separators."""
    from ...snapshot.query.key_text import text_of

    match value:
        case None | str():
            # As in a key, where null differs from the text "null".
            return text_of(value)
        case bool():
            return str(value).lower()
        case Decimal():
            return f"{value:f}"
        case bytes():
            return value.hex()
        case list() | dict() | tuple():
            return _encoder.encode(value).decode()
        case _:
            return str(value)


def key_word(value: object, show: Callable[[object], Cell] = word) -> Cell:
    """Format one value of a key as a user can type it, or by `show`."""
    from ...snapshot.query.key_text import NULL, text_of

    return text_of(value) if show is word else NULL if value is None else show(value)


def readable(data: bytes, most: int = _MOST, more: str = "") -> str:
    """Format bytes as text, or as labelled hexadecimal if they are not UTF-8, cut to `max_characters`."""
    try:
        return shortened(data.decode(), most, more)
    except UnicodeDecodeError:
        return f"{NOT_TEXT}{shortened(data.hex(), most, more)}"


def shortened(text: str, most: int = _MOST, more: str = "") -> str:
    """Cut a text to `max_characters`, followed by `more` or by the number of omitted characters."""
    cut_off = len(text) - most
    return text if cut_off <= 0 else text[:most] + (more or f"… and {formats.plural(cut_off, 'character')} more")


def value_lines(
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    show: Callable[[object], Cell] = word,
    none: str = "(no row)",
) -> Iterator[tuple[Name, Cell, Cell]]:
    """Yield the columns in which two rows differ, with both values; all columns if no value differs.

    If one row is None and the other has no values, yields one line without a column. `show` formats a value, and `none`
    is the text for values of a missing row.
    """

    def side(row: Mapping[str, object] | None, name: str, show: Callable[[object], Cell]) -> Cell:
        return none if row is None else show(row.get(name)) if name else ""

    names = list(after or before or [""])
    differing = [name for name in names if side(before, name, word) != side(after, name, word)]
    for name in differing or names:
        yield Name(name), side(before, name, show), side(after, name, show)


def changes(
    keys: "KeyChanges",
    before: str = "before",
    after: str = "after",
    show: Callable[[object], Cell] = word,
    none: str = "(no row)",
) -> TableBlock:
    """Return a table of the first changed keys, with a line per changed value; `before` and `after` are headings."""
    names = (Name(name) for name in keys.keys.column_names)
    rows = (
        (*(key_word(value, show) for value in key.key.values()), *line)
        for key in keys.head(formats.MOST_SHOWN)
        for line in value_lines(key.before, key.after, show, none)
    )
    return TableBlock.of((*names, "column", f">{before}", f">{after}"), rows)


def changed_rows(changes: "Iterable[KeyChange]", *, with_values: bool = True) -> msgspec.Raw:
    """Encode changed keys as a JSON array, with the kind of change and, if `with_values`, both rows."""
    sides = ("before", "after") if with_values else ()
    return stream({"key": change.key, "change": change.kind, **fields(change, *sides)} for change in changes)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as dicts of Python values; binary is hexadecimal, and duplicate column names are numbered."""
    return [*chain.from_iterable(_batches(table))]


def row_as_json(schema: pa.Schema) -> Callable[[Mapping[str, object] | None], bytes]:
    """Return a function that encodes a row with these columns as JSON; None becomes null, binary hexadecimal."""
    binary = [field.name for field in schema if _holds_binary(field.type)]

    def encode(row: Mapping[str, object] | None) -> bytes:
        if row is not None and binary:
            row = {**row, **{name: hexadecimal(row[name]) for name in binary if name in row}}
        return _encoder.encode(row)

    return encode


def for_json(table: pa.Table) -> dict[str, Any]:
    """Return the columns of a table, and its rows as encoded JSON. Binary is hexadecimal."""
    names = _unique(table.column_names)
    columns = [{"name": name, "type": str(kind)} for name, kind in zip(names, table.schema.types, strict=True)]
    return {"columns": columns, "rows": msgspec.Raw(b"".join(_json(table)))}


def stream(objects: Iterable[dict[str, Any]]) -> msgspec.Raw:
    """Encode dicts of Python values, one by one, as a JSON array. Binary is hexadecimal."""
    return msgspec.Raw(b"[" + b",".join(_encoder.encode(hexadecimal(item)) for item in objects) + b"]")


def tolerance(near: Mapping[str, int]) -> Iterator[str]:
    """Yield a line per column with floats that are equal only within the tolerance, and the number of such rows."""
    from ...snapshot.diff.equality import TOLERANCE  # imports DuckDB, which `get` does not need

    for column, rows in near.items():
        yield f"  {column}: {formats.plural(rows, 'row')} equal within the tolerance of floats, {TOLERANCE}"


def stacked(diffs: "Iterable[TableDiff]") -> pa.Table:
    """Return the differing rows of all tables as one table, with the table's name as the first column.

    Raises `Usage` if columns of these tables have conflicting types.
    """
    flat = ((diff.table, diff.changes.flat()) for diff in diffs)
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


def write(table: pa.Table, path: Path) -> None:
    """Write rows to `path` atomically, as Parquet, CSV or a JSON array.

    Raises `Refused` if the file cannot be written or the format cannot hold a column.
    """
    from pyarrow import csv, parquet

    check_folder(path, "--out")
    table = escaped(table.rename_columns(_unique(table.column_names)))
    try:
        with whole_file(path, "--out") as temporary:
            match path.suffix.lower():
                case ".parquet":
                    parquet.write_table(table, temporary, compression="zstd")
                case ".csv":
                    csv.write_csv(_with_texts(table), temporary)
                case _:
                    with temporary.open("wb") as file:
                        file.writelines(_json(table))
                        file.write(b"\n")
    except pa.ArrowException as error:
        hint = "let the query return text, as in column::VARCHAR, or choose another ending"
        raise Refused(f"{path} cannot hold these columns: {error}", hint=hint) from None


def _with_texts(table: pa.Table) -> pa.Table:
    """Convert columns of types that CSV lacks, and times that Python cannot represent, to text."""
    types = pa.types
    worded = (types.is_nested, types.is_interval, types.is_time, types.is_duration, _holds_binary)
    for number, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        is_worded = any(is_one(field.type) for is_one in worded)
        if not is_worded and (types.is_timestamp(field.type) or types.is_date(field.type)):
            (extremes,) = python_values(pa.array([pc.min_max(column)]))
            is_worded = isinstance(extremes, dict) and any(isinstance(value, str) for value in extremes.values())
        if is_worded:
            texts = [None if value is None else word(hexadecimal(value)) for value in python_values(column)]
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    return table


def _json(table: pa.Table) -> Iterator[bytes]:
    separator = b"["
    for row in chain.from_iterable(_batches(table)):
        yield separator + _encoder.encode(row)
        separator = b",\n "
    yield b"]" if table.num_rows else b"[]"


def _batches(table: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in batches, so that a large table is not in memory twice."""
    table = table.rename_columns(_unique(table.column_names))
    binary = [field.name for field in table.schema if _holds_binary(field.type)]
    for batch in table.to_batches(max_chunksize=10_000):
        batch_rows = python_rows(batch)
        for row in batch_rows if binary else ():
            row.update((name, hexadecimal(row[name])) for name in binary)
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
