"""Parser of the changelogs of Spark's RocksDB state stores: keys and values that a batch put, merged or deleted.

A merge appends elements to a list. Each key begins with the number of a column family, which stands for a state
variable. The metadata of the store's snapshots has the name of each column family.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from ...attach.protocol import APPENDED, DELETED
from .tables import StateTable
from .unsafe_rows import Bytes, Positions, UnknownLayout, decode_rows, gather, is_readable

PUT, DELETE, MERGE = 0x01, 0x10, 0x11
_END = 0x00
_VERSIONS = (b"v2", b"v4")
"""Versions of changelogs with column families. The header of a v4 file also lists earlier versions of the state."""
FAMILY_BYTES = 2
_SETTINGS = "spark.sql.streaming.stateStore"


@dataclass(frozen=True, slots=True)
class Changelog:
    """Records of one or several changelogs, in write order. `data` has the bytes of all keys and values."""

    data: Bytes
    kinds: npt.NDArray[np.uint8]
    families: Positions
    keys: Positions
    key_sizes: Positions
    values: Positions
    value_sizes: Positions

    def for_family(self, family: int) -> "Changelog":
        return self.take(np.flatnonzero(self.families == family))

    def take(self, positions: Positions) -> "Changelog":
        parts = (self.families, self.keys, self.key_sizes, self.values, self.value_sizes)
        return Changelog(self.data, self.kinds[positions], *(column[positions] for column in parts))

    def renumbered(self, names: Mapping[str, int], numbers_by_name: dict[str, int]) -> "Changelog":
        """Replace the store's numbers of column families by the numbers in `numbers_by_name`.

        `names` has the store's numbers by name. A name that is missing in `numbers_by_name` is added there with a new
        number.
        """
        numbers = np.full(max(names.values(), default=0) + 1, -1)
        for name, number in names.items():
            numbers[number] = numbers_by_name.setdefault(name, len(numbers_by_name))
        if len(self.families) and not 0 <= self.families.min() <= self.families.max() < len(numbers):
            raise UnknownLayout
        return replace(self, families=numbers[self.families])

    def key_codes(self) -> Positions:
        """Return an integer for each record. Two records have equal integers if they have equal keys."""
        ends = np.concatenate([[0], np.cumsum(self.key_sizes)])
        key_bytes = self.data[np.repeat(self.keys - ends[:-1], self.key_sizes) + np.arange(ends[-1])]
        keys = pa.Array.from_buffers(
            pa.large_binary(), len(self.keys), [None, pa.py_buffer(ends), pa.py_buffer(key_bytes)]
        )
        codes: Positions = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        return codes


def concat_changelogs(changelogs: Iterable[Changelog]) -> Changelog:
    parts = list(changelogs)
    begins = np.cumsum([0, *(len(part.data) for part in parts)])[:-1].tolist()
    shifted = [(part, begin) for part, begin in zip(parts, begins, strict=True)]
    return Changelog(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.kinds for part in parts]),
        np.concatenate([part.families for part in parts]),
        np.concatenate([part.keys + begin for part, begin in shifted]),
        np.concatenate([part.key_sizes for part in parts]),
        np.concatenate([part.values + begin for part, begin in shifted]),
        np.concatenate([part.value_sizes for part in parts]),
    )


def parse_changelog(data: bytes) -> Changelog:
    """Parse an uncompressed changelog. Raises `UnknownLayout`. The result refers to `data` without a copy."""
    kinds = bytearray()
    records: list[tuple[int, int, int, int]] = []
    number = struct.Struct(">i").unpack_from
    try:
        at = _first_record_offset(data)
        while (kind := data[at]) != _END:
            key, (size,) = at + 5, number(data, at + 1)
            value, (value_size,) = key + size + 4, number(data, key + size)
            if kind not in (PUT, DELETE, MERGE) or size < FAMILY_BYTES or (value_size < 0) != (kind == DELETE):
                raise UnknownLayout
            kinds.append(kind)
            records.append((key, size, value, max(value_size, 0)))
            at = value + max(value_size, 0)
    except (struct.error, IndexError) as error:
        raise UnknownLayout from error
    buffer, parts = np.frombuffer(data, np.uint8), np.array(records, np.int64).reshape(-1, 4).T
    families = gather(buffer, parts[0], np.int16).astype(np.int64)
    return Changelog(buffer, np.frombuffer(bytes(kinds), np.uint8), families, *parts)


def _first_record_offset(data: bytes) -> int:
    version, at = _text(data, 0)
    if version not in _VERSIONS:
        raise UnknownLayout
    return _text(data, at)[1] if version == _VERSIONS[1] else at


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">H", data, at)
    return data[at + 2 : at + 2 + size], at + 2 + size


def split_lists(records: Changelog, delimiter: int) -> tuple[Positions, Positions]:
    """Split lists into elements. Returns, for each element, the index of its record and its byte offset.

    A list is stored as the length and bytes of each element; `delimiter` is the number of bytes between two elements.
    Raises `UnknownLayout`.
    """
    owners, starts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    ends, owner = records.values + records.value_sizes, np.flatnonzero(records.value_sizes)
    at = records.values[owner]
    while len(owner):
        size = gather(records.data, at, np.int32)
        owners.append(owner)
        starts.append(at + 4)
        at = at + 4 + size + delimiter
        if (size <= 0).any() or (at - delimiter > ends[owner]).any():
            raise UnknownLayout
        more = at < ends[owner]
        at, owner = at[more], owner[more]
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return owner[order], np.concatenate(starts)[order]


def has_plain_rows(conf: Mapping[str, str]) -> bool:
    """Return True if batches with these settings write rows in RocksDB as plain `UnsafeRow`s without checksums."""
    return (
        "RocksDB" in conf.get(f"{_SETTINGS}.providerClass", "")
        and conf.get(f"{_SETTINGS}.encodingFormat", "unsaferow") == "unsaferow"
        and conf.get(f"{_SETTINGS}.rowChecksum.enabled", "false") == "false"
    )


def codec_of(conf: Mapping[str, str]) -> str:
    return conf.get(f"{_SETTINGS}.compression.codec", "lz4")


def delimiter_of(conf: Mapping[str, str]) -> int:
    """Return the number of bytes between two elements of a list."""
    return 0 if conf.get(f"{_SETTINGS}.rocksdb.mergeOperatorVersion", "1") == "2" else 1


_TIMERS = ("$procTimers_keyToTimestamp", "$eventTimers_keyToTimestamp")
_SECOND_KEY_PARTS = ("user_map_key", "expiration_timestamp_ms")
_VALUES = ("value", "user_map_value")
_LIST = "list_value"


def is_parsable(table: StateTable) -> bool:
    """Return True if this module can parse the changelogs of a table.

    The table must be a state variable or its timers, and have only supported types.
    """
    types = table.spark_types
    return table.kind == "transform" and all(
        map(is_readable, (types[column] for column in types if column != "partition_id"))
    )


def is_list_state(table: StateTable) -> bool:
    """Return True if a table is list state. Its changelogs contain only appended elements."""
    return _LIST in table.spark_types


def parse_changes(table: StateTable, records: Changelog, families: Mapping[str, int], delimiter: int) -> pa.Table:
    """Return a table's changes, one row for each changed key, with `DELETED` and, for a list, `APPENDED`.

    `families` has the number of each column family in `records`. Raises `UnknownLayout` for an unsupported layout.
    """
    names = [dict(table.options).get("stateVarName", ""), *_TIMERS]
    family = next((families[name] for name in names if name in families), None)
    if family is None:
        raise UnknownLayout
    own = records.for_family(family)
    codes = own.key_codes()
    newest = np.full(codes.max(initial=-1) + 1, -1)
    if is_list_state(table):
        return _parse_list_changes(table, own, codes, newest, delimiter)
    newest[codes] = np.arange(len(codes))
    rows = own.take(np.sort(newest))
    deleted = rows.kinds == DELETE
    if (rows.kinds == MERGE).any():
        raise UnknownLayout
    columns = _keys(table, rows)
    for name in _VALUES:
        if name in table.spark_types:
            columns[name] = _values_or_null(rows.take(np.flatnonzero(~deleted)), table.spark_types[name], deleted)
    return table.from_reader_arrays(columns).append_column(DELETED, pa.array(deleted))


def _parse_list_changes(
    table: StateTable, own: Changelog, codes: Positions, base: Positions, delimiter: int
) -> pa.Table:
    number = np.arange(len(codes))
    begins = np.flatnonzero(own.kinds != MERGE)
    base[codes[begins]] = begins
    counted = np.flatnonzero((number >= base[codes]) & (own.kinds != DELETE))
    owner, starts = split_lists(own.take(counted), delimiter)
    codes_of_elements = codes[counted][owner]
    order = np.argsort(codes_of_elements, kind="stable")
    ends = np.cumsum(np.bincount(codes_of_elements, minlength=len(base)))
    kind = table.spark_types[_LIST]
    assert isinstance(kind, ArrayType)  # noqa: S101  the type of lists in Spark's state reader
    values = _rows(own, starts[order], kind.elementType)
    lists = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), values)
    first = np.full(len(base), -1)
    first[codes[::-1]] = number[::-1]
    columns = _keys(table, own.take(first)) | {_LIST: lists}
    appended = base < 0
    deleted = ~appended & (np.diff(ends, prepend=0) == 0)
    flat = table.from_reader_arrays(columns).append_column(DELETED, pa.array(deleted))
    return flat.append_column(APPENDED, pa.array(appended))


def _keys(table: StateTable, rows: Changelog) -> dict[str, pa.Array]:
    types, at = table.spark_types, rows.keys + FAMILY_BYTES
    second = next((column for column in _SECOND_KEY_PARTS if column in types), None)
    if second is None:
        return {"key": _rows(rows, at, types["key"])}
    # The key is two rows of one field each, prefixed with the size of the first.
    size = gather(rows.data, at, np.int32)
    if (size <= 0).any() or (FAMILY_BYTES + 4 + size >= rows.key_sizes).any():
        raise UnknownLayout
    parts = {"key": at + 4, second: at + 4 + size}
    return {name: _rows(rows, at, StructType([StructField(name, types[name])])).field(0) for name, at in parts.items()}


def _values_or_null(puts: Changelog, kind: DataType, deleted: np.ndarray) -> pa.Array:
    values = _rows(puts, puts.values, kind)
    at = np.cumsum(~deleted) - 1
    return values.take(pa.array(at, mask=deleted))


def _rows(records: Changelog, at: Positions, kind: DataType) -> pa.StructArray:
    assert isinstance(kind, StructType)  # noqa: S101  the type of rows in Spark's state reader
    if gather(records.data, at, np.uint8).any():
        raise UnknownLayout
    return decode_rows(records.data, at + 1, kind)
