"""Arrow tables as words for people, as JSON, and as files."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa

from ..store.errors import Refused, Usage
from .tables import Grid

__all__ = ["check_ending", "for_json", "grid", "rows", "word", "write"]

# Sums of integers come as decimals from DuckDB: numbers all the same.
_encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def grid(table: pa.Table, limit: int | None = None) -> Grid:
    """The first `limit` rows (all for None) as words; numbers are aligned to the right."""
    shown = _readable(table.slice(0, limit))
    headings = [f">{field.name}" if _is_number(field.type) else field.name for field in table.schema]
    return Grid.of(headings, ([word(value) for value in row.values()] for row in shown.to_pylist()))


def word(value: object) -> str:
    """One value for people. Nothing is rounded, no separators are put in: these are the user's own values."""
    match value:
        case None:
            return "NULL"
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


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as objects of Python values."""
    found: list[dict[str, Any]] = _readable(table).to_pylist()
    return found


def for_json(table: pa.Table) -> dict[str, Any]:
    """The columns, and the rows as objects, encoded. Binary values are hexadecimal."""
    names = _unique(table.column_names)
    columns = [{"name": name, "type": str(kind)} for name, kind in zip(names, table.schema.types, strict=True)]
    return {"columns": columns, "rows": msgspec.Raw(b"".join(_json(table)))}


def check_ending(path: Path) -> None:
    """Raise `Usage` unless `write` knows the ending."""
    if path.suffix.lower() not in _WRITERS:
        *others, last = _WRITERS
        expected = f"{', '.join(others)} or {last}"
        raise Usage(f"--out {path} does not say its format: expected a name that ends with {expected}")


def write(table: pa.Table, path: Path) -> None:
    """Write the rows to `path`, whole or not at all: Parquet, CSV or JSON (an array) by its ending.

    Raises:
        KeyError: `check_ending` would have refused the ending.
        Refused: the file cannot be written.
    """
    writer = _WRITERS[path.suffix.lower()]
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        try:
            writer(table, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}", hint="choose another --out") from None


def _write_parquet(table: pa.Table, path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(table.rename_columns(_unique(table.column_names)), path, compression="zstd")


def _write_csv(table: pa.Table, path: Path) -> None:
    from pyarrow import csv

    table = _readable(table)
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type) or pa.types.is_interval(field.type):
            texts = [None if value is None else word(value) for value in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    csv.write_csv(table, path)


def _write_json(table: pa.Table, path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(_json(table))
        file.write(b"\n")


_WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".json": _write_json,
}
"""How a table is written, by the ending of the file's name."""


def _json(table: pa.Table) -> Iterator[bytes]:
    separator = b"["
    for batch in _readable(table).to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield separator
            yield _encoder.encode(row)
            separator = b",\n "
    yield b"]" if table.num_rows else b"[]"


def _readable(table: pa.Table) -> pa.Table:
    """With names that differ and binary values as hexadecimal text, also those within others."""
    table = table.rename_columns(_unique(table.column_names))
    for number, field in enumerate(table.schema):
        kind = _with_text(field.type)
        if kind != field.type:
            texts = [_hexadecimal(value) for value in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(texts, kind))
    return table


def _with_text(kind: pa.DataType) -> pa.DataType:
    """The type with strings in the place of binaries."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(field.name, _with_text(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_with_text(kind.key_type), _with_text(kind.item_type))
    if types.is_list(kind):
        return pa.list_(_with_text(kind.value_type))
    return pa.string() if types.is_binary(kind) or types.is_large_binary(kind) else kind


def _hexadecimal(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {name: _hexadecimal(inner) for name, inner in value.items()}
        case list():
            return [_hexadecimal(inner) for inner in value]
        case tuple():
            return tuple(_hexadecimal(inner) for inner in value)
        case _:
            return value


def _unique(names: list[str]) -> list[str]:
    """Number the names that come again: `a`, `a_1`, `a_2`."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 0
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        unique.append(candidate)
    return unique


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
