"""A registered schema, what each of the three formats makes of one, and Confluent's wire format for whole arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SlackwaterError

HEAD_BYTES = 5
"""Before each message: the byte 0, and the schema's id in four, largest first."""
NO_SCHEMA = -1


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[tuple[str, Schema], ...] = ()
    """What it names of other subjects: the name, and that schema."""


class BadMessage(SlackwaterError):
    """Bytes that are no message of the schema that they name."""


class Reader(ABC):
    """Reads messages into the columns of one schema, the reader's."""

    type: pa.DataType
    """What comes out; null for a message that is null."""

    @abstractmethod
    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        """As many values of `type` as there are messages of one writer's schema, each with its head, none null.

        Raises `BadMessage` where one of them is none, and `Refused` where the writer's schema cannot be read as this.
        """

    def likely(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Which of such messages may be what they say: the others are none. For a batch that has bad ones.

        All of them where to read a few takes no longer than to examine one.
        """
        return np.ones(len(messages), bool)


def schema_ids(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The schema id of each message, `NO_SCHEMA` for bytes without a head, and for null."""
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
    """The messages less their first bytes."""
    # Where no end is given, Arrow's guess at the size of the result overflows.
    return pc.binary_slice(messages, num_bytes, 1 << 31)


def last_of_each_key(maps: pa.MapArray) -> pa.MapArray:
    """Return maps in which no key is twice: of several entries of one key the last counts, as for every dict.

    `maps` has no nulls and is no slice. Spark, DuckDB and Arrow all refuse maps with a key twice, at a later time.
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
    kept = np.sort(len(entries) - 1 - from_the_end)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows[kept], minlength=len(maps))))).astype(np.int32)
    keys, items = maps.keys.take(pa.array(kept)), maps.items.take(pa.array(kept))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=maps.type)


def varint(number: int) -> bytes:
    """A number that is not negative as Avro writes it, and the registry the place of a Protobuf type."""
    number <<= 1
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*made, number))


def varints(numbers: npt.NDArray[np.integer]) -> pa.Array:
    """Zigzag, then seven bits a byte, the smallest first, each but the last with the eighth bit set."""
    signed = numbers.astype(np.int64)
    zigzag = (signed << 1 ^ signed >> 63).view(np.uint64)
    sizes = np.ones(len(zigzag), np.int32)
    for more in range(1, 10):
        sizes += zigzag >= np.uint64(1) << np.uint64(7 * more)
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int32))).astype(np.int32)
    out = np.empty(int(offsets[-1]), np.uint8)
    for at in range(int(sizes.max(initial=0))):
        mine = sizes > at
        bits = (zigzag[mine] >> np.uint64(7 * at)).astype(np.uint8) & 0x7F
        out[offsets[:-1][mine] + at] = bits | np.where(sizes[mine] > at + 1, 0x80, 0).astype(np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(zigzag), [None, pa.py_buffer(offsets), pa.py_buffer(out)])
