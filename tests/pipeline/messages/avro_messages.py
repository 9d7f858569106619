"""Avro messages in Confluent's wire format, written by fastavro, with evolving schemas."""

from __future__ import annotations

import io
import struct
from copy import deepcopy
from typing import Any

import fastavro
from hypothesis import strategies as st

_TEXT = st.text(max_size=8)
_INT = st.integers(-(1 << 31), (1 << 31) - 1)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": _INT,
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": _TEXT,
    "bytes": st.binary(max_size=8),
    "boolean": st.booleans(),
}
_PROMOTED = {"int": ("long", "float", "double"), "long": ("double",), "float": ("double",), "string": ("string",)}
_DEFAULTS: dict[str, Any] = {
    "int": 7,
    "long": 1 << 40,
    "double": 0.5,
    "string": "é",
    "bytes": "\u00ff",
    "boolean": True,
}


def encoded(schema: Any, number: int, /, **values: Any) -> bytes:
    """Encode a record by the schema, with this registry id."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(deepcopy(schema)), values)
    return b"\0" + struct.pack(">I", number) + out.getvalue()


def expected(message: bytes, writer: Any, reader: Any) -> Any:
    """Return the record that fastavro decodes with the reader's schema."""
    # fastavro leaves a default of bytes as the text that JSON has.
    schemas = (fastavro.parse_schema(deepcopy(schema)) for schema in (writer, reader))
    found = fastavro.schemaless_reader(io.BytesIO(message[5:]), *schemas)
    return {**found, "new_bytes": _DEFAULTS["bytes"].encode("latin-1")} if "new_bytes" in found else found


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Draw a writer's schema, a compatible reader's schema, and records of the writer."""
    written, read, values = [], [], {}
    for n in range(draw(st.integers(1, 5))):
        name, kind = f"f{n}", draw(st.sampled_from(sorted(_VALUES)))
        shape = draw(st.sampled_from(("plain", "nullable", "array", "map", "record")))
        wider = draw(st.sampled_from((kind, *_PROMOTED.get(kind, ()))))
        plain = _VALUES[kind]
        wrap, strategy = {
            "plain": (lambda one: one, plain),
            "nullable": (lambda one: ["null", one], st.none() | plain),
            "array": (lambda one: {"type": "array", "items": ["null", one]}, st.lists(st.none() | plain, max_size=3)),
            "map": (lambda one: {"type": "map", "values": one}, st.dictionaries(_TEXT, plain, max_size=3)),
            "record": (
                lambda one, name=name: record(f"{name}_r", {"name": "x", "type": one}),
                st.fixed_dictionaries({"x": plain}),
            ),
        }[shape]
        written.append({"name": name, "type": wrap(kind)})
        values[name] = strategy
        if draw(st.booleans()):
            read.append({"name": name, "type": wrap(wider)})
    for kind in draw(st.lists(st.sampled_from(sorted(_DEFAULTS)), unique=True, max_size=2)):
        read.insert(0, {"name": f"new_{kind}", "type": kind, "default": _DEFAULTS[kind]})
    rows = draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=8))
    return record("W", *written), record("W", *read or [{"name": "only", "type": "int", "default": 1}]), rows
