"""Formats of a topic's keys and values: bytes that Kafka Streams' serialisers wrote, as Arrow columns.

A window store's changelog appends a window's start and a sequence number to the key (`WindowKeySchema.toStoreKeyBinary`
of Kafka Streams), a topic of windowed keys only the start (`WindowKeySchema.toBinary`), and sessions their end and
start (`SessionKeySchema.toBinary`). All numbers are big-endian.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class BadValue(Exception):
    """A key or value cannot be decoded. `row` is its number in the array."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


class NewFields(Exception):
    """Values have fields that the format's type lacked, and has now."""


class Format(ABC):
    """Format of all keys, or of all values, of a topic."""

    type: pa.DataType = pa.null()
    """Type of the decoded values; a struct's fields become columns. Null until `learn`."""

    def learn(self, samples: pa.BinaryArray, stored: pa.StructType | None) -> None:  # noqa: B027
        """Choose the type. It extends `stored`, the struct of the stored columns, if there are any.

        Raises `BadValue` and `Refused`.
        """

    @abstractmethod
    def decode(self, data: pa.BinaryArray) -> pa.Array:
        """Return the decoded values, as an array of `type`. `data` has no nulls. Raises `BadValue` and `NewFields`."""


@dataclass(slots=True)
class Plain(Format):
    """A string, bytes, or a number with a fixed size."""

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
"""The year 10000. A later window start shows that the bytes are something else."""


@dataclass(slots=True)
class Windowed(Format):
    """A key followed by its window: columns of the key, then `window_start`, and `window_end` for sessions."""

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
    """Return the fields of a struct; for another type, one field with this name."""
    return list(kind) if pa.types.is_struct(kind) else [pa.field(name, kind)]


def columns_of(values: pa.Array) -> list[pa.Array]:
    """Return the columns of a struct array, null where the struct is null; for another array, the array."""
    return list(values.flatten()) if pa.types.is_struct(values.type) else [values]


def struct_of(columns: list[pa.Array], kind: pa.DataType) -> pa.StructArray:
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def is_empty(kind: pa.DataType) -> bool:
    """Return True for a type without any columns."""
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields)
