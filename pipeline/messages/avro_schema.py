"""Avro schemas in normal form, with references and named types expanded and without invalid logical types.

A `Node` is a schema or a part of one. A union is `{"type": "union", "branches": […]}`; a named type has a `fullname`
besides its `name`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ...errors import Refused
from .registry import Schema

Node = dict[str, Any]
"""Avro schema in normal form, or a part of one: `type` is the name of a primitive type, or `record`, `union` etc."""

NAMED_TYPES = ("record", "enum", "fixed")
_NUMBER_BYTES = 10
_FIXED_SIZES = {"boolean": 1, "float": 4, "double": 8}
PRIMITIVE_TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL_TYPES = {
    "date": ("int", pa.date32()),
    **{f"timestamp-{unit}": ("long", pa.timestamp("us", "UTC")) for unit in ("millis", "micros", "nanos")},
    **{f"local-timestamp-{unit}": ("long", pa.timestamp("us")) for unit in ("millis", "micros", "nanos")},
}
"""Logical types that have a special column type, with the Avro type that stores each, and the Arrow type.

Decimals are handled elsewhere. As in Spark's `from_avro`, all other logical types (uuid, time-millis, duration, …) and
invalid ones become columns of the type that stores them:
https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""
MAX_PRECISION = 38


@lru_cache(maxsize=256)
def parse_schema(schema: Schema) -> Node:
    """Return the schema in normal form, with the schemas that it references.

    Raises `Refused` for invalid JSON or Avro, and for a recursive schema.
    """
    return _parse_with_references(schema, {})


def branches(node: Node) -> list[Node]:
    """Return the non-null branches of a union. Any other node is returned as the only branch, unless it is null."""
    choices = node["branches"] if node["type"] == "union" else [node]
    return [choice for choice in choices if choice["type"] != "null"]


def column_type(node: Node) -> pa.DataType:
    """Return the Arrow type of a schema's values. All values are nullable.

    Raises `Refused` for a record without fields and for a decimal that exceeds Spark's precision.
    """
    kind = node["type"]
    if "logicalType" in node:
        if node["logicalType"] != "decimal":
            return _LOGICAL_TYPES[node["logicalType"]][1]
        if node["precision"] > MAX_PRECISION:
            raise Refused(
                f"a decimal with {node['precision']} digits has no column type: Spark supports at most {MAX_PRECISION}"
            )
        return pa.decimal128(node["precision"], node["scale"])
    match kind:
        case "record":
            if not node["fields"]:
                raise Refused(f"the Avro record {node['fullname']!r} has no fields, so it has no column")
            return pa.struct([pa.field(field["name"], column_type(field["type"])) for field in node["fields"]])
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary()
        case "array":
            return pa.list_(column_type(node["items"]))
        case "map":
            return pa.map_(pa.string(), column_type(node["values"]))
        case "union":
            members = [column_type(branch) for branch in branches(node)]
            if len(members) > 1:
                return pa.struct([pa.field(f"member{n}", member) for n, member in enumerate(members)])
            return members[0] if members else pa.null()
    return PRIMITIVE_TYPES[kind]


def describe_node(node: Node) -> str:
    if "logicalType" in node:
        digits = f"({node['precision']}, {node['scale']})" if node["logicalType"] == "decimal" else ""
        return f"{node['logicalType']}{digits}"
    if node["type"] == "union":
        return f"a union of {', '.join(map(describe_node, node['branches']))}"
    return f"{node['type']} {node['fullname']}" if node["type"] in NAMED_TYPES else str(node["type"])


def _parse_with_references(schema: Schema, types: dict[str, Node | None]) -> Node:
    for name, referenced in schema.references:
        types[name] = _parse_with_references(referenced, types)
    try:
        document = json.loads(schema.text)
    except ValueError as error:
        raise Refused(f"the Avro schema is not valid JSON: {error}") from None
    try:
        return _normalize(document, "", types)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(
            f"the Avro schema cannot be converted to columns: a part is invalid or missing ({error})"
        ) from None


