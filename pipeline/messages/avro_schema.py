"""Avro schemas as JSON, with each named type written out wherever it is named; whether bytes are one value of one."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from ...errors import Refused
from .schema import Schema

Node = Any
"""An Avro schema as JSON gives it: the name of a simple type, a list, or an object."""

_AS_STORED = ("uuid", "time-millis", "time-micros", "duration")
"""Logical types that Spark's `from_avro` leaves alone, and so do we."""
_NUMBER_BYTES = 10
_SIZES = {"boolean": 1, "float": 4, "double": 8}


@lru_cache(maxsize=256)
def parsed(schema: Schema) -> Node:
    """The schema, with what it refers to. Raises `Refused` where it is no JSON, or contains itself."""
    return _parsed(schema, {})


def _parsed(schema: Schema, named: dict[str, Node]) -> Node:
    for name, referenced in schema.references:
        named[name] = _parsed(referenced, named)
    try:
        node = json.loads(schema.text)
    except ValueError as error:
        raise Refused(f"an Avro schema that is no JSON: {error}") from None
    return _written_out(node, "", named)


def _written_out(node: Node, namespace: str, named: dict[str, Node]) -> Node:
    """A part of a schema. `named` are the named types that came before it, None for those that it is in."""
    if isinstance(node, list):
        return [_written_out(branch, namespace, named) for branch in node]
    if isinstance(node, str):
        known = named.get(f"{namespace}.{node}", named.get(node, node))
        if known is None:
            raise Refused(
                "an Avro schema that contains itself has no columns", hint="decode it in a function of your own"
            )
        return known
    made = {key: value for key, value in node.items() if key != "logicalType" or value not in _AS_STORED}
    full = ""
    if "name" in made and made.get("type") in ("record", "error", "enum", "fixed"):
        outer, _, made["name"] = made["name"].rpartition(".")
        if namespace := outer or made.get("namespace", namespace):
            made["namespace"] = namespace
        full = ".".join(filter(None, (namespace, made["name"])))
        named[full] = None
    for key in {"items", "values", "type"} & made.keys():
        made[key] = _written_out(made[key], namespace, named)
    if "fields" in made:
        made["fields"] = [{**one, "type": _written_out(one["type"], namespace, named)} for one in made["fields"]]
    if full:
        named[full] = made
    return made


def is_one_value(node: Node, data: bytes, at: int) -> bool:
    """Whether the bytes from `at` on are one value of a schema, and nothing more; nothing is made of them.

    The reader of whole batches says that one has a bad message, and not which: to ask it for each takes a millisecond.
    This takes microseconds a message, and is asked only where a batch has a bad one.
    https://avro.apache.org/docs/1.12.0/specification/#binary-serialization-encoding
    """
    try:
        return _end(node, data, at) == len(data)
    except (IndexError, ValueError):
        return False


def _end(node: Node, data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends. Raises `IndexError` or `ValueError` where none is."""
    if isinstance(node, list):
        number, at = _long(data, at)
        if len(node) == 2 and "null" in node:
            # The reader takes whatever is not null for the value.
            null = node.index("null")
            return at if number == null else _end(node[1 - null], data, at)
        if number < 0:
            raise ValueError("no branch")
        return _end(node[number], data, at)
    kind = node["type"] if isinstance(node, dict) else node
    if not isinstance(kind, str):
        return _end(kind, data, at)
    match kind:
        case "null":
            return at
        case "int" | "long":
            return _long(data, at)[1]
        case "enum":
            number, at = _long(data, at)
            if not 0 <= number < len(node["symbols"]):
                raise ValueError("no symbol")
            return at
        case "record" | "error":
            for field in node["fields"]:
                at = _end(field["type"], data, at)
            return at
        case "array" | "map":
            entry = {"type": "record", "fields": [{"type": "string"}, {"type": node.get("values")}]}
            return _blocks_end(node["items"] if kind == "array" else entry, data, at)
        case "bytes" | "string":
            size, at = _long(data, at)
        case _:
            size = node["size"] if kind == "fixed" else _SIZES[kind]
    if size < 0 or at + size > len(data):
        raise ValueError("beyond the end")
    if kind == "string":
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
