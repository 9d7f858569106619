"""A batch of messages, of whatever schemas, as one Arrow array; and which of them are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import NotFound, Refused
from .avro import AvroReader
from .json_schema import JsonReader
from .protobuf import ProtobufReader
from .schema import NO_SCHEMA, BadMessage, Reader, Schema, schema_ids


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
    messages: pa.Array, reader: Reader, kind: str, schema_of: Callable[[int], Schema], *, every: bool = True
) -> tuple[pa.Array, tuple[Bad, ...]]:
    """All messages of a batch, null where a message is null or bad.

    Args:
        messages: Binary; as they came from Kafka.
        reader: Of the declared schema.
        kind: Its kind; messages of another one are bad.
        schema_of: Gives the schema that messages name by its id; raises `NotFound` where there is none.
        every: Whether all bad messages are looked for; else one is enough, and values are of no use when there is one.

    Raises:
        Unavailable: The registry has not answered for as long as there is patience.
    """
    messages = messages.cast(pa.binary())
    ids = schema_ids(messages)
    bad: list[Bad] = []
    values, rows = [pa.nulls(0, reader.type)], [np.empty(0, np.int64)]

    def refuse(at: npt.NDArray[np.int64], why: str) -> None:
        bad.extend(Bad(row, why) for row in at.tolist())

    def read(writer: Schema, number: int, at: npt.NDArray[np.int64], *, first: bool) -> None:
        """Read the messages of one schema at these rows. Halved until bad ones are alone: they are few."""
        if bad and not every:
            return
        some = messages if len(at) == len(messages) else messages.take(pa.array(at))
        try:
            values.append(reader.read(writer, some))
            rows.append(at)
        except BadMessage as error:
            likely = reader.likely(writer, some) if first else np.ones(len(at), bool)
            if not likely.all():
                # These can be told at a glance.
                refuse(at[~likely], f"schema id {number}: not of the {kind.capitalize()} schema that it names")
                if likely.any():
                    read(writer, number, at[likely], first=False)
            elif len(at) == 1:
                refuse(at, f"schema id {number}: {error.sentence}")
            else:
                for half in np.split(at, [len(at) // 2]):
                    read(writer, number, half, first=False)

    for number in np.unique(ids).tolist():
        at = np.flatnonzero(ids == number)
        if bad and not every:
            break
        if number == NO_SCHEMA:
            there = at[np.asarray(messages.is_valid())[at]].tolist()
            bad += [Bad(row, _no_message(messages[row].as_py())) for row in there]
            continue
        known = len(bad)
        try:
            writer = schema_of(number)
            if writer.kind == kind:
                read(writer, number, at, first=True)
            else:
                refuse(at, f"schema id {number} is of type {writer.kind}, not {kind}")
        except NotFound as error:
            refuse(at, error.sentence)
        except Refused as error:
            del bad[known:]
            refuse(at, f"schema id {number}: {error.sentence}")
    where = np.full(len(messages), -1)
    read_rows = np.concatenate(rows)
    where[read_rows] = np.arange(len(read_rows))
    made = pa.concat_arrays(values)
    if not np.array_equal(where, np.arange(len(made))):
        made = made.take(pa.array(where, mask=where < 0))
    return made, tuple(sorted(bad, key=lambda one: one.row))


def _no_message(data: bytes) -> str:
    shown = data[:8].hex(" ")
    return f"no magic byte 0 and schema id before it (it begins with {shown})" if data else "it is empty"
