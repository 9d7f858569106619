"""Ranges of one object: near ones in one request, far ones at the same time."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ...errors import ObjectNotFound
from ..objects.protocol import ObjectStore
from ..versions.manifest import Sst
from .decode import corrupt
from .read_stats import Reads

_MAX_GAP_BYTES = 65_536
"""Ranges this near to each other come in one request: cheaper than another round trip …"""
_MAX_GAP_SHARE = 16
"""… where the gap is at most this part (1/n) of what lies before it: many gaps would add up."""
_LARGEST_BYTES = 8 << 20
"""Longer ranges are split: one connection of an object store gives some 50 to 100 MB/s."""
_AT_ONCE = 8
"""Requests of this process under way at a time."""

_executors: list[ThreadPoolExecutor] = []


def at_once() -> ThreadPoolExecutor:
    """The threads in which this process waits for requests."""
    if not _executors:
        _executors.append(ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="slackwater-read"))
    return _executors[0]


# Spark forks its workers; a thread does not survive that.
os.register_at_fork(after_in_child=_executors.clear)


class RangeReader:
    """Reads ranges of an SST's object and counts them."""

    def __init__(self, store: ObjectStore, sst: Sst, reads: Reads) -> None:
        self._store = store.at(sst.root)
        self._sst = sst
        self._reads = reads

    def one(self, start: int, end: int) -> bytes:
        """The bytes of one range, by one request, in this thread. Errors as of `read`."""
        self._reads.requests += 1
        self._reads.bytes += end - start
        return self._get(start, end - start)

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, bytes]]:
        """The bytes of these ranges (ascending): (start, data) of each stretch that holds some of them.

        Raises:
            Corruption: the object is missing or shorter than that.
            Unavailable: the store did not answer.
        """
        parts = [
            (start, at, min(_LARGEST_BYTES, end - at))
            for start, end in _joined(starts, ends)
            for at in range(start, end, _LARGEST_BYTES)
        ]
        self._reads.requests += len(parts)
        self._reads.bytes += sum(length for _, _, length in parts)
        if len(parts) == 1:
            return [(start, self._get(at, length)) for start, at, length in parts]
        asked: list[tuple[int, Future[bytes]]] = []
        try:
            asked += [(start, at_once().submit(self._get, at, length)) for start, at, length in parts]
            found: dict[int, list[bytes]] = {}
            for start, future in asked:
                found.setdefault(start, []).append(future.result())
        finally:
            for _, future in asked:
                future.cancel()
        return [(start, data[0] if len(data) == 1 else b"".join(data)) for start, data in found.items()]

    def _get(self, start: int, length: int) -> bytes:
        try:
            data = self._store.get_range(self._sst.object, start, length)
        except ObjectNotFound as error:
            raise corrupt(self._sst, "the object is missing") from error
        if len(data) != length:
            raise corrupt(self._sst, f"expected {length} bytes from {start} on, found {len(data)}")
        return data


def _joined(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending ranges, those close to each other joined."""
    start, end = starts[0], ends[0]
    useful = end - start
    for next_start, next_end in zip(starts[1:], ends[1:], strict=True):
        gap = next_start - end
        if gap > _MAX_GAP_BYTES or gap * _MAX_GAP_SHARE > useful:
            yield start, end
            start, useful = next_start, 0
        end = next_end
        useful += next_end - next_start
    yield start, end
