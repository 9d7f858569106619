"""Which versions of a stage read a record, and which offsets no version read.

The offsets that a stage has read increase from version to version, except where a reset or a rewind moved them. Between
those, a version is found by a binary search over manifests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ....snapshot.cut.lineage import skipped_windows
from ....snapshot.diff.key_history import VersionList
from ....store.versions.manifest import Input, Manifest


@dataclass(frozen=True, slots=True)
class VersionLine:
    """Stored versions of a stage on which its newest version is based, or another run of its versions; ascending."""

    versions: VersionList
    spans: tuple[range, ...]
    """Ranges of indexes in `versions`."""

    @classmethod
    def of_ranges(cls, versions: VersionList, ranges: Sequence[range]) -> VersionLine:
        """Return the line of some ranges of version numbers."""
        index = versions.index_from_version
        return cls(versions, tuple(range(index(part.start), index(part.stop)) for part in ranges))

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    def __getitem__(self, position: int) -> Manifest:
        return self.versions[self.index(position)]

    def index(self, position: int) -> int:
        for span in self.spans:
            if position < len(span):
                return span[position]
            position -= len(span)
        raise IndexError(position)

    def has_gap_before(self, position: int) -> bool:
        """Return True if versions right before this one were collected, any of which may have done what it seems to."""
        return self.versions.has_gap_before(self.index(position))

    def first_where(self, low: int, high: int, holds: Callable[[Manifest], bool]) -> int:
        """Return the first position from `low` to `high` for which `holds` is true; it stays true once it is."""
        return low + bisect_left(range(low, high), True, key=lambda position: holds(self[position]))

    def position_from(self, version: int) -> int:
        """Return the first position of this version or a later one."""
        numbers = range(len(self))
        return bisect_left(numbers, version, key=lambda position: self.versions.numbers[self.index(position)])


def offset_of(source: Input | None, partition: int) -> int:
    return source.offsets[partition] if source is not None and partition < len(source.offsets) else 0


def positions_reading(line: VersionLine, name: str, partition: int, offset: int) -> tuple[int, ...]:
    """Return the positions of the versions that read past an offset of the input `name`, ascending.

    A version that skipped the offset because Kafka had lost it is among them (`skipped_windows`).
    """
    if not len(line):
        return ()

    def is_past(manifest: Manifest) -> bool:
        return offset_of(manifest.inputs.get(name), partition) > offset

    newest = line[len(line) - 1].inputs.get(name)
    resets = newest.resets if newest is not None else ()
    bounds = sorted({0, *(line.position_from(reset.version) for reset in resets), len(line)})
    found = []
    for low, high in pairwise(bounds):
        position = line.first_where(low, high, is_past)
        # The version that begins a part has not read up to where it begins, except for a batch that is the first.
        begins = position == low and not (low == 0 and line[0].version == 1 and line[0].traits.reads_records)
        if position < high and not begins:
            found.append(position)
    return tuple(found)


def undone_lines(versions: VersionList, head: Manifest) -> tuple[VersionLine, ...]:
    """Return the versions that rewinds undid, each run after the version to which the stage was rewound."""
    lines = []
    for before, after in pairwise(head.base_versions()):
        undone = range(before.stop, after.start)
        if undone:
            lines.append(VersionLine.of_ranges(versions, (range(before.stop - 1, before.stop), undone)))
    return tuple(lines)


def skips(manifest: Manifest, topic: str, partition: int, offset: int) -> bool:
    """Return True if a claim skipped an offset because Kafka had deleted the record."""
    return any(
        (window.topic, window.partition) == (topic, partition) and window.start <= offset < window.end
        for window in skipped_windows(manifest)
    )
