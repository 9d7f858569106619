"""Avro layouts: schemas under which arrow-rs reads a writer's messages, and the Arrow types that it returns.

A layout describes the same bytes as the writer's schema, without features that arrow-rs cannot read. Names and symbols
are replaced by plain names. Logical types other than decimals are omitted, and so are fields without bytes (null, empty
records). A union with a single branch becomes a record that has the branch's number and value. See the specification of
Avro 1.12, "Binary encoding".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa

from ...errors import Refused
from .avro_schema import MAX_PRECISION, PRIMITIVE_TYPES, Node, branches

BRANCH, VALUE = "branch", "value"
"""Field names of the record that stands for a union with a single branch."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Schema by which arrow-rs reads a value, and the Arrow field that arrow-rs returns for it."""

    avro: Any
    field: pa.Field
    """Arrow field with the metadata that arrow-rs sets, which DataFusion requires within unions."""


def has_bytes(node: Node) -> bool:
    if node["type"] == "record":
        return any(has_bytes(field["type"]) for field in node["fields"])
    return node["type"] != "null" and not (node["type"] == "fixed" and node["size"] == 0)


def is_numbered_union(node: Node) -> bool:
    """Return True if a union's layout is a record with a branch number.

    This is the case for a union with one branch, and for a union in which no branch has bytes.
    """
    choices = node["branches"]
    return len(choices) == 1 or not any(map(has_bytes, choices))


def is_nullable_union(node: Node) -> bool:
    return not is_numbered_union(node) and len(node["branches"]) == 2 and len(branches(node)) == 1


def build_layout(node: Node, null: pa.Field) -> Layout | None:
    """Return the layout of a schema, or None if its values have no bytes.

    Args:
        node: The writer's schema.
        null: arrow-rs's field for null in a union, a type that pyarrow cannot create.

    Raises:
        Refused: arrow-rs cannot read the schema, because list items, or a branch other than null, have no bytes.
    """
    return _build_layout(node, VALUE, null, count())


def _build_layout(node: Node, name: str, null: pa.Field, numbers: count[int]) -> Layout | None:
    if not has_bytes(node):
        return None

    def plain_layout(type_name: str, kind: pa.DataType, **more: Any) -> Layout:
        return Layout({"type": type_name, **more} if more else type_name, pa.field(name, kind, nullable=False))

    match kind := node["type"]:
        case "record":
            parts = [_build_layout(field["type"], f"f{n}", null, numbers) for n, field in enumerate(node["fields"])]
            return _record(name, [part for part in parts if part is not None], numbers)
        case "enum":
            symbols = [f"s{n}" for n in range(len(node["symbols"]))]
            more = {"avro.enum.symbols": json.dumps(symbols, separators=(",", ":"))}
            read_as = pa.dictionary(pa.int32(), pa.string())
            return _named_layout({"type": "enum", "symbols": symbols}, name, read_as, numbers, more)
        case "fixed" if _is_decimal(node):
            avro, read_as, more = _decimal(node)
            return _named_layout({**avro, "size": node["size"]}, name, read_as, numbers, more)
        case "fixed":
            return _named_layout({"type": "fixed", "size": node["size"]}, name, pa.binary(node["size"]), numbers)
        case "array":
            items = _items(node["items"], "item", null, numbers)
            return plain_layout("array", pa.list_(items.field), items=items.avro)
        case "map":
            values = _items(node["values"], "value", null, numbers)
            return plain_layout("map", pa.map_(pa.string(), values.field), values=values.avro)
        case "union":
            return _union(node, name, null, numbers)
        case "bytes" if _is_decimal(node):
            avro, read_as, more = _decimal(node)
            return Layout(avro, pa.field(name, read_as, nullable=False, metadata=more))
    return plain_layout(kind, PRIMITIVE_TYPES[kind])


def _is_decimal(node: Node) -> bool:
    return node.get("logicalType") == "decimal" and node["precision"] <= MAX_PRECISION


def _decimal(node: Node) -> tuple[dict[str, Any], pa.DataType, dict[str, str]]:
    digits = {key: node[key] for key in ("precision", "scale")}
    metadata = {key: str(number) for key, number in digits.items()}
    return {"type": node["type"], "logicalType": "decimal", **digits}, pa.decimal128(**digits), metadata


def _items(node: Node, name: str, null: pa.Field, numbers: count[int]) -> Layout:
    items = _build_layout(node, name, null, numbers)
    if items is None:
        raise Refused("Avro arrays and maps whose items have no bytes, such as null, are not supported")
    return items


def _union(node: Node, name: str, null: pa.Field, numbers: count[int]) -> Layout:
    choices = node["branches"]
    if is_numbered_union(node):
        value = _build_layout(choices[0], VALUE, null, numbers)
        branch = Layout("int", pa.field(BRANCH, pa.int32(), nullable=False))
        return _record(name, [branch, *([value] if value else [])], numbers)
    if is_nullable_union(node):
        value = _items(branches(node)[0], name, null, numbers)
        return Layout(
            ["null" if choice["type"] == "null" else value.avro for choice in choices], value.field.with_nullable(True)
        )
    parts = []
    for choice in choices:
        part = Layout("null", null) if choice["type"] == "null" else _build_layout(choice, "", null, numbers)
        if part is None:
            raise Refused("Avro unions with a branch without bytes, other than null, are not supported")
        avro = {"type": part.avro} if isinstance(part.avro, str) else part.avro
        own = avro.get("name") or avro.get("logicalType") or avro["type"]
        parts.append(Layout(part.avro, part.field if own == "null" else part.field.with_name(own)))
    union = pa.dense_union([part.field for part in parts], list(range(len(parts))))
    return Layout(
        [part.avro for part in parts], pa.field(name, union, nullable=any(c["type"] == "null" for c in choices))
    )


def _record(name: str, parts: list[Layout], numbers: count[int]) -> Layout:
    fields = [{"name": part.field.name, "type": part.avro} for part in parts]
    return _named_layout({"type": "record", "fields": fields}, name, pa.struct([part.field for part in parts]), numbers)


def _named_layout(
    avro: dict[str, Any], name: str, kind: pa.DataType, numbers: count[int], more: dict[str, str] | None = None
) -> Layout:
    own = f"t{next(numbers)}"
    return Layout(
        {**avro, "name": own}, pa.field(name, kind, nullable=False, metadata={"avro.name": own, **(more or {})})
    )
