"""Reading byte ranges of objects: neighbours in one request, the others in parallel."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from operator import itemgetter

from ...errors import ObjectNotFound
from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..versions.manifest import Sst
from .fetch import corrupt

_SMALL_GAP_BYTES = 4_096
"""Ranges this near to each other come in one request: cheaper than another one …"""
_MAX_GAP_BYTES = 65_536
"""… and up to this …"""
_MAX_GAP_SHARE = 16
"""… where the gap is at most this part (1/n) of what lies before it: many gaps would add up."""
_LARGEST_BYTES = 8 << 20
"""Longer ranges are split: one connection of an object store gives some 50 to 100 MB/s."""
_AT_ONCE = 32
"""Requests of this process under way at a time."""


@cache
def at_once() -> ThreadPoolExecutor:
    """The threads in which this process waits for requests."""
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="slackwater-read")


# Spark forks its workers; a thread does not survive that.
os.register_at_fork(after_in_child=at_once.cache_clear)


class RangeReader:
    """Reads ranges of an SST's object and counts them."""

    def __init__(self, store: ObjectStore, sst: Sst, reads: Reads) -> None:
        self._store, self._sst, self.reads = store.at(sst.root), sst, reads

    def one(self, start: int, end: int) -> bytes:
        """The bytes of one range, by one request, in this thread. Raises as `read_all`."""
        self.reads.requests += 1
        self.reads.round_trips += 1
        self.reads.bytes += end - start
        return self.get(start, end - start)

    def get(self, start: int, length: int) -> bytes:
        """So many bytes from there on; does not count them. Raises as `read_all`."""
        try:
            data = self._store.get_range(self._sst.object, start, length)
        except ObjectNotFound as error:
            raise corrupt(self._sst, "the object is missing") from error
        if len(data) != length:
            raise corrupt(self._sst, f"expected {length} bytes from {start} on, found {len(data)}")
        return data


@dataclass(frozen=True, slots=True)
class Pieces:
    """Some pieces of a file."""

    found: Sequence[tuple[int, bytes]]
    """Where each begins, ascending, and its bytes."""

    def bytes_at(self, start: int, end: int) -> bytes:
        """The bytes from one offset of the file to another, which one piece has."""
        at, data = self.found[bisect_right(self.found, start, key=itemgetter(0)) - 1]
        return data[start - at : end - at]


def read_all(wanted: Sequence[tuple[RangeReader, Sequence[tuple[int, int]]]]) -> list[Pieces]:
    """The bytes of ranges (ascending) of several SSTs, in one round trip.

    Raises `Corruption` where an object is missing or shorter than that.
    """
    parts = [
        (number, reader, start, at, min(_LARGEST_BYTES, end - at))
        for number, (reader, ranges) in enumerate(wanted)
        for start, end in _joined(ranges)
        for at in range(start, end, _LARGEST_BYTES)
    ]
    for _, reader, _, _, length in parts:
        reader.reads.requests += 1
        reader.reads.bytes += length
    if parts:
        parts[0][1].reads.round_trips += 1
    found: list[dict[int, list[bytes]]] = [{} for _ in wanted]
    # Where one fails, those that have not begun are cancelled.
    each = at_once().map if len(parts) > 1 else map
    for (number, _, start, _, _), data in zip(parts, each(lambda part: part[1].get(*part[3:]), parts), strict=True):
        found[number].setdefault(start, []).append(data)
    return [
        Pieces([(start, data[0] if len(data) == 1 else b"".join(data)) for start, data in one.items()]) for one in found
    ]


def _joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ascending ranges, those close to each other joined."""
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