def _normalize(part: Any, namespace: str, types: dict[str, Node | None]) -> Node:
    if isinstance(part, list):
        choices = [_normalize(branch, namespace, types) for branch in part]
        if not choices or any(choice["type"] == "union" for choice in choices):
            raise Refused("the Avro schema cannot be converted to columns: a union is empty, or nested in a union")
        return {"type": "union", "branches": choices}
    if isinstance(part, str):
        if part in PRIMITIVE_TYPES:
            return {"type": part}
        node = types.get(f"{namespace}.{part}", types.get(part, {}))
        if node is None:
            raise Refused(
                "the Avro schema is recursive, so it has no columns", hint="decode it in a function of your own"
            )
        if not node:
            raise Refused(f"the Avro schema cannot be converted to columns: it defines no type {part!r}")
        return node
    kind = part["type"]
    if not isinstance(kind, str) or kind not in (*PRIMITIVE_TYPES, *NAMED_TYPES, "error", "array", "map"):
        return _normalize(kind, namespace, types)
    if kind == "array":
        return {"type": kind, "items": _normalize(part["items"], namespace, types)}
    if kind == "map":
        return {"type": kind, "values": _normalize(part["values"], namespace, types)}
    if kind in PRIMITIVE_TYPES:
        return {"type": kind, **_logical_entries(kind, part, 0)}
    return _named_type(part, namespace, types)


def _named_type(part: Any, namespace: str, types: dict[str, Node | None]) -> Node:
    kind = "record" if part["type"] == "error" else part["type"]
    outer, _, name = part["name"].rpartition(".")
    namespace = outer or part.get("namespace", namespace)
    fullname = ".".join(filter(None, (namespace, name)))
    node: Node = {"type": kind, "name": name, "fullname": fullname, "aliases": part.get("aliases", [])}
    types[fullname] = None
    if kind == "enum":
        node |= {"symbols": list(part["symbols"])} | {key: part[key] for key in ("default",) if key in part}
    elif kind == "fixed":
        node |= {"size": int(part["size"]), **_logical_entries(kind, part, int(part["size"]))}
    else:
        optional_keys = ("name", "aliases", "default")
        node["fields"] = [
            {
                **{key: field[key] for key in optional_keys if key in field},
                "type": _normalize(field["type"], namespace, types),
            }
            for field in part["fields"]
        ]
    types[fullname] = node
    return node


def _logical_entries(kind: str, part: Any, size: int) -> dict[str, Any]:
    """Return the entries that a valid logical type adds to a node; empty for an invalid or unknown type."""
    logical = part.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = part.get("precision"), part.get("scale", 0)
        valid = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
        # The precision is valid only if every number of that many digits fits into the bytes.
        if valid and (kind == "bytes" or precision < len(str((1 << max(8 * size - 1, 0)) - 1))):
            return {"logicalType": logical, "precision": precision, "scale": scale}
    if isinstance(logical, str) and logical in _LOGICAL_TYPES and _LOGICAL_TYPES[logical][0] == kind:
        return {"logicalType": logical}
    return {}


def is_one_value(node: Node, data: bytes, at: int) -> bool:
    """Return True if the bytes from `at` to the end are exactly one value of the schema.

    The batch reader does not identify the bad message of a batch, and takes a millisecond for a single message. This
    check takes microseconds, and is used only for batches with a bad message.
    https://avro.apache.org/docs/1.12.0/specification/#binary-serialization-encoding
    """
    try:
        return _value_end(node, data, at) == len(data)
    except (IndexError, ValueError):
        return False


def _value_end(node: Node, data: bytes, at: int) -> int:
    match node["type"]:
        case "union":
            return _union_end(node, data, at)
        case "null":
            return at
        case "int" | "long":
            return _read_long(data, at)[1]
        case "enum":
            number, at = _read_long(data, at)
            if not 0 <= number < len(node["symbols"]):
                raise ValueError("no symbol")
            return at
        case "record":
            for field in node["fields"]:
                at = _value_end(field["type"], data, at)
            return at
        case "array":
            return _blocks_end(node["items"], data, at)
        case "map":
            entry = {"type": "record", "fields": [{"type": {"type": "string"}}, {"type": node["values"]}]}
            return _blocks_end(entry, data, at)
    return _bytes_end(node, data, at)


def _union_end(node: Node, data: bytes, at: int) -> int:
    choices = node["branches"]
    number, at = _read_long(data, at)
    if len(choices) == 2 and len(branches(node)) == 1:
        # arrow-rs treats every branch number except that of null as the value.
        null = next(n for n, choice in enumerate(choices) if choice["type"] == "null")
        return at if number == null else _value_end(choices[1 - null], data, at)
    if number < 0:
        raise ValueError("no branch")
    return _value_end(choices[number], data, at)


