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

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Refused
from .conform import plain
from .schema import HEAD_BYTES, BadMessage, Reader, Schema, varint, without

_MAIN = "slackwater_main.proto"


class ProtobufReader(Reader):
    """Reads one type of Protobuf message."""

    def __init__(self, schema: Schema, message: str = "") -> None:
        """`message` is the type's full name, empty for the first of the schema.

        Raises `NotFound` where there is no such type, and `Refused` where protoc or ptars do not take the schema.
        """
        from ptars import HandlerPool, PtarsConfig

        file = _compiled(schema)
        types = _message_types(file)
        self._name = message or next(iter(types), "")
        if self._name not in types:
            raise NotFound("message type", self._name, types, hint="message= is its full name, with the package")
        config = PtarsConfig(enum_repr="string", timestamp_unit="us", list_value_nullable=True, map_value_nullable=True)
        self._handler = HandlerPool([file], config).get_for_message(types[self._name][1])
        self.type = plain(pa.struct(list(self._handler.schema())))

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
        try:
            batch = self._handler.array_to_record_batch(bodies)
        except ValueError as error:
            raise BadMessage(f"not of the Protobuf schema that it names: {error}") from None
        return batch.to_struct_array().cast(self.type)


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
