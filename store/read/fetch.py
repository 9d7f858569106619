"""Fetching SSTs whole, checked against the manifest, or by ranges: in parallel, nearby ranges in one request."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from operator import itemgetter

import pyarrow as pa
import xxhash

from ...errors import Corruption, ObjectNotFound
from ..objects.counting import Reads
from ..objects.protocol import ObjectStore
from ..versions.manifest import Sst


def file_name(sst: Sst) -> str:
    """Return the name of local copies: object name and checksum, because two roots may have the same object name."""
    # Without pathlib, because each look-up calls this for each SST.
    return f"{sst.object.rpartition('/')[2].removesuffix('.parquet')}-{sst.checksum}"


def fetch(store: ObjectStore, sst: Sst) -> bytes:
    """Return the whole object's bytes. Raises `Corruption` if they are missing or contradict the manifest entry."""
    try:
        data = store.at(sst.root).get(sst.object)
    except ObjectNotFound as error:
        raise corrupt(sst, "the object is missing") from error
    check_bytes(data, sst)
    return data


def check_bytes(data: bytes | pa.Buffer, sst: Sst) -> None:
    """Raise `Corruption` unless the length and the checksum are those of the manifest entry."""
    if len(data) != sst.bytes:
        raise corrupt(sst, f"expected {sst.bytes} bytes, found {len(data)}")
    actual = xxhash.xxh3_128_hexdigest(data)
    if actual != sst.checksum:
        raise corrupt(sst, f"expected checksum {sst.checksum}, found {actual}")


def corrupt(sst: Sst, reason: str) -> Corruption:
    return Corruption(
        f"SST {sst.object} is damaged: {reason}",
        object_key=sst.object,
        hint="restore the object from a backup or an older object version, or rewind to a version that does not use it",
    )


_SMALL_GAP_BYTES = 4_096
"""Size up to which a gap between ranges is always read, because that is cheaper than another request."""
_MAX_GAP_BYTES = 65_536
"""Size above which a gap between ranges is never read."""
_MAX_GAP_SHARE = 16
"""Divisor n: a gap between both sizes is read if it has at most 1/n of the useful bytes before it."""
_LARGEST_BYTES = 8 << 20
"""Size from which ranges are split: one connection of an object store gives 50 to 100 MB/s."""
_AT_ONCE = 32
"""Most concurrent requests of this process."""


@cache
def at_once() -> ThreadPoolExecutor:
    """Return this process's thread pool for requests."""
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="slackwater-read")


# Spark forks its workers, and threads do not survive a fork.
os.register_at_fork(after_in_child=at_once.cache_clear)


class RangeReader:
    """Reads ranges of an SST's object and counts requests and bytes."""

    def __init__(self, store: ObjectStore, sst: Sst, reads: Reads) -> None:
        self._store, self._sst, self.reads = store.at(sst.root), sst, reads

    def one(self, start: int, end: int) -> bytes:
        """Return the bytes of one range, by one request in this thread. Raises `Corruption` and `Unavailable`."""
        self.reads.requests += 1
        self.reads.round_trips += 1
        self.reads.bytes += end - start
        return self.get(start, end - start)

    def get(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, uncounted. Raises `Corruption` and `Unavailable`."""
        try:
            data = self._store.get_range(self._sst.object, start, length)
        except ObjectNotFound as error:
            raise corrupt(self._sst, "the object is missing") from error
        if len(data) != length:
            raise corrupt(self._sst, f"expected {length} bytes from {start} on, found {len(data)}")
        return data


@dataclass(frozen=True, slots=True)
class Pieces:
    """Some byte ranges of a file."""

    ranges: Sequence[tuple[int, bytes]]
    """Start offset and bytes of each range, ascending."""

    def bytes_at(self, start: int, end: int) -> bytes:
        """Return the bytes between two offsets of the file, which lie in one range."""
        at, data = self.ranges[bisect_right(self.ranges, start, key=itemgetter(0)) - 1]
        return data[start - at : end - at]


def read_all(requests: Sequence[tuple[RangeReader, Sequence[tuple[int, int]]]]) -> list[Pieces]:
    """Return the bytes of ranges (ascending) of several SSTs, in one round trip.

    Raises `Corruption` if an object is missing or too short, and `Unavailable`.
    """
    parts = [
        (number, reader, start, at, min(_LARGEST_BYTES, end - at))
        for number, (reader, ranges) in enumerate(requests)
        for start, end in _joined(ranges)
        for at in range(start, end, _LARGEST_BYTES)
    ]
    for _, reader, _, _, length in parts:
        reader.reads.requests += 1
        reader.reads.bytes += length
    if parts:
        parts[0][1].reads.round_trips += 1
    chunks_by_reader: list[dict[int, list[bytes]]] = [{} for _ in requests]
    # If one request fails, those not started yet are cancelled.
    run = at_once().map if len(parts) > 1 else map
    for (number, _, start, _, _), data in zip(parts, run(lambda part: part[1].get(*part[3:]), parts), strict=True):
        chunks_by_reader[number].setdefault(start, []).append(data)
    return [
        Pieces([(start, data[0] if len(data) == 1 else b"".join(data)) for start, data in chunks.items()])
        for chunks in chunks_by_reader
    ]


def _joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ascending ranges, with close ranges joined."""
    if not ranges:
        return
    start, end = ranges[0]
    useful = end - start
    for next_start, next_end in ranges[1:]:
        gap = next_start - end
        if gap > _SMALL_GAP_BYTES and (gap > _MAX_GAP_BYTES or gap * _MAX_GAP_SHARE > useful):
            yield start, end
            start, useful = next_start, 0
        end = next_end
        useful += next_end - next_start
    yield start, end
