"""Avro schemas in one normal form: references and named types written out, valid logical types only.

Every schema and part of one is a `Node`. A union is `{"type": "union", "branches": […]}`; a named type has its
`fullname` besides its `name`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ...errors import Refused
from .schema import Schema

Node = dict[str, Any]
"""A schema, or a part of one, in normal form: `type` is a simple type's name, or that of a shape."""

NAMED = ("record", "enum", "fixed")
_NUMBER_BYTES = 10
_SIZES = {"boolean": 1, "float": 4, "double": 8}
SIMPLE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": ("int", pa.date32()),
    **{f"timestamp-{unit}": ("long", pa.timestamp("us", "UTC")) for unit in ("millis", "micros", "nanos")},
    **{f"local-timestamp-{unit}": ("long", pa.timestamp("us")) for unit in ("millis", "micros", "nanos")},
}
"""The logical types that are columns of their own: what they are stored as, and the column's type.

Decimals are one more. As Spark's `from_avro`, the rest (uuid, time-millis, duration, …) are columns of what they are
stored as, and so are those that say something invalid: https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""
MAX_DIGITS = 38
"""The most digits of a decimal of Spark's."""


@lru_cache(maxsize=256)
def parsed(schema: Schema) -> Node:
    """Return the schema in normal form, with what it refers to.

    Raises `Refused` where it is no JSON or no Avro schema, or contains itself.
    """
    return _parsed(schema, {})


def branches(node: Node) -> list[Node]:
    """Return the branches of a union that are not null; of any other node, itself unless it is null."""
    choices = node["branches"] if node["type"] == "union" else [node]
    return [choice for choice in choices if choice["type"] != "null"]


def column_type(node: Node) -> pa.DataType:
    """Return the Arrow type of a column of a schema's values. Every value may be null.

    Raises `Refused` for a record without fields and for a decimal of more digits than Spark has.
    """
    kind = node["type"]
    if "logicalType" in node:
        if node["logicalType"] != "decimal":
            return _LOGICAL[node["logicalType"]][1]
        if node["precision"] > MAX_DIGITS:
            raise Refused(f"a decimal of {node['precision']} digits has no column: Spark has at most {MAX_DIGITS}")
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
    return SIMPLE[kind]


def named(node: Node) -> str:
    """Return what a node is, for messages: `enum Kind`, `timestamp-millis`, `array`."""
    if "logicalType" in node:
        digits = f"({node['precision']}, {node['scale']})" if node["logicalType"] == "decimal" else ""
        return f"{node['logicalType']}{digits}"
    if node["type"] == "union":
        return f"a union of {', '.join(map(named, node['branches']))}"
    return f"{node['type']} {node['fullname']}" if node["type"] in NAMED else str(node["type"])


def _parsed(schema: Schema, known: dict[str, Node | None]) -> Node:
    for name, referenced in schema.references:
        known[name] = _parsed(referenced, known)
    try:
        document = json.loads(schema.text)
    except ValueError as error:
        raise Refused(f"an Avro schema that is no JSON: {error}") from None
    try:
        return _normal(document, "", known)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"no columns can be made of an Avro schema: it has a wrong part or lacks one ({error})") from None


def _normal(part: Any, namespace: str, known: dict[str, Node | None]) -> Node:
    """Return a part of a document in normal form. `known` has the types named before it, None for those around it."""
    if isinstance(part, list):
        choices = [_normal(branch, namespace, known) for branch in part]
        if not choices or any(choice["type"] == "union" for choice in choices):
            raise Refused("no columns can be made of an Avro schema: a union has no branches, or is one of a union's")
        return {"type": "union", "branches": choices}
    if isinstance(part, str):
        if part in SIMPLE:
            return {"type": part}
        node = known.get(f"{namespace}.{part}", known.get(part, {}))
        if node is None:
            raise Refused(
                "an Avro schema that contains itself has no columns", hint="decode it in a function of your own"
            )
        if not node:
            raise Refused(f"no columns can be made of an Avro schema: nothing in it is called {part!r}")
        return node
    kind = part["type"]
    if not isinstance(kind, str) or kind not in (*SIMPLE, *NAMED, "error", "array", "map"):
        return _normal(kind, namespace, known)
    if kind == "array":
        return {"type": kind, "items": _normal(part["items"], namespace, known)}
    if kind == "map":
        return {"type": kind, "values": _normal(part["values"], namespace, known)}
    if kind in SIMPLE:
        return {"type": kind, **_logical(kind, part, 0)}
    return _named_type(part, namespace, known)


