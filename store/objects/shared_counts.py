"""Counters of requests that another process reads while they grow: a few numbers in a small memory-mapped file.

One file for each process that counts, all of one purpose in one folder. Nothing is synchronised: a number is one
aligned machine word, which its only writer adds to and readers find whole.
"""

import mmap
from contextlib import closing
from pathlib import Path
from threading import Lock

from .counting import VERBS
from .stats import Stats

_SLOTS = ("gets", "puts", "lists", "deletes", "bytes_read", "bytes_written")
_BYTES = 8 * len(_SLOTS)
_SLOT_OF = {method: _SLOTS.index(verb) for method, verb in VERBS.items()}
_READ, _WRITTEN = _SLOTS.index("bytes_read"), _SLOTS.index("bytes_written")


class SharedCounts:
    """Counts into a file of this process alone, which is made, or gone on with. Safe with many threads."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as opened:
            opened.truncate(_BYTES)
            self._slots = memoryview(mmap.mmap(opened.fileno(), _BYTES)).cast("q")
        self._lock = Lock()

    def add(self, method: str, read: int, written: int) -> None:
        """Count a request: the `on_request` of a `CountingStore`."""
        with self._lock:
            self._slots[_SLOT_OF[method]] += 1
            self._slots[_READ] += read
            self._slots[_WRITTEN] += written


def shared_stats(folder: Path) -> Stats:
    """The sum of the counters in a folder; zero when there is none."""
    total = Stats()
    for file in sorted(folder.glob("*")):
        with file.open("rb") as opened:
            # One that is just being made has its size in a moment.
            if opened.seek(0, 2) < _BYTES:
                continue
            mapped = mmap.mmap(opened.fileno(), _BYTES, access=mmap.ACCESS_READ)
        with closing(mapped), memoryview(mapped) as view, view.cast("q") as slots:
            total += Stats(**dict(zip(_SLOTS, slots.tolist(), strict=True)))
    return total
