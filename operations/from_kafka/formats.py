"""Formats of a topic's keys and values: decoding of the bytes of Kafka Streams' serialisers to Arrow columns.

The changelog of a window store appends the window's start and a sequence number to the key
(`WindowKeySchema.toStoreKeyBinary` of Kafka Streams). A topic of windowed keys appends only the start
(`WindowKeySchema.toBinary`). A session's end and start are appended to its key (`SessionKeySchema.toBinary`). All
numbers are big-endian.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class BadValue(Exception):
    """A key or value cannot be decoded. `row` is the index of the key or value in the array."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


class NewFields(Exception):
    """Values have new fields, which the format's type did not have. The type now includes them."""


class Format(ABC):
    """Format of all keys, or of all values, of a topic."""

    type: pa.DataType = pa.null()
    """Type of the decoded values. Fields of a struct become columns. The null type until `learn` is called."""

    def learn(self, samples: pa.BinaryArray, stored: pa.StructType | None) -> None:  # noqa: B027
        """Choose the type from samples. The type extends `stored`, the struct of the stored columns; None without any.

        Raises `BadValue` and `Refused`.
        """

    @abstractmethod
    def decode(self, data: pa.BinaryArray) -> pa.Array:
        """Return the decoded values as an array of `type`. `data` must have no nulls.

        Raises `BadValue` and `NewFields`.
        """


@dataclass(slots=True)
class Plain(Format):
    """Format of strings, bytes, and numbers of a fixed size."""

    name: str
    TYPES: ClassVar = {
        "string": (pa.string(), ""),
        "bytes": (pa.binary(), ""),
        "short": (pa.int16(), ">i2"),
        "int": (pa.int32(), ">i4"),
        "long": (pa.int64(), ">i8"),
        "float": (pa.float32(), ">f4"),
        "double": (pa.float64(), ">f8"),
    }

    @property
    def type(self) -> pa.DataType:
        return self.TYPES[self.name][0]

    def decode(self, data: pa.BinaryArray) -> pa.Array:
        kind, layout = self.TYPES[self.name]
        if layout:
            return pa.array(_numbers(data, self.name, np.dtype(layout)), kind)
        try:
            return data.cast(kind)
        except pa.ArrowInvalid:
            row = next(row for row, value in enumerate(data.to_pylist()) if not _is_utf8(value))
            raise BadValue(row, "it is not UTF-8") from None


def _numbers(data: pa.BinaryArray, name: str, layout: np.dtype) -> npt.NDArray[np.generic]:
    lengths = np.asarray(pc.binary_length(data))
    if (wrong := np.flatnonzero(lengths != layout.itemsize)).size:
        raise BadValue(int(wrong[0]), f"it has {lengths[wrong[0]]} bytes; a {name} has {layout.itemsize}")
    return np.frombuffer(b"".join(data.to_pylist()), layout).astype(layout.newbyteorder("="))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


_TIME = pa.timestamp("us", "UTC")
_MAX_MS = 253_402_300_800_000
"""Start of the year 10000 in ms. A larger window start proves that the bytes have another format."""


@dataclass(slots=True)
class Windowed(Format):
    """Format of windowed keys: columns of the key, then `window_start`, and for sessions `window_end`."""

    inner: Format
    is_session: bool = False
    is_store: bool = False
    """True for the changelog of a window store, whose keys end with a sequence number."""

    @property
    def type(self) -> pa.DataType:
        names = ("window_start", "window_end") if self.is_session else ("window_start",)
        return pa.struct([*fields_of(self.inner.type, "key"), *(pa.field(name, _TIME) for name in names)])

    def learn(self, samples: pa.BinaryArray, stored: pa.StructType | None) -> None:
        if stored is not None:
            stored = pa.struct([field for field in stored if field.name not in ("window_start", "window_end")])
        self.inner.learn(self._split(samples)[0], stored)

    def decode(self, data: pa.BinaryArray) -> pa.Array:
        keys, windows = self._split(data)
        return struct_of([*columns_of(self.inner.decode(keys)), *windows], self.type)

    def _split(self, data: pa.BinaryArray) -> tuple[pa.BinaryArray, list[pa.Array]]:
        size = 16 if self.is_session else 12 if self.is_store else 8
        lengths = np.asarray(pc.binary_length(data))
        what = "session" if self.is_session else "windowed key of a store" if self.is_store else "windowed key"
        if (short := np.flatnonzero(lengths < size)).size:
            raise BadValue(int(short[0]), f"it has {lengths[short[0]]} bytes; a {what} has at least {size}")
        suffix = np.frombuffer(b"".join(value[-size:] for value in data.to_pylist()), np.uint8).reshape(-1, size)
        times = suffix[:, : size // 8 * 8].copy().view(">i8").astype(np.int64)
        if (wrong := np.flatnonzero(((times < 0) | (times >= _MAX_MS)).any(axis=1))).size:
            raise BadValue(
                int(wrong[0]), f"its window begins at {times[wrong[0]][-1]} ms since 1970, which is no {what}"
            )
        if self.is_store and not self.is_session and (repeated := np.flatnonzero(suffix[:, 8:].any(axis=1))).size:
            raise BadValue(int(repeated[0]), "it has a sequence number: the store keeps duplicates, for a stream join")
        keys = pa.array([value[:-size] for value in data.to_pylist()], pa.binary())
        # Sessions have their end first.
        return keys, [pa.array(column * 1_000, _TIME) for column in times.T[::-1]]


def fields_of(kind: pa.DataType, name: str) -> list[pa.Field]:
    """Return the fields of a struct type; for another type, a single field with this name."""
    return list(kind) if pa.types.is_struct(kind) else [pa.field(name, kind)]


def columns_of(values: pa.Array) -> list[pa.Array]:
    """Return the columns of a struct array, null for a null struct; for another array, the array itself."""
    return list(values.flatten()) if pa.types.is_struct(values.type) else [values]


def struct_of(columns: list[pa.Array], kind: pa.DataType) -> pa.StructArray:
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def is_empty(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields)
