"""A table with strings that are not UTF-8 and with maps with a duplicate key, and how its rows are shown."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from slackwater.store.objects.local import LocalStore
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.schema import arrow_schema
from slackwater.store.versions import apps, commit
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table

CITIES = Table(
    (Column("city", "string"),),
    (
        Column("n", "int64"),
        Column("note", "string"),
        Column("tags", "map<string, int64>"),
        Column("inside", "list<struct<s: string, m: map<string, string>>>"),
    ),
    1,
)
SCHEMA = arrow_schema((*CITIES.key, *CITIES.values))
LATIN = "München".encode("latin-1")
Row = tuple[bytes, int, bytes | None, list[tuple[bytes, int]] | None, list[dict[str, Any]] | None]
FIRST: list[Row] = [
    (b"Paris", 1, b"fine", [(b"a", 1)], None),
    (LATIN, 2, "grün".encode("latin-1"), None, [{"s": b"\xff", "m": [(b"\x80", b"\xfe")]}]),
    ("München".encode(), 3, "grün".encode(), [(b"a", 1), (b"a", 2)], []),
    (b"\xed\xa0\x80", 4, b"surrogate", [(b"\xff", 1), (b"\xff", 2)], [{"s": b"x", "m": [(b"k", b"1"), (b"k", b"2")]}]),
]
SECOND: list[Row] = [
    (LATIN, 20, "grün".encode("latin-1"), [(b"a", 1), (b"a", 3)], None),
    ("München".encode(), 3, "grün".encode(), [(b"a", 1), (b"a", 3)], []),
]


def text(data: bytes | None) -> str | None:
    """Return the text that is shown for bytes, computed byte by byte if they are not all UTF-8."""
    if data is None:
        return None
    shown, rest = "", data
    while rest:
        for size in (4, 3, 2, 1):
            try:
                shown, rest = shown + rest[:size].decode(), rest[size:]
                break
            except UnicodeDecodeError:
                continue
        else:
            shown, rest = shown + f"\\x{rest[0]:02x}", rest[1:]
    return shown


def raw(rows: list[Any], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return rows whose strings have these bytes, which may not be UTF-8."""

    def of_bytes(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(of_bytes(field.type)) for field in kind])
        if pa.types.is_map(kind):
            return pa.map_(of_bytes(kind.key_type), of_bytes(kind.item_type))
        if pa.types.is_list(kind):
            return pa.list_(of_bytes(kind.value_type))
        return pa.binary() if pa.types.is_string(kind) else kind

    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [
        pa.array(values, of_bytes(field.type)).cast(options=pc.CastOptions(field.type, allow_invalid_utf8=True))
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def shown(row: Row, *, in_sql: bool) -> dict[str, Any]:
    """Return the values that are shown for a row. In SQL, a map with a duplicate key is null."""

    def of_map(pairs: list[tuple[bytes, Any]] | None) -> list[tuple[str | None, Any]] | None:
        if pairs is None or (in_sql and len({key for key, _ in pairs}) < len(pairs)):
            return None
        return [(text(key), text(it) if isinstance(it, bytes) else it) for key, it in pairs]

    city, n, note, tags, inside = row
    parts = None if inside is None else [{"s": text(one["s"]), "m": of_map(one["m"])} for one in inside]
    return {"city": text(city), "n": n, "note": text(note), "tags": of_map(tags), "inside": parts}


def write_app(folder: Path) -> None:
    """Write the app `shop`. Its table `cities` has the rows of `FIRST` at v2 and those of `SECOND` at v3."""
    store = LocalStore(folder)
    apps.create_app(store, AppInfo("shop", 1))
    ssts: tuple[Any, ...] = ()
    for version, rows in ((1, []), (2, FIRST), (3, SECOND)):
        if rows:
            table, count = raw(rows), len(rows)
            for name, column in (("_seq", pa.array([version] * count)), ("_op", pa.array([0] * count, pa.int8()))):
                table = table.append_column(name, column)
            table = table.append_column("_hash", pa.array(hash_keys(table, ["city"])))
            ssts = (
                writer.write_sst(store, None, app="shop", stage="cities", table=CITIES, partition=0, rows=table),
                *ssts,
            )
        manifest = Manifest("shop", "cities", version, 1, "w", version, "batch" if rows else "claim", table=CITIES)
        commit.commit(store, replace(manifest, ssts=ssts, time_ms=version * 60_000))


NOW = [*SECOND, FIRST[0], FIRST[3]]
"""Rows at v3."""
