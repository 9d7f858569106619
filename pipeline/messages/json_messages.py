"""JSON messages, read with a JSON Schema.

Arrow's JSON reader reads whole batches; values are typed, not validated.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from ...errors import Refused
from .registry import HEADER_BYTES, BadMessage, Reader, Schema, drop_prefix

_PRIMITIVE_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


class JsonReader(Reader):
    """Reader of JSON messages into the columns of the reader's schema. The writer's schema is ignored."""

    def __init__(self, schema: Schema) -> None:
        if schema.references:
            raise Refused(
                "JSON Schemas that refer to other subjects are not supported", hint="register it as one schema"
            )
        try:
            root = json.loads(schema.text)
        except ValueError as error:
            raise Refused(f"the JSON Schema is not valid JSON: {error}") from None
        self.type = _column_type(root, root, "#", ())

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        return parse_json(drop_prefix(messages, HEADER_BYTES), self.type)


def parse_json(texts: pa.BinaryArray, kind: pa.DataType | None, *, grows: bool = False) -> pa.Array:
    """Parse JSON texts, each to a value of `kind`; fields that `kind` lacks are ignored.

    With `grows`, these fields are added, with types that Arrow infers; `kind` may then be None. Raises `BadMessage` if
    a text is not exactly one JSON value, or has other types.
    """
    count = len(texts)
    # Wrap each text in an object with its number: this detects two values in a text, and half a value.
    numbers = pc.binary_join_element_wise('{"n":', pa.array(np.arange(count)).cast(pa.string()), ',"v":', "")
    lines = pc.binary_join_element_wise(numbers.cast(pa.binary()), texts, b"}\n", b"")
    data = lines.buffers()[2].to_pybytes() if count else b""
    parse = arrow_json.ParseOptions(
        explicit_schema=pa.schema([("n", pa.int64()), *([("v", kind)] if kind is not None else [])]),
        newlines_in_values=True,
        unexpected_field_behavior="infer" if grows else "ignore",
    )
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = arrow_json.read_json(io.BytesIO(data), read, parse)
    except pa.ArrowInvalid as error:
        raise BadMessage(f"it does not match {'its JSON Schema' if not grows else 'the columns'}: {error}") from None
    if not table["n"].combine_chunks().equals(pa.array(np.arange(count))):
        raise BadMessage("it is not exactly one JSON value")
    return table["v"].combine_chunks()


def _column_type(node: Any, root: Any, at: str, within: tuple[str, ...]) -> pa.DataType:
    if not isinstance(node, dict):
        raise _no_columns_error(at, "has no type")
    if "$ref" in node:
        ref = node["$ref"]
        if ref in within:
            raise _no_columns_error(at, f"contains itself ({ref})")
        return _column_type(_referenced(ref, root, at), root, at, (*within, ref))
    if keyword := next((keyword for keyword in ("oneOf", "anyOf") if keyword in node), ""):
        choices = [choice for choice in node[keyword] if choice != {"type": "null"}]
        if len(choices) != 1:
            raise _no_columns_error(at, f"has {len(choices)} alternatives ({keyword})")
        return _column_type(choices[0], root, at, within)
    kinds = _declared_types(node)
    if "properties" in node and kinds in ([], ["object"]):
        fields = ((name, _column_type(part, root, f"{at}/{name}", within)) for name, part in node["properties"].items())
        return pa.struct([pa.field(name, kind) for name, kind in fields])
    if sorted(kinds) == ["integer", "number"]:
        return pa.float64()
    if len(kinds) != 1:
        raise _no_columns_error(at, f"is one of {', '.join(kinds)}" if kinds else "has no type")
    if kinds == ["array"]:
        return pa.list_(_column_type(node.get("items"), root, f"{at}/items", within))
    if kinds[0] not in _PRIMITIVE_TYPES:
        raise _no_columns_error(at, f"is an {kinds[0]} without properties")
    return _PRIMITIVE_TYPES[kinds[0]]


def _declared_types(node: Any) -> list[str]:
    declared = node.get("type") or []
    kinds = [kind for kind in (declared if isinstance(declared, list) else [declared]) if kind != "null"]
    if not kinds and all(isinstance(value, str | None) for value in node.get("enum", [0])):
        return ["string"]
    return kinds


def _referenced(ref: str, root: Any, at: str) -> Any:
    node = root
    for name in ref.removeprefix("#").strip("/").split("/"):
        if not ref.startswith("#") or not isinstance(node, dict) or (name and name not in node):
            raise _no_columns_error(at, f"refers to {ref!r}, which the schema does not define")
        node = node[name] if name else node
    return node


def _no_columns_error(at: str, why: str) -> Refused:
    return Refused(f"the JSON Schema has no columns: {at} {why}", hint="use from_json on the bytes after the fifth")
