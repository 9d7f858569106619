"""Protobuf messages as Arrow arrays, by ptars; schemas are compiled by protoc.

Messages are read by the reader's schema. By Protobuf's rules, fields unknown to the reader are ignored, and fields
unknown to the writer get defaults. The writer's schema is needed to find the message type of a message.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Refused
from .protobuf_columns import Rows, column_type, columns, layout
from .schema import HEAD_BYTES, BadMessage, Reader, Schema, varint, without

_MAIN = "slackwater_main.proto"


class ProtobufReader(Reader):
    """Reads one type of Protobuf message."""

    def __init__(self, schema: Schema, message: str = "") -> None:
        """Open a reader for the type with the full name `message`, empty for the schema's first.

        Raises `NotFound` if there is no such type, and `Refused` if protoc rejects the schema or the type has no
        columns.
        """
        types = _message_types(_compiled(schema))
        self._name = message or next(iter(types), "")
        if self._name not in types:
            raise NotFound("message type", self._name, types, hint="message= is its full name, with the package")
        self._message = types[self._name][1]
        self.type = column_type(self._message)
        self._handler = _handler(self._message)

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        types = _message_types(_compiled(writer))
        if self._name not in types:
            raise BadMessage(f"its schema has no message type {self._name}")
        # A message begins with the index path of its type in the schema's file, as zigzag varints: first the length.
        # The path of the first type may also be written as a single zero.
        path = types[self._name][0]
        prefixes = (b"".join(map(varint, (len(path), *path))), *((b"\x00",) if path == (0,) else ()))
        payloads = without(messages, HEAD_BYTES)
        bodies = pc.coalesce(
            *(pc.if_else(pc.starts_with(payloads, prefix), without(payloads, len(prefix)), None) for prefix in prefixes)
        )
        if bodies.null_count:
            raise BadMessage(f"it is not of the message type {self._name}")
        values, doubtful = self._columns(bodies)
        if len(doubtful):
            # Protobuf's own parser respects the order on the wire, but parses one message at a time.
            normalized = pa.array([self._plain(bodies[row].as_py()) for row in doubtful.tolist()], pa.binary())
            reread, _ = self._columns(normalized)
            source_rows = np.arange(len(values))
            source_rows[doubtful] = len(values) + np.arange(len(doubtful))
            values = pa.concat_arrays([values, reread]).take(pa.array(source_rows))
        return values

    def _columns(self, bodies: pa.BinaryArray) -> tuple[pa.StructArray, Rows]:
        """Return columns of messages, and rows whose columns may be wrong. Raises `BadMessage`."""
        try:
            batch = self._handler.array_to_record_batch(bodies)
        except ValueError as error:
            raise BadMessage(f"the bytes do not match the Protobuf schema: {error}") from None
        doubtful: list[Rows] = [np.empty(0, np.int64)]
        values = columns(batch.to_struct_array(), self._message, np.arange(len(bodies)), doubtful)
        return values, np.unique(np.concatenate(doubtful))

    def _plain(self, body: bytes) -> bytes:
        """Return the message with each field once and without unknown fields."""
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        try:
            message = GetMessageClass(self._message).FromString(body)
        except DecodeError as error:
            raise BadMessage(f"the bytes do not match the Protobuf schema: {error}") from None
        message.DiscardUnknownFields()
        return bytes(message.SerializePartialToString())


def _handler(message: Any) -> Any:
    """Return ptars's reader for a message type's layout."""
    from google.protobuf import descriptor_pool
    from ptars import HandlerPool, PtarsConfig

    pool = descriptor_pool.DescriptorPool()
    pool.Add(layout(message))
    file = pool.FindFileByName(layout(message).name)
    config = PtarsConfig(list_value_nullable=True)
    return HandlerPool([file], config).get_for_message(file.message_types_by_name["M0"])


def _message_types(file: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return each message type's index path in the file and its descriptor, by full name."""
    from google.protobuf import descriptor_pb2

    types_by_name: dict[str, tuple[tuple[int, ...], Any]] = {}

    def add(types: Any, path: tuple[int, ...]) -> None:
        for number, message_type in enumerate(types):
            types_by_name[message_type.full_name] = ((*path, number), message_type)
            add(message_type.nested_types, (*path, number))

    # `message_types_by_name` is unordered; index paths follow the file's order.
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    add([file.message_types_by_name[message_type.name] for message_type in proto.message_type], ())
    return types_by_name


@lru_cache(maxsize=256)
def _compiled(schema: Schema) -> Any:
    """Return the schema's file descriptor. Raises `Refused` if protoc rejects the schema."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        _write(Path(folder), _MAIN, schema)
        out = Path(folder) / "descriptors"
        with resources.as_file(resources.files("grpc_tools") / "_proto") as well_known:
            arguments = (f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}", _MAIN)
            if protoc.main(["protoc", *arguments]):
                raise Refused("protoc rejects the Protobuf schema; its output is above")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(_MAIN)


def _write(folder: Path, name: str, schema: Schema) -> None:
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise Refused(f"a Protobuf schema refers to {name!r}, which is not a valid path")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(schema.text, encoding="utf-8")
    for other, referenced in schema.references:
        _write(folder, other, referenced)
