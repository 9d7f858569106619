"""The state of a query as Spark's own reader returns it: rows with nested values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.types import NullType, StructType, VariantVal
from slackwater.operations.from_spark.checkpoint.checkpoint import Checkpoint
from slackwater.operations.from_spark.checkpoint.tables import StateTable

from tests.support.running import UNCOMPILED

State = dict[tuple[Any, ...], tuple[Any, ...]]
_INSTANTS = {"timeoutTimestamp": 1e3, "ttlExpirationMs": 1e3, "expiresAtMicros": 1e6}
"""Spark's time fields, and the number of their ticks per second."""


@dataclass(frozen=True)
class Variant:
    """A value of any type, which equals its JSON text."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and _from_json(other) == self.value

    def __hash__(self) -> int:
        return 0


def by_spark(spark: SparkSession, folder: Path, checkpoint: Checkpoint, table: StateTable, batch: int) -> State:
    """Read a table at the end of a batch by Spark's own reader, without the code under test. Returns rows by key."""
    session = spark.newSession()
    read_format = {"spark.sql.streaming.stateStore.checkpointFormatVersion": checkpoint.files.format_of(batch)}
    for name, value in (UNCOMPILED | read_format).items():
        session.conf.set(name, value)
    options = {"path": str(folder), "batchId": batch, "operatorId": table.operator, "storeName": table.store}
    frame = session.read.format("statestore").options(**(options | dict(table.options))).load()
    rows = [_split(row, frame.schema, table.kind) for row in frame.collect()]
    found = dict(rows)
    assert len(found) == len(rows), "Spark has two rows with one key"
    return found


def _split(row: Row, schema: StructType, kind: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return key and values from Spark's structs, with times as Spark stores them."""
    of = dict(zip(schema.names, row, strict=True))
    key = [*_fields(of["key"], schema["key"].dataType)]
    if "user_map_key" in of:
        key += _fields(of["user_map_key"], schema["user_map_key"].dataType)
    if "expiration_timestamp_ms" in of:
        key.append(_instant(of["expiration_timestamp_ms"], 1e3))
    (column,) = {"value", "user_map_value", "list_value"} & of.keys() or {""}
    if column == "list_value":
        return tuple(key), (plain(of[column]),)
    if not column:
        return tuple(key), ()
    value, type_of = of[column], schema[column].dataType
    names = list(type_of.names)  # type: ignore[attr-defined]
    if names == ["value", "ttlExpirationMs"] and kind == "transform":
        return tuple(key), (*_fields(value[0], type_of[0].dataType), _instant(value[1], 1e3))  # type: ignore[index]
    if names[:1] == ["groupState"]:
        inner = type_of[0].dataType  # type: ignore[index]
        state = _fields(value[0], inner) if value[0] is not None else [None] * len(inner.names)
        return tuple(key), (*state, *([value[0] is not None, _instant(value[1], 1e3)] if len(value) > 1 else []))
    if kind == "session":
        # Its key is there once more.
        keys = set(schema["key"].dataType.names)  # type: ignore[attr-defined]
        return tuple(key), tuple(plain(each) for name, each in zip(names, value, strict=True) if name not in keys)
    return tuple(key) or (0,), tuple(_fields(value, type_of))


def _fields(value: Any, kind: Any) -> list[Any]:
    pairs = zip(kind.fields, value, strict=True)
    return [
        _instant(each, _INSTANTS[field.name]) if field.name == "expiresAtMicros" else plain(each)
        for field, each in pairs
        if not isinstance(field.dataType, NullType)
    ]


def _instant(ticks: int | None, per_second: float) -> datetime | None:
    return None if ticks is None or ticks < 0 else datetime.fromtimestamp(ticks / per_second, UTC)


def _from_json(text: str) -> Any:
    return json.loads(text, parse_float=lambda each: Decimal(repr(float(each))))


def plain(value: Any) -> Any:
    """Return a Spark value in hashable form: a struct as a tuple, a map as a tuple of pairs."""
    if isinstance(value, VariantVal):
        return Variant(_from_json(value.toJson()))
    if isinstance(value, Row | list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple((plain(key), plain(each)) for key, each in value.items())
    return _leaf(value)


def plain_arrow(value: Any) -> Any:
    """Return an Arrow value in the same hashable form.

    Arrow has dictionaries for structs and lists of pairs for maps.
    """
    if isinstance(value, Mapping):
        return tuple(map(plain_arrow, value.values()))
    return tuple(map(plain_arrow, value)) if isinstance(value, list | tuple) else _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, float):
        # NaN does not equal itself, and -0.0 equals 0.0.
        return repr(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value
