"""A registered schema, what each of the three formats makes of one, and Confluent's wire format for whole arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import SlackwaterError

HEAD_BYTES = 5
"""Before each message: the byte 0, and the schema's id in four, largest first."""
NO_SCHEMA = -1


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it.

    Attributes:
        kind: `AVRO`, `PROTOBUF` or `JSON`.
        text: As it was registered.
        references: What it names of other subjects: the name, and that schema.
    """

    kind: str
    text: str
    references: tuple[tuple[str, Schema], ...] = ()


class BadMessage(SlackwaterError):
    """Bytes that are no message of the schema that they name."""


class Reader(ABC):
    """Reads messages into the columns of one schema, the reader's."""

    type: pa.DataType
    """What comes out; null for a message that is null."""

    @abstractmethod
    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        """As many values of `type` as there are messages of one writer's schema, each with its head, none null.

        Raises:
            BadMessage: One of them is none.
            Refused: The writer's schema cannot be read as the reader's.
        """

    def likely(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Which of such messages may be what they say: the others are none. For a batch that has bad ones.

        All of them where to read a few takes no longer than to examine one.
        """
        return np.ones(len(messages), bool)


def schema_ids(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The schema id of each message, `NO_SCHEMA` for bytes without a head, and for null."""
    starts, data = parts(messages)
    ids = np.full(len(messages), NO_SCHEMA, np.int64)
    headed = (np.diff(starts) >= HEAD_BYTES) & np.asarray(messages.is_valid())
    heads = data[starts[:-1][headed, np.newaxis] + np.arange(HEAD_BYTES)].astype(np.int64)
    weights = 1 << np.arange(24, -1, -8)
    ids[headed] = np.where(heads[:, 0] == 0, heads[:, 1:] @ weights, NO_SCHEMA)
    return ids


def parts(messages: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each message begins, and the last one ends, in the bytes that come with it."""
    _, offsets, data = messages.buffers()
    if offsets is None or len(messages) == 0:
        return np.zeros(len(messages) + 1, np.int64), np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, np.int32)[messages.offset : messages.offset + len(messages) + 1].astype(np.int64)
    held: Any = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return starts - starts[0], held[starts[0] : starts[-1]]


def without(messages: pa.BinaryArray, num_bytes: int) -> pa.BinaryArray:
    """The messages less their first bytes, of which each has as many. None of them is null."""
    starts, data = parts(messages)
    keep = np.ones(len(data), bool)
    keep[(starts[:-1, np.newaxis] + np.arange(num_bytes)).ravel()] = False
    shorter = (starts - num_bytes * np.arange(len(starts))).astype(np.int32)
    buffers = [None, pa.py_buffer(shorter), pa.py_buffer(data[keep])]
    return pa.BinaryArray.from_buffers(pa.binary(), len(messages), buffers)


def starts_with(messages: pa.BinaryArray, at: int, prefix: bytes) -> npt.NDArray[np.bool_]:
    """Which messages have these bytes from `at` on."""
    starts, data = parts(messages)
    found = np.diff(starts) >= at + len(prefix)
    where = starts[:-1][found, np.newaxis] + at + np.arange(len(prefix))
    found[found] = (data[where] == np.frombuffer(prefix, np.uint8)).all(axis=1)
    return found


def varint(number: int) -> bytes:
    """A number that is not negative, with zigzag: as Avro writes it, and the registry the place of a Protobuf type."""
    number <<= 1
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*made, number))
