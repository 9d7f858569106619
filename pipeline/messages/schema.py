"""Registered schemas, the reader interface of the three formats, and Confluent's wire format for whole arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SlackwaterError

HEAD_BYTES = 5
"""Size of a message's header: the byte 0, and the schema id in four bytes, big-endian."""
NO_SCHEMA = -1


@dataclass(frozen=True, slots=True)
class Schema:
    """A registered schema."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[tuple[str, Schema], ...] = ()
    """Schemas of other subjects that this one references, with the name of each reference."""


class BadMessage(SlackwaterError):
    """A message that does not match its schema."""


class Reader(ABC):
    """Reads messages into the columns of one schema, the reader's schema."""

    type: pa.DataType
    """Arrow type of the values; null messages give null values."""

    @abstractmethod
    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        """Decode non-null messages of one writer's schema, with their headers, to one value of `type` each.

        Raises `BadMessage` if a message is invalid, and `Refused` if the writer's schema cannot be converted to the
        reader's.
        """

    def likely(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Return False for messages that are certainly bad: a quick check for batches with bad messages.

        The default is True for all messages, for formats in which a check is no faster than a read.
        """
        return np.ones(len(messages), bool)


def schema_ids(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the schema id of each message, `NO_SCHEMA` for null and for bytes without a header."""
    ids = np.full(len(messages), NO_SCHEMA, np.int64)
    heads = pc.binary_slice(messages, 0, HEAD_BYTES)
    headed = np.asarray(pc.fill_null(pc.equal(pc.binary_length(heads), HEAD_BYTES), False))
    if headed.any():
        joined = pc.binary_join(pa.ListArray.from_arrays([0, headed.sum()], heads.filter(pa.array(headed))), b"")
        numbers = np.frombuffer(joined[0].as_py(), np.uint8).reshape(-1, HEAD_BYTES).astype(np.int64)
        weights = 1 << np.arange(24, -1, -8)
        ids[headed] = np.where(numbers[:, 0] == 0, numbers[:, 1:] @ weights, NO_SCHEMA)
    return ids


def without(messages: pa.BinaryArray, num_bytes: int) -> pa.BinaryArray:
    # Without an explicit end, Arrow's size estimate of the result overflows.
    return pc.binary_slice(messages, num_bytes, 1 << 31)


def last_of_each_key(maps: pa.MapArray) -> pa.MapArray:
    """Return maps without duplicate keys: the last entry of a key is kept, as in a dict.

    `maps` has no nulls and is no slice. Spark, DuckDB and Arrow all reject maps with duplicate keys, but only later.
    """
    starts = np.asarray(maps.offsets)
    sizes = np.diff(starts)
    if not (sizes > 1).any():
        return maps
    rows = np.repeat(np.arange(len(maps)), sizes)
    codes = np.asarray(maps.keys.dictionary_encode().indices).astype(np.int64)
    entries = rows * (int(codes.max()) + 1) + codes
    _, from_the_end = np.unique(entries[::-1], return_index=True)
    if len(from_the_end) == len(entries):
        return maps
    last_entries = np.sort(len(entries) - 1 - from_the_end)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows[last_entries], minlength=len(maps))))).astype(np.int32)
    keys, items = maps.keys.take(pa.array(last_entries)), maps.items.take(pa.array(last_entries))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=maps.type)


def varint(number: int) -> bytes:
    """Encode a non-negative number as a zigzag varint, as Avro and the registry's Protobuf index paths do."""
    number <<= 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def varints(numbers: npt.NDArray[np.integer]) -> pa.Array:
    """Encode numbers as zigzag varints: seven bits a byte, lowest first, the eighth bit set in all but the last."""
    signed = numbers.astype(np.int64)
    zigzag = (signed << 1 ^ signed >> 63).view(np.uint64)
    sizes = np.ones(len(zigzag), np.int32)
    for num_sevens in range(1, 10):
        sizes += zigzag >= np.uint64(1) << np.uint64(7 * num_sevens)
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int32))).astype(np.int32)
    out = np.empty(int(offsets[-1]), np.uint8)
    for at in range(int(sizes.max(initial=0))):
        has_byte = sizes > at
        bits = (zigzag[has_byte] >> np.uint64(7 * at)).astype(np.uint8) & 0x7F
        out[offsets[:-1][has_byte] + at] = bits | np.where(sizes[has_byte] > at + 1, 0x80, 0).astype(np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(zigzag), [None, pa.py_buffer(offsets), pa.py_buffer(out)])
