"""Avro columns compared with fastavro, value by value, for the same schemas and bytes."""

from __future__ import annotations

import io
import json
from copy import deepcopy
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import given, note
from slackwater.pipeline.messages.decode import open_reader, read_batch
from slackwater.pipeline.messages.registry import Schema

from tests.models.profiles import scaled
from tests.pipeline.messages.avro_pairs import Pair, kind_of, pairs

HEAD = b"\0\0\0\0\x07"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Bad:
    """Marker for a message that fastavro cannot decode."""


def theirs(pair: Pair, body: bytes, read: Any) -> Any:
    """Return fastavro's value in the reader's schema; `_Bad` if it fails."""
    written, read = (fastavro.parse_schema(deepcopy(one)) for one in (pair.written, read))
    try:
        return fastavro.schemaless_reader(io.BytesIO(body), written, read, return_named_type=True)
    except Exception:  # it raises whatever its code comes across
        return _Bad


def lenient(node: Any) -> Any:
    """Return the schema with nullable fields and wider numbers.

    We read these, but Avro's resolution rules do not allow them.
    """
    if isinstance(node, list):
        return [*(inner for one in node for inner in lenient(one) if inner != "null"), "null"]
    if isinstance(node, str):
        return [{"int": "long", "float": "double"}.get(node, node), *(["null"] if node != "null" else [])]
    made = dict(node)
    for key in ("items", "values"):
        if key in node:
            made[key] = lenient(node[key])
    if "fields" in node:
        made["fields"] = [{"default": None, **field, "type": lenient(field["type"])} for field in node["fields"]]
    return [made, "null"]


def is_same(ours: Any, value: Any, node: Any) -> bool:
    """True if a column's value equals fastavro's. fastavro returns defaults in their JSON form."""
    if value is None or ours is None:
        return value is None and ours is None
    # With values of the writer's unions fastavro gives the name of the reader's type.
    name, value = value if isinstance(value, tuple) else (None, value)
    if isinstance(node, list):
        choices = [branch for branch in node if branch != "null"]
        if ours is None or value is None or not choices:
            return ours is None and value is None
        if len(choices) == 1:
            return is_same(ours, value, choices[0])
        ((at, member),) = [(n, member) for n, member in enumerate(ours.values()) if member is not None]
        return name in (None, choices[at] if isinstance(choices[at], str) else choices[at].get("name")) and is_same(
            member, value, choices[at]
        )
    kind = kind_of(node)
    logical = node.get("logicalType", "") if isinstance(node, dict) else ""
    match kind:
        case "record":
            known = {field["name"]: value.get(field["name"], field.get("default")) for field in node["fields"]}
            return all(is_same(ours[field["name"]], known[field["name"]], field["type"]) for field in node["fields"])
        case "array":
            return len(ours) == len(value) and all(
                is_same(a, b, node["items"]) for a, b in zip(ours, value, strict=True)
            )
        case "map":
            found = dict(ours)
            return (
                len(found) == len(ours)
                and found.keys() == value.keys()
                and all(is_same(found[key], value[key], node["values"]) for key in found)
            )
        case "float":
            return bool(np.float32(value) == np.float32(ours))
        case "double":
            return bool(float(value) == ours)
        case "string":
            return bool((str(value) if isinstance(value, UUID) else value) == ours)
        case "bytes" | "fixed":
            if logical == "decimal" and node["precision"] >= node.get("scale", 0):
                if isinstance(value, str):
                    value = int.from_bytes(value.encode("latin-1"), "big", signed=True)
                    value = Decimal(f"{value}e-{node.get('scale', 0)}")
                return bool(value == ours)
            return bool((value.encode("latin-1") if isinstance(value, str) else value) == ours)
    if logical.startswith("time-") and isinstance(value, time):
        since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
        return ours == since // timedelta(microseconds=1 if logical.endswith("micros") else 1000)
    if "timestamp" in logical:
        if isinstance(value, int):
            per_second = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}[logical.rpartition("-")[2]]
            value = EPOCH + timedelta(microseconds=value * 10**6 // per_second)
        return ours == (value.replace(tzinfo=None) if "local" in logical else value.replace(tzinfo=UTC))
    if logical == "date" and not isinstance(value, date):
        value = date(1970, 1, 1) + timedelta(days=value)
    return type(ours) is type(value) and ours == value


@given(pairs())
@scaled(120, in_ci=2000)
def test_values_equal_those_of_fastavro(pair: Pair) -> None:
    note(json.dumps([pair.written, pair.read, [body.hex() for body in pair.bodies]]))
    written, read = (Schema("AVRO", json.dumps(one)) for one in (pair.written, pair.read))
    messages = pa.array([HEAD + body for body in pair.bodies], pa.binary())
    reader = open_reader(read)
    values, bad = read_batch(messages, reader, "AVRO", lambda _number: written)
    values.validate(full=True)
    assert values.type == reader.type
    refused = {one.row: one.why for one in bad}
    for row, (ours, body) in enumerate(zip(values.to_pylist(), pair.bodies, strict=True)):
        value = theirs(pair, body, pair.read)
        if row in refused:
            assert ours is None
            assert value is _Bad or not pair.follows or "without bytes" in refused[row], (refused[row], value)
        else:
            value = theirs(pair, body, lenient(pair.read)[0]) if value is _Bad else value
            assert value is not _Bad, ours
            assert is_same(ours, value, pair.read), (ours, value)