def _bytes_end(node: Node, data: bytes, at: int) -> int:
    kind = node["type"]
    if kind in ("bytes", "string"):
        size, at = _read_long(data, at)
    else:
        size = node["size"] if kind == "fixed" else _FIXED_SIZES[kind]
    if size < 0 or at + size > len(data):
        raise ValueError("beyond the end")
    if kind == "string":
        data[at : at + size].decode()
    return at + size


def _blocks_end(item: Node, data: bytes, at: int) -> int:
    while True:
        count, at = _read_long(data, at)
        if count < 0:
            # A negative count is followed by the block's size in bytes.
            count, at = -count, _read_long(data, at)[1]
        if not count:
            return at
        for _ in range(count):
            start, at = at, _value_end(item, data, at)
            if at == start:
                break  # items of no bytes, however many


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_NUMBER_BYTES):
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + index + 1
    raise ValueError("a number without an end")


_MICROSECONDS: dict[str, Callable[[int], int]] = {
    "millis": lambda number: number * 1000,
    "micros": int,
    "nanos": lambda number: number // 1000,
}
_JSON_TYPES: dict[str, Any] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float, str),
    "double": (int, float, str),
    "bytes": str,
    "fixed": str,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}
"""Python type of a default's JSON value, by Avro type.

A string may stand for a number that JSON lacks, such as "NaN".
"""
_BITS = {"int": 31, "long": 63}


def default_array(field: Node) -> pa.Array:
    """Return the default value of a field of the reader's schema, as an array with one element.

    Raises `Refused` if the default does not have the field's type.
    """
    kind = column_type(field["type"])
    try:
        value = _default_value(field["default"], field["type"])
        default = pa.array([value], kind)
        default.validate(full=True)
    except (ValueError, TypeError, KeyError, OverflowError, ArithmeticError, pa.ArrowException) as error:
        raise Refused(
            f"the default of the reader's field {field['name']!r} does not have the field's type: {error}"
        ) from None
    return default


def _default_value(default: Any, node: Node) -> Any:
    kind = node["type"]
    if kind == "union":
        return _union_default(default, node)
    _check_json_type(default, kind)
    if "logicalType" in node and (logical := _logical_default(default, node)) is not None:
        return logical
    match kind:
        case "record":
            return {
                f["name"]: _default_value(default[f["name"]] if f["name"] in default else f["default"], f["type"])
                for f in node["fields"]
            }
        case "map":
            return [(key, _default_value(item, node["values"])) for key, item in default.items()]
        case "array":
            return [_default_value(item, node["items"]) for item in default]
        case "float" | "double":
            return float(default)
        case "enum" if default not in node["symbols"]:
            raise ValueError(f"{default!r} is not a symbol of the enum")
        case "bytes" | "fixed":
            data = default.encode("latin-1")
            if len(data) != node.get("size", len(data)):
                raise ValueError(f"{len(data)} bytes, not {node['size']}")
            return data
    return default


def _check_json_type(default: Any, kind: str) -> None:
    if kind == "null":
        if default is not None:
            raise ValueError(f"{default!r} is not null")
        return
    if not isinstance(default, _JSON_TYPES[kind]) or (isinstance(default, bool) and kind != "boolean"):
        raise ValueError(f"{default!r} is not of type {kind}")
    if kind in _BITS and not -(1 << _BITS[kind]) <= default < 1 << _BITS[kind]:
        raise ValueError(f"{default} does not fit {kind}")


def _logical_default(default: Any, node: Node) -> Any:
    logical = node["logicalType"]
    if logical == "decimal":
        unscaled = int.from_bytes(default.encode("latin-1"), "big", signed=True)
        return Decimal(f"{unscaled}e-{node['scale']}")
    return _MICROSECONDS[logical.rpartition("-")[2]](default) if "timestamp" in logical else None


def _union_default(default: Any, node: Node) -> Any:
    for branch in node["branches"]:
        try:
            value = _default_value(default, branch)
        except (ValueError, KeyError, ArithmeticError):
            continue
        choices = branches(node)
        if branch["type"] == "null" or len(choices) == 1:
            return value
        number = next(n for n, choice in enumerate(choices) if choice is branch)
        return {f"member{number}": value}
    raise ValueError(f"{default!r} matches no branch of the union")
