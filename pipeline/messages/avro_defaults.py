"""Default values of Avro fields, converted from a schema's JSON to column values.

https://avro.apache.org/docs/1.12.0/specification/#schema-record (the table "field default values")
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ...errors import Refused
from .avro_schema import Node, branches, column_type

_MICROSECONDS: dict[str, Callable[[int], int]] = {
    "millis": lambda number: number * 1000,
    "micros": int,
    "nanos": lambda number: number // 1000,
}
_KINDS: dict[str, Any] = {
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
"""Python types of a default in JSON, by Avro type. Numbers that JSON lacks are strings, such as "NaN"."""
_BITS = {"int": 31, "long": 63}


def default_of(field: Node) -> pa.Array:
    """Return the default of a reader's field, as an array of one value.

    Raises `Refused` if the default is not of the field's type.
    """
    kind = column_type(field["type"])
    try:
        value = _value(field["default"], field["type"])
        default = pa.array([value], kind)
        default.validate(full=True)
    except (ValueError, TypeError, KeyError, OverflowError, ArithmeticError, pa.ArrowException) as error:
        raise Refused(
            f"the default of the reader's field {field['name']!r} does not have the field's type: {error}"
        ) from None
    return default


def _value(default: Any, node: Node) -> Any:
    """Return a default as a Python value for the node's Arrow type. Raises `ValueError` if it is not of that type."""
    kind = node["type"]
    if kind == "union":
        return _union_value(default, node)
    if kind == "null":
        if default is not None:
            raise ValueError(f"{default!r} is not null")
        return None
    if not isinstance(default, _KINDS[kind]) or (isinstance(default, bool) and kind != "boolean"):
        raise ValueError(f"{default!r} is not of type {kind}")
    if kind in _BITS and not -(1 << _BITS[kind]) <= default < 1 << _BITS[kind]:
        raise ValueError(f"{default} does not fit {kind}")
    if node.get("logicalType") == "decimal":
        unscaled = int.from_bytes(default.encode("latin-1"), "big", signed=True)
        return Decimal(f"{unscaled}e-{node['scale']}")
    if "timestamp" in node.get("logicalType", ""):
        return _MICROSECONDS[node["logicalType"].rpartition("-")[2]](default)
    match kind:
        case "record":
            return {
                f["name"]: _value(default[f["name"]] if f["name"] in default else f["default"], f["type"])
                for f in node["fields"]
            }
        case "map":
            return [(key, _value(item, node["values"])) for key, item in default.items()]
        case "array":
            return [_value(item, node["items"]) for item in default]
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


def _union_value(default: Any, node: Node) -> Any:
    """Return a default as a value of the first branch whose type it has."""
    for branch in node["branches"]:
        try:
            value = _value(default, branch)
        except (ValueError, KeyError, ArithmeticError):
            continue
        choices = branches(node)
        if branch["type"] == "null" or len(choices) == 1:
            return value
        number = next(n for n, choice in enumerate(choices) if choice is branch)
        return {f"member{number}": value}
    raise ValueError(f"{default!r} matches no branch of the union")
