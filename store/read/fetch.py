"""Fetches SSTs from the store: whole SSTs, which are verified, or byte ranges. Nearby ranges share one request."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa
import xxhash

from ...common import runtime
from ...common.runtime import Executor
from ...errors import Corruption, ObjectNotFound
from ..objects.counting import ReadCounters
from ..objects.protocol import ObjectStore
from ..versions.entries.ssts import Sst


def file_name(sst: Sst) -> str:
    """Return the file name of an SST's local copy: object name and checksum, because names repeat across roots."""
    # Without pathlib, because each look-up calls this for each SST.
    return f"{sst.object.rpartition('/')[2].removesuffix('.parquet')}-{sst.checksum}"


def fetch(store: ObjectStore, sst: Sst) -> bytes:
    """Return the bytes of a whole SST. Raises `Corruption` if it is missing or differs from the manifest entry."""
    try:
        data = store.at(sst.root).get(sst.object)
    except ObjectNotFound as error:
        raise corruption_error(sst, "the object is missing") from error
    check_bytes(data, sst)
    return data


def check_bytes(data: bytes | pa.Buffer, sst: Sst) -> None:
    if len(data) != sst.bytes:
        raise corruption_error(sst, f"expected {sst.bytes} bytes, found {len(data)}")
    actual = xxhash.xxh3_128_hexdigest(data)
    if actual != sst.checksum:
        raise corruption_error(sst, f"expected checksum {sst.checksum}, found {actual}")


def corruption_error(sst: Sst, reason: str) -> Corruption:
    return Corruption(
        f"SST {sst.object} is damaged: {reason}",
        object_key=sst.object,
        hint="restore the object from a backup or an older object version, or rewind to a version that does not use it",
    )


_SMALL_GAP_BYTES = 4_096
_MAX_GAP_BYTES = 65_536
_MAX_GAP_SHARE = 16
"""A gap above `_SMALL_GAP_BYTES` is read if it has at most 1 / `_MAX_GAP_SHARE` of the requested bytes before it."""
_MAX_REQUEST_BYTES = 8 << 20
"""Size above which a range is split into concurrent requests: one connection reads 50 to 100 MB/s."""
_MAX_REQUESTS = 32


def request_pool() -> Executor:
    return runtime.shared_executor(_MAX_REQUESTS, "slackwater-read")


class RangeReader:
    """Reads byte ranges of an SST, and counts requests and bytes."""

    def __init__(self, store: ObjectStore, sst: Sst, reads: ReadCounters) -> None:
        self._store, self._sst, self.reads = store.at(sst.root), sst, reads

    def read_counted(self, start: int, end: int) -> bytes:
        self.reads.requests += 1
        self.reads.round_trips += 1
        self.reads.bytes += end - start
        return self.read(start, end - start)

    def read(self, start: int, length: int) -> bytes:
        try:
            data = self._store.get_range(self._sst.object, start, length)
        except ObjectNotFound as error:
            raise corruption_error(self._sst, "the object is missing") from error
        if len(data) != length:
            raise corruption_error(self._sst, f"expected {length} bytes from {start} on, found {len(data)}")
        return data


@dataclass(frozen=True, slots=True)
class ByteRanges:
    """Byte ranges of a file that were read."""

    ranges: Sequence[tuple[int, bytes]]

    def bytes_at(self, start: int, end: int) -> bytes:
        return bytes(self.view_at(start, end))

    def view_at(self, start: int, end: int) -> memoryview:
        """Return the bytes without a copy."""
        at, data = self.ranges[bisect_right(self.ranges, start, key=itemgetter(0)) - 1]
        return memoryview(data)[start - at : end - at]


def read_ranges(requests: Sequence[tuple[RangeReader, Sequence[tuple[int, int]]]]) -> list[ByteRanges]:
    """Return the bytes of ranges of several SSTs, in one round trip. Ranges must ascend. Raises `Corruption`."""
    parts = [
        (number, reader, start, at, min(_MAX_REQUEST_BYTES, end - at))
        for number, (reader, ranges) in enumerate(requests)
        for start, end in _join_ranges(ranges)
        for at in range(start, end, _MAX_REQUEST_BYTES)
    ]
    for _, reader, _, _, length in parts:
        reader.reads.requests += 1
        reader.reads.bytes += length
    if parts:
        parts[0][1].reads.round_trips += 1
    chunks_by_reader: list[dict[int, list[bytes]]] = [{} for _ in requests]
    # If one request fails, those not started yet are cancelled.
    run = request_pool().map if len(parts) > 1 else map
    for (number, _, start, _, _), data in zip(parts, run(lambda part: part[1].read(*part[3:]), parts), strict=True):
        chunks_by_reader[number].setdefault(start, []).append(data)
    return [
        ByteRanges([(start, data[0] if len(data) == 1 else b"".join(data)) for start, data in chunks.items()])
        for chunks in chunks_by_reader
    ]


def _join_ranges(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
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
