"""A batch of messages, of whatever schemas, as one Arrow array; and which of them are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import NotFound, Refused
from .avro import AvroReader
from .json_schema import JsonReader
from .protobuf import ProtobufReader
from .schema import NO_SCHEMA, BadMessage, Reader, Schema, schema_ids


class Schemas(Protocol):
    """Knows the schemas that messages name: a registry."""

    def by_id(self, number: int) -> Schema:
        """Raises `NotFound` where there is none."""
        ...


def open_reader(schema: Schema, message: str = "") -> Reader:
    """What reads messages into a schema's columns.

    Args:
        schema: The reader's.
        message: Of Protobuf, the full name of the type; empty for the schema's first.

    Raises:
        NotFound: The schema has no such type.
        Refused: No columns can be made of the schema.
    """
    if schema.kind == "PROTOBUF":
        return ProtobufReader(schema, message)
    if schema.kind not in ("AVRO", "JSON"):
        raise Refused(f"schemas of type {schema.kind} are not read", hint="AVRO, PROTOBUF and JSON are")
    return AvroReader(schema) if schema.kind == "AVRO" else JsonReader(schema)


@dataclass(frozen=True, slots=True)
class Bad:
    """A message that could not be read: where it is in the batch, and why."""

    row: int
    why: str


def read_batch(
    messages: pa.Array, reader: Reader, kind: str, schemas: Schemas, *, every: bool = True
) -> tuple[pa.Array, tuple[Bad, ...]]:
    """All messages of a batch, null where a message is null or bad.

    Args:
        messages: Binary; as they came from Kafka.
        reader: Of the declared schema.
        kind: Its kind; messages of another one are bad.
        schemas: Knows the schemas that messages name.
        every: Whether all bad messages are looked for; else one is enough, and values are of no use when there is one.

    Raises:
        Unavailable: The registry has not answered for as long as there is patience.
    """
    messages = messages.cast(pa.binary())
    ids = schema_ids(messages)
    bad: list[Bad] = []
    values, rows = [pa.nulls(0, reader.type)], []
    for number in np.unique(ids).tolist():
        if bad and not every:
            break
        mine = np.flatnonzero(ids == number)
        if number == NO_SCHEMA:
            nothing = np.asarray(messages.is_null())
            bad += [Bad(row, _no_message(messages[row].as_py())) for row in mine.tolist() if not nothing[row]]
            continue
        try:
            writer = schemas.by_id(number)
        except NotFound as error:
            bad += [Bad(row, error.sentence) for row in mine.tolist()]
            continue
        if writer.kind != kind:
            bad += [Bad(row, f"schema id {number} is of type {writer.kind}, not {kind}") for row in mine.tolist()]
            continue
        try:
            some = messages if len(mine) == len(ids) else messages.take(pa.array(mine))
            good, read, others = _read_likely(reader, writer, some, mine, every)
        except Refused as error:
            bad += [Bad(row, f"schema id {number}: {error.sentence}") for row in mine.tolist()]
            continue
        bad += [Bad(one.row, f"schema id {number}: {one.why}") for one in others]
        rows.append(good)
        values.append(read)
    return _placed(pa.concat_arrays(values), rows, len(messages)), tuple(sorted(bad, key=lambda one: one.row))


def _no_message(data: bytes) -> str:
    shown = data[:8].hex(" ")
    return f"no magic byte 0 and schema id before it (it begins with {shown})" if data else "it is empty"


def _read_likely(
    reader: Reader, writer: Schema, messages: pa.BinaryArray, rows: npt.NDArray[np.int64], every: bool
) -> tuple[npt.NDArray[np.int64], pa.Array, tuple[Bad, ...]]:
    """As `_read`; where some are bad, those first that can be told at a glance."""
    try:
        return rows, reader.read(writer, messages), ()
    except BadMessage:
        likely = reader.likely(writer, messages)
        if likely.all():
            return _read(reader, writer, messages, rows, every)
        kind = writer.kind.capitalize()
        bad = tuple(Bad(row, f"not of the {kind} schema that it names") for row in rows[~likely].tolist())
        if not every or not likely.any():
            return rows[:0], pa.nulls(0, reader.type), bad if every else bad[:1]
        good, read, others = _read(reader, writer, messages.filter(pa.array(likely)), rows[likely], every)
        return good, read, (*bad, *others)


def _read(
    reader: Reader, writer: Schema, messages: pa.BinaryArray, rows: npt.NDArray[np.int64], every: bool
) -> tuple[npt.NDArray[np.int64], pa.Array, tuple[Bad, ...]]:
    """The rows that can be read, their values, and the others. Halved until bad ones are alone: they are few."""
    try:
        return rows, reader.read(writer, messages), ()
    except BadMessage as error:
        if len(rows) == 1:
            return rows[:0], pa.nulls(0, reader.type), (Bad(int(rows[0]), error.sentence),)
    half = len(rows) // 2
    first = _read(reader, writer, messages[:half], rows[:half], every)
    if first[2] and not every:
        return first
    second = _read(reader, writer, messages[half:], rows[half:], every)
    return np.concatenate([first[0], second[0]]), pa.concat_arrays([first[1], second[1]]), first[2] + second[2]


def _placed(values: pa.Array, rows: list[npt.NDArray[np.int64]], count: int) -> pa.Array:
    """The values at their rows, null at all others."""
    at = np.concatenate(rows) if rows else np.empty(0, np.int64)
    if len(at) == count and (at == np.arange(count)).all():
        return values
    where = np.full(count, -1)
    where[at] = np.arange(len(at))
    return values.take(pa.array(where, mask=where < 0))
