"""The list of a source's files: stored, in a fixed order, and only growing.

An offset is a position in the concatenation of the files' rows, so the list decides which row an offset means. The list
consists of numbered objects. Object n has the files that were added with it; if n is a multiple of 16, of 256 or of
4,096, it also repeats those of the 15, 255 or 4,095 objects before it. So a reader needs few requests for a long list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec

from ....common import runtime
from ....errors import ObjectExists
from ....store.objects.protocol import ObjectStore
from ....store.versions import codec, keys, limits

_LEVELS = (4096, 256, 16, 1)
MAX_FILES = 20_000
"""Maximum number of files, with their marks and constants, in an object that repeats others."""


class SourceFile(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A file of a source. Also marks progress without rows, with an empty path."""

    path: limits.Text
    """Path below the source's address, or a URL."""
    rows: limits.Count
    """Number of offsets. A text file has one for each line, also for lines that are no record."""
    bytes: limits.Count
    time_ms: limits.TimeMs
    """Time of the file or commit, ms since 1970: the timestamp of the records."""
    version: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    """Version of a Delta table, or snapshot of an Iceberg table."""
    constants: dict[str, Any] = {}
    """Values of columns that the file does not have, such as those of a partition."""
    marks: tuple[tuple[limits.Count, limits.Count], ...] = ()
    """Lines at which a record begins, with their byte offsets; a reader of later lines starts there."""
    names: dict[str, str] = {}
    """Names of an Iceberg table's columns by field id, if the names in its files may be others."""


def _num_entries(file: SourceFile) -> int:
    return 1 + len(file.marks) + len(file.constants) + len(file.names)


class _Segment(msgspec.Struct, frozen=True):
    """Object of the list: the files that objects `since` + 1 up to this one added."""

    since: limits.Count
    files: tuple[SourceFile, ...]


class FileList:
    """List of a source's files, as far as it was read. Thread-safe."""

    def __init__(self, topic: str) -> None:
        self._folder = keys.source_files(topic)
        self._lock = runtime.rlock()
        self._number = 0
        self._counts = {0: 0}
        """Number of files by number of the object that ends with them."""
        self.files: list[SourceFile] = []
        self._firsts: list[int] = []
        self.end = 0

    def refresh(self, store: ObjectStore) -> None:
        """Read what was added to the list. Costs one request if nothing was."""
        with self._lock:
            while any(self._read(store, level) for level in _LEVELS if self._number % level == 0):
                pass

    def _read(self, store: ObjectStore, level: int) -> bool:
        number = self._number + level
        segment = codec.find(store, keys.json_object(self._folder, number), _Segment)
        if segment is None or segment.since not in self._counts:
            return False
        self._extend(number, segment.files[len(self.files) - self._counts[segment.since] :])
        return True

    def _extend(self, number: int, files: Sequence[SourceFile]) -> None:
        for file in files:
            self._firsts.append(self.end)
            self.files.append(file)
            self.end += file.rows
        self._number, self._counts[number] = number, len(self.files)

    def append(self, store: ObjectStore, files: Sequence[SourceFile], seen: int | None = None) -> bool:
        """Add files. Returns False, after a refresh, if another process added files first: then nothing is added.

        Likewise if the list does not have `seen` files any more, because another thread added some.
        """
        with self._lock:
            if seen is not None and len(self.files) != seen:
                return False
            number = self._number + 1
            since = number - next(level for level in _LEVELS if number % level == 0)
            repeated = self.files[self._counts[since] :]
            if sum(map(_num_entries, (*repeated, *files))) > MAX_FILES:
                since, repeated = number - 1, []
            segment = _Segment(since, (*repeated, *files))
            try:
                store.put_if_absent(keys.json_object(self._folder, number), codec.encode(segment))
            except ObjectExists:
                self.refresh(store)
                return False
            self._extend(number, files)
            return True

    def between(self, first: int, last: int) -> Iterator[tuple[int, SourceFile]]:
        """Yield the files that have offsets from `first` up to, not including, `last`; each with its first offset."""
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self.files) and (start := self._firsts[at]) < last:
            if self.files[at].rows:
                yield start, self.files[at]
            at += 1

    def end_of_files(self, offset: int, count: int) -> int:
        """Return the offset after `count` files, from the file that has `offset`."""
        ends = (
            start + file.rows for _, (start, file) in zip(range(count), self.between(offset, self.end), strict=False)
        )
        return max(ends, default=offset)

    def first_since(self, time_ms: int) -> int:
        """Return the offset of the first record of this time or later; -1 if there is none."""
        dated = ((first, file) for first, file in zip(self._firsts, self.files, strict=False) if file.rows)
        return next((first for first, file in dated if file.time_ms >= time_ms), -1)
