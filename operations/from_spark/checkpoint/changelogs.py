"""Changelogs of RocksDB state stores, as Spark writes them: the keys and values that each batch put, merged or deleted.

A record is put, merged (of a list: the elements that are appended) or deleted. Its key begins with the number of the
state variable that it belongs to, which the metadata of the store's snapshots names.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .unsafe_rows import Bytes, Positions, UnknownLayout, gather

PUT, DELETE, MERGE = 0x01, 0x10, 0x11
_END = 0x00
_VERSIONS = (b"v2", b"v4")
"""Of changelogs with column families; v4 says in its second line which versions came before."""
FAMILY_BYTES = 2
_SETTINGS = "spark.sql.streaming.stateStore"


@dataclass(frozen=True, slots=True)
class Changelog:
    """Records of changelogs, in the order in which they were made; keys and values lie in `data`."""

    data: Bytes
    kinds: npt.NDArray[np.uint8]
    families: Positions
    keys: Positions
    """Where each key begins, with two bytes of its family first."""
    key_sizes: Positions
    values: Positions
    value_sizes: Positions
    """0 where a key is deleted."""

    def of(self, family: int) -> "Changelog":
        """Those of one column family."""
        return self.take(np.flatnonzero(self.families == family))

    def take(self, at: Positions) -> "Changelog":
        """Some of them."""
        parts = (self.families, self.keys, self.key_sizes, self.values, self.value_sizes)
        return Changelog(self.data, self.kinds[at], *(each[at] for each in parts))

    def renumbered(self, names: Mapping[str, int], known: dict[str, int]) -> "Changelog":
        """The same with the families' numbers in `known`, which gets the new ones, in place of a store's own."""
        numbers = np.full(max(names.values(), default=0) + 1, -1)
        for name, number in names.items():
            numbers[number] = known.setdefault(name, len(known))
        if len(self.families) and not 0 <= self.families.min() <= self.families.max() < len(numbers):
            raise UnknownLayout
        return replace(self, families=numbers[self.families])

    def key_codes(self) -> Positions:
        """A number for each record, the same where keys have the same bytes."""
        ends = np.concatenate([[0], np.cumsum(self.key_sizes)])
        taken = self.data[np.repeat(self.keys - ends[:-1], self.key_sizes) + np.arange(ends[-1])]
        keys = pa.Array.from_buffers(pa.large_binary(), len(self.keys), [None, pa.py_buffer(ends), pa.py_buffer(taken)])
        codes: Positions = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        return codes


def joined(some: Iterable[Changelog]) -> Changelog:
    """The records of several changelogs, one after the other."""
    parts = list(some)
    begins = np.cumsum([0, *(len(each.data) for each in parts)])[:-1].tolist()
    shifted = [(each, begin) for each, begin in zip(parts, begins, strict=True)]
    return Changelog(
        np.concatenate([each.data for each in parts]),
        np.concatenate([each.kinds for each in parts]),
        np.concatenate([each.families for each in parts]),
        np.concatenate([each.keys + begin for each, begin in shifted]),
        np.concatenate([each.key_sizes for each in parts]),
        np.concatenate([each.values + begin for each, begin in shifted]),
        np.concatenate([each.value_sizes for each in parts]),
    )


def records_in(data: bytes) -> Changelog:
    """The records of a changelog, which is unpacked. Raises `UnknownLayout`.

    Where a record ends stands in it alone, so they are gone through one by one; nothing is copied.
    """
    kinds = bytearray()
    found: list[tuple[int, int, int, int]] = []
    number = struct.Struct(">i").unpack_from
    try:
        at = _begin(data)
        while (kind := data[at]) != _END:
            key, (size,) = at + 5, number(data, at + 1)
            value, (value_size,) = key + size + 4, number(data, key + size)
            if kind not in (PUT, DELETE, MERGE) or size < FAMILY_BYTES or (value_size < 0) != (kind == DELETE):
                raise UnknownLayout
            kinds.append(kind)
            found.append((key, size, value, max(value_size, 0)))
            at = value + max(value_size, 0)
    except (struct.error, IndexError) as error:
        raise UnknownLayout from error
    whole, parts = np.frombuffer(data, np.uint8), np.array(found, np.int64).reshape(-1, 4).T
    families = gather(whole, parts[0], np.int16).astype(np.int64)
    return Changelog(whole, np.frombuffer(bytes(kinds), np.uint8), families, *parts)


def _begin(data: bytes) -> int:
    """Where the first record lies."""
    version, at = _text(data, 0)
    if version not in _VERSIONS:
        raise UnknownLayout
    return _text(data, at)[1] if version == _VERSIONS[1] else at


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">H", data, at)
    return data[at + 2 : at + 2 + size], at + 2 + size


def elements(records: Changelog, delimiter: int) -> tuple[Positions, Positions]:
    """The elements in the values of a list: of which record each is, and where it begins. Raises `UnknownLayout`.

    In a value stand, of each element, its length and the element, and so many bytes of a delimiter between two.
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


def is_plain(conf: Mapping[str, str]) -> bool:
    """Whether a batch with these settings writes its rows as they are, into a changelog if into any."""
    return (
        "RocksDB" in conf.get(f"{_SETTINGS}.providerClass", "")
        and conf.get(f"{_SETTINGS}.encodingFormat", "unsaferow") == "unsaferow"
        and conf.get(f"{_SETTINGS}.rowChecksum.enabled", "false") == "false"
    )


def codec_of(conf: Mapping[str, str]) -> str:
    """Spark's name of how changelogs are packed."""
    return conf.get(f"{_SETTINGS}.compression.codec", "lz4")


def delimiter_of(conf: Mapping[str, str]) -> int:
    """How many bytes stand between two elements of a list."""
    return 0 if conf.get(f"{_SETTINGS}.rocksdb.mergeOperatorVersion", "1") == "2" else 1
