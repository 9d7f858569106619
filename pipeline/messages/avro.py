"""Avro messages as Arrow arrays, by DataFusion's Avro reader, which is arrow-rs's.

It reads files. A batch of messages becomes one: the writer's schema, and one block with the messages as they came. The
five bytes of each one's head give way to its number in the batch, as a field before its own. So a message that has
more or fewer bytes than its schema says is seen: what follows it is not the next number.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Refused
from . import avro_shape
from .conform import Node, conform, plain
from .schema import HEAD_BYTES, BadMessage, Schema, parts, varint

_SYNC = b"slackwater_block"
_AS_STORED = ("uuid", "time-millis", "time-micros", "duration")
"""Logical types that Spark's `from_avro` leaves alone, and so do we."""


class AvroReader:
    """Reads Avro into the columns of one schema. See `schema.Reader`."""

    def __init__(self, schema: Schema) -> None:
        """Raises `Refused` for a schema of which no columns can be made."""
        self._node, self._named = _parsed(schema)
        if _is_recursive(self._node, self._named):
            raise Refused(
                "an Avro schema that contains itself has no columns", hint="decode it in a function of your own"
            )
        self.type = plain(_written_type(schema))

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        """See `schema.Reader`."""
        _written_type(writer)
        count = len(messages)
        # The first message again at the end: its number tells that the last one ended where it should.
        numbered = _numbered(pa.concat_arrays([messages, messages.slice(0, 1)]))
        try:
            table = _decoded(_file(writer, numbered, count + 1), count + 1)
        except _library_error() as error:
            raise BadMessage(f"not of the Avro schema that it names: {_first_line(error)}") from None
        heads = table["head"].combine_chunks().cast(pa.binary())
        if table.num_rows != count + 1 or not heads.equals(_heads(count + 1)):
            raise BadMessage("not of the Avro schema that it names: it has bytes too many or too few")
        values = table["value"].combine_chunks()
        return conform(_whole(values), self._node, self._named, self.type).slice(0, count)

    def likely(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """See `schema.Reader`."""
        skip = _skipper(writer)
        return np.fromiter(
            (avro_shape.fits(skip, one, HEAD_BYTES) for one in messages.to_pylist()), bool, len(messages)
        )


def _whole(values: pa.Array) -> pa.Array:
    """No slice: what is made of its children would have to know where it begins."""
    return pa.concat_arrays([values]) if values.offset == 0 else values.take(pa.array(np.arange(len(values))))


def _numbered(messages: pa.BinaryArray) -> bytes:
    starts, data = parts(messages)
    data = data.copy()
    data[starts[:-1, np.newaxis] + np.arange(HEAD_BYTES)] = _numbers(len(messages))
    return data.tobytes()


def _numbers(count: int) -> Any:
    return np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)[:, -HEAD_BYTES:]


def _heads(count: int) -> pa.Array:
    offsets = np.arange(0, HEAD_BYTES * count + 1, HEAD_BYTES, dtype=np.int32)
    data = np.ascontiguousarray(_numbers(count))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _file(schema: Schema, records: bytes, count: int) -> bytes:
    """An Avro object container file.

    https://avro.apache.org/docs/1.12.0/specification/#object-container-files
    """
    block = b"".join((varint(count), varint(len(records)), records, _SYNC)) if count else b""
    return _header(schema) + block


@lru_cache(maxsize=256)
def _header(schema: Schema) -> bytes:
    row = {
        "type": "record",
        "name": "slackwater_row",
        "fields": [
            {"name": "head", "type": {"type": "fixed", "name": "slackwater_head", "size": HEAD_BYTES}},
            {"name": "value", "type": _parsed(schema)[0]},
        ],
    }
    meta = {b"avro.schema": json.dumps(row).encode(), b"avro.codec": b"null"}
    entries = b"".join(varint(len(key)) + key + varint(len(value)) + value for key, value in meta.items())
    return b"Obj\x01" + varint(len(meta)) + entries + varint(0) + _SYNC


def _decoded(data: bytes, count: int) -> pa.Table:
    from datafusion import SessionConfig, SessionContext

    # arrow-rs never ends where a block goes on after its last record. So that one fills the batch, and nobody asks on.
    config = SessionConfig().with_batch_size(count).with_target_partitions(1)
    # The reader wants a path that ends so.
    handle, path = tempfile.mkstemp(suffix=".avro", prefix="slackwater-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return SessionContext(config).read_avro(path).limit(count).to_arrow_table()
    finally:
        Path(path).unlink()


@lru_cache(maxsize=256)
def _written_type(schema: Schema) -> pa.DataType:
    """What a schema's messages are read as. Raises `Refused` where they cannot be."""
    try:
        return _decoded(_file(schema, b"", 0), 1).schema.field("value").type
    except _library_error() as error:
        raise Refused(f"no columns can be made of an Avro schema: {_first_line(error)}") from None


def _library_error() -> type[Exception]:
    # DataFusion raises plain exceptions.
    return Exception


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


@lru_cache(maxsize=256)
def _parsed(schema: Schema) -> tuple[Node, dict[str, Node]]:
    """The schema as JSON, with what it refers to written where it is first named; and its named types."""
    try:
        referenced = {name: _parsed(one)[0] for name, one in schema.references}
        node = json.loads(schema.text)
    except ValueError as error:
        raise Refused(f"an Avro schema that is no JSON: {error}") from None
    named: dict[str, Node] = {}
    return _walk(node, "", named, referenced), named


@lru_cache(maxsize=256)
def _skipper(schema: Schema) -> avro_shape.Skip:
    return avro_shape.skipper(*_parsed(schema))


def _walk(node: Node, namespace: str, named: dict[str, Node], referenced: dict[str, Node]) -> Node:
    if isinstance(node, str):
        if node in referenced and node not in named:
            return _walk(referenced[node], namespace, named, {})
        full = f"{namespace}.{node}" if namespace and f"{namespace}.{node}" in named else node
        return full if full in named else node
    if isinstance(node, list):
        return [_walk(branch, namespace, named, referenced) for branch in node]
    made = {key: value for key, value in node.items() if key != "logicalType" or value not in _AS_STORED}
    if "name" in made and made.get("type") in ("record", "error", "enum", "fixed"):
        namespace = made["name"].rpartition(".")[0] or made.get("namespace", namespace)
        name = made["name"].rpartition(".")[2]
        made |= {"name": name, **({"namespace": namespace} if namespace else {})}
        full = f"{namespace}.{name}" if namespace else name
        named[full] = made
    for key in ("items", "values"):
        if key in made:
            made[key] = _walk(made[key], namespace, named, referenced)
    if isinstance(made.get("type"), dict | list):
        made["type"] = _walk(made["type"], namespace, named, referenced)
    if "fields" in made:
        fields = [{**field, "type": _walk(field["type"], namespace, named, referenced)} for field in made["fields"]]
        made["fields"] = fields
    return made


def _is_recursive(node: Node, named: dict[str, Node], within: tuple[str, ...] = ()) -> bool:
    if isinstance(node, str):
        if node in within:
            return True
        return node in named and _is_recursive(named[node], named, within)
    if isinstance(node, dict) and "fields" in node:
        within = (*within, ".".join(filter(None, (node.get("namespace"), node["name"]))))
    return any(_is_recursive(each, named, within) for each in _inner(node))


def _inner(node: Node) -> Iterator[Node]:
    if isinstance(node, list):
        yield from node
    elif isinstance(node, dict):
        yield from (node[key] for key in ("items", "values") if key in node)
        yield from (field["type"] for field in node.get("fields", ()))
        if isinstance(node.get("type"), dict | list):
            yield node["type"]
