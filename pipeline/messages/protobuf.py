"""Protobuf messages as Arrow arrays, by ptars; schemas are compiled by protoc.

A message is read by the reader's schema: of fields that it does not know Protobuf takes no notice, and those that the
writer does not know have Protobuf's defaults. The writer's schema tells which of its types a message is of.
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
        """`message` is the type's full name, empty for the first of the schema.

        Raises `NotFound` where there is no such type, and `Refused` where protoc does not take the schema, or the type
        has no columns.
        """
        types = _message_types(_compiled(schema))
        self._name = message or next(iter(types), "")
        if self._name not in types:
            raise NotFound("message type", self._name, types, hint="message= is its full name, with the package")
        self._message = types[self._name][1]
        self.type = column_type(self._message)
        self._handler = _handler(self._message)

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        """See `Reader`."""
        types = _message_types(_compiled(writer))
        if self._name not in types:
            raise BadMessage(f"of a schema without {self._name}")
        # A message says of which type it is by the way there through the types of its schema, as varints with zigzag.
        # The first type of a schema is also written as one zero.
        path = types[self._name][0]
        prefixes = (b"".join(map(varint, (len(path), *path))), *((b"\x00",) if path == (0,) else ()))
        rest = without(messages, HEAD_BYTES)
        bodies = pc.coalesce(
            *(pc.if_else(pc.starts_with(rest, one), without(rest, len(one)), None) for one in prefixes)
        )
        if bodies.null_count:
            raise BadMessage(f"of another type than {self._name}")
        values, doubtful = self._columns(bodies)
        if len(doubtful):
            # Protobuf's own parser goes by the order on the wire, one message after the other.
            plain = pa.array([self._plain(bodies[row].as_py()) for row in doubtful.tolist()], pa.binary())
            again, _ = self._columns(plain)
            where = np.arange(len(values))
            where[doubtful] = len(values) + np.arange(len(doubtful))
            values = pa.concat_arrays([values, again]).take(pa.array(where))
        return values

    def _columns(self, bodies: pa.BinaryArray) -> tuple[pa.StructArray, Rows]:
        """Return the columns of messages, and the rows in which they may be other ones. Raises `BadMessage`."""
        try:
            batch = self._handler.array_to_record_batch(bodies)
        except ValueError as error:
            raise BadMessage(f"not of the Protobuf schema that it names: {error}") from None
        doubtful: list[Rows] = [np.empty(0, np.int64)]
        values = columns(batch.to_struct_array(), self._message, np.arange(len(bodies)), doubtful)
        return values, np.unique(np.concatenate(doubtful))

    def _plain(self, body: bytes) -> bytes:
        """Return the message's bytes with each field once, and none that its type does not know."""
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        try:
            message = GetMessageClass(self._message).FromString(body)
        except DecodeError as error:
            raise BadMessage(f"not of the Protobuf schema that it names: {error}") from None
        message.DiscardUnknownFields()
        return bytes(message.SerializePartialToString())


def _handler(message: Any) -> Any:
    """Return what reads messages of a type by its layout."""
    from google.protobuf import descriptor_pool
    from ptars import HandlerPool, PtarsConfig

    pool = descriptor_pool.DescriptorPool()
    pool.Add(layout(message))
    file = pool.FindFileByName(layout(message).name)
    config = PtarsConfig(list_value_nullable=True)
    return HandlerPool([file], config).get_for_message(file.message_types_by_name["M0"])


def _message_types(file: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Each message type's place among those of its file, and its descriptor, by full name."""
    from google.protobuf import descriptor_pb2

    found: dict[str, tuple[tuple[int, ...], Any]] = {}

    def add(types: Any, path: tuple[int, ...]) -> None:
        for number, one in enumerate(types):
            found[one.full_name] = ((*path, number), one)
            add(one.nested_types, (*path, number))

    # By name they are in no order; messages count in the file's.
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    add([file.message_types_by_name[one.name] for one in proto.message_type], ())
    return found


@lru_cache(maxsize=256)
def _compiled(schema: Schema) -> Any:
    """The schema's file descriptor. Raises `Refused` where protoc does not take it."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        _write(Path(folder), _MAIN, schema)
        out = Path(folder) / "descriptors"
        with resources.as_file(resources.files("grpc_tools") / "_proto") as known:
            said = (f"-I{folder}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}", _MAIN)
            if protoc.main(["protoc", *said]):
                raise Refused("protoc does not take the Protobuf schema; its own words are above")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(_MAIN)


def _write(folder: Path, name: str, schema: Schema) -> None:
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise Refused(f"a Protobuf schema refers to {name!r}, which is no place for a file")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(schema.text, encoding="utf-8")
    for other, referenced in schema.references:
        _write(folder, other, referenced)