def _named_type(part: Any, namespace: str, known: dict[str, Node | None]) -> Node:
    kind = "record" if part["type"] == "error" else part["type"]
    outer, _, name = part["name"].rpartition(".")
    namespace = outer or part.get("namespace", namespace)
    fullname = ".".join(filter(None, (namespace, name)))
    node: Node = {"type": kind, "name": name, "fullname": fullname, "aliases": part.get("aliases", [])}
    known[fullname] = None
    if kind == "enum":
        node |= {"symbols": list(part["symbols"])} | {key: part[key] for key in ("default",) if key in part}
    elif kind == "fixed":
        node |= {"size": int(part["size"]), **_logical(kind, part, int(part["size"]))}
    else:
        kept = ("name", "aliases", "default")
        node["fields"] = [
            {**{key: field[key] for key in kept if key in field}, "type": _normal(field["type"], namespace, known)}
            for field in part["fields"]
        ]
    known[fullname] = node
    return node


def _logical(kind: str, part: Any, size: int) -> dict[str, Any]:
    """Return the keys of a part's logical type, none where it has none, an unknown one or an invalid one."""
    logical = part.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = part.get("precision"), part.get("scale", 0)
        valid = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
        # The most digits of which every number fits into so many bytes.
        if valid and (kind == "bytes" or precision < len(str((1 << max(8 * size - 1, 0)) - 1))):
            return {"logicalType": logical, "precision": precision, "scale": scale}
    if isinstance(logical, str) and logical in _LOGICAL and _LOGICAL[logical][0] == kind:
        return {"logicalType": logical}
    return {}


def is_one_value(node: Node, data: bytes, at: int) -> bool:
    """Return whether the bytes from `at` on are exactly one value of a schema; nothing is made of them.

    The reader of whole batches says that one has a bad message, and not which: to ask it for each takes a millisecond.
    This takes microseconds a message, and is asked only where a batch has a bad one.
    https://avro.apache.org/docs/1.12.0/specification/#binary-serialization-encoding
    """
    try:
        return _end(node, data, at) == len(data)
    except (IndexError, ValueError):
        return False


def _end(node: Node, data: bytes, at: int) -> int:
    """Return the offset just past the value at `at`. Raises `IndexError` or `ValueError` where none is."""
    match node["type"]:
        case "union":
            choices = node["branches"]
            number, at = _long(data, at)
            if len(choices) == 2 and len(branches(node)) == 1:
                # The reader takes whatever is not null for the value.
                null = next(n for n, choice in enumerate(choices) if choice["type"] == "null")
                return at if number == null else _end(choices[1 - null], data, at)
            if number < 0:
                raise ValueError("no branch")
            return _end(choices[number], data, at)
        case "null":
            return at
        case "int" | "long":
            return _long(data, at)[1]
        case "enum":
            number, at = _long(data, at)
            if not 0 <= number < len(node["symbols"]):
                raise ValueError("no symbol")
            return at
        case "record":
            for field in node["fields"]:
                at = _end(field["type"], data, at)
            return at
        case "array":
            return _blocks_end(node["items"], data, at)
        case "map":
            entry = {"type": "record", "fields": [{"type": {"type": "string"}}, {"type": node["values"]}]}
            return _blocks_end(entry, data, at)
        case "bytes" | "string":
            size, at = _long(data, at)
        case kind:
            size = node["size"] if kind == "fixed" else _SIZES[kind]
    if size < 0 or at + size > len(data):
        raise ValueError("beyond the end")
    if node["type"] == "string":
        data[at : at + size].decode()
    return at + size


def _blocks_end(item: Node, data: bytes, at: int) -> int:
    while True:
        count, at = _long(data, at)
        if count < 0:
            # Then the block says how many bytes it has.
            count, at = -count, _long(data, at)[1]
        if not count:
            return at
        for _ in range(count):
            start, at = at, _end(item, data, at)
            if at == start:
                break  # items of no bytes, however many


def _long(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for place in range(_NUMBER_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise ValueError("a number without an end")
