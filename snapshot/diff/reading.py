"""Search for the versions of a stage that read a record, or that read the rows of a sender's version.

A stage's offsets increase from version to version, except at a reset or a rewind. Between two such versions, a binary
search over manifests finds a version.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Input, Manifest
from ..cut.lineage import skipped_windows
from .key_history import VersionList


@dataclass(frozen=True, slots=True)
class VersionLine:
    """Selected versions of a stage, ascending: usually the stored versions on which a head is based."""

    versions: VersionList
    spans: tuple[range, ...]
    """Ranges of indexes in `versions`."""

    @classmethod
    def of_ranges(cls, versions: VersionList, ranges: Sequence[range]) -> VersionLine:
        """Return the line of some ranges of version numbers."""
        index = versions.index_from_version
        return cls(versions, tuple(range(index(part.start), index(part.stop)) for part in ranges))

    @classmethod
    def up_to(cls, store: ObjectStore, head: Manifest, first: int = 1) -> VersionLine:
        """Return the versions on which `head` is based, beginning with `first` and ending with `head`.

        Versions that a rewind undid are left out.
        """
        return cls.of_ranges(VersionList(store, head.app, head.stage, head.version), head.base_versions(first - 1))

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
        """Return True if versions right before the version at this position were collected.

        A change that appears at this version may then belong to a collected version.
        """
        return self.versions.has_gap_before(self.index(position))

    def checked(self, position: int) -> Manifest:
        """Return the version at a position. Raises `NotFound` if the version right before was collected."""
        manifest = self[position]
        if self.has_gap_before(position) or (position == 0 and manifest.version > 1):
            raise NotFound("version", f"{manifest.stage}@v{manifest.version - 1}")
        return manifest

    def first_where(self, low: int, high: int, holds: Callable[[Manifest], bool]) -> int:
        """Return the first position from `low` to `high` for which `holds` is true.

        This is a binary search: if `holds` is true for a position, it must be true for all higher positions.
        """
        return low + bisect_left(range(low, high), True, key=lambda position: holds(self[position]))

    def position_from(self, version: int) -> int:
        """Return the position of this version; if it is not stored, of the next stored version."""
        numbers = range(len(self))
        return bisect_left(numbers, version, key=lambda position: self.versions.numbers[self.index(position)])


def offset_of(source: Input | None, partition: int) -> int:
    return source.offsets[partition] if source is not None and partition < len(source.offsets) else 0


def positions_reading(line: VersionLine, name: str, partition: int, offset: int) -> tuple[int, ...]:
    """Return the positions of the versions that read past an offset of the input `name`, ascending.

    Includes versions that skipped the offset because Kafka had lost the record (`skipped_windows`).
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
        # The version that begins a part has not read up to its own offsets, unless it is version 1 and a batch.
        begins = position == low and not (low == 0 and line[0].version == 1 and line[0].traits.reads_records)
        if position < high and not begins:
            found.append(position)
    return tuple(found)


def versions_that_read(
    store: ObjectStore, head: Manifest, topic: str, partition: int, offset: int, *, after: int = 0
) -> tuple[int, ...]:
    """Return the versions above `after` and up to `head` that read the record at an offset, ascending.

    There are several after a reset. Raises `NotFound` if a version that may have read the record was collected, or
    belongs to the source of a clone.
    """
    line, numbers = VersionLine.up_to(store, head, max(after, 1)), set[int]()
    for name in (name for name, source in head.inputs.items() if source.topic == topic):
        if len(line) and line[0].version != after and offset_of(line[0].inputs.get(name), partition) > offset:
            line.checked(0)
        read = map(line.checked, positions_reading(line, name, partition, offset))
        numbers |= {
            manifest.version
            for manifest in read
            if manifest.version > after
            and manifest.traits.reads_records
            and not skips(manifest, topic, partition, offset)
        }
    return tuple(sorted(numbers))


def position_consuming(line: VersionLine, channel: str, sent: int) -> int | None:
    """Return the position of the version that consumed a channel's rows from the sender's version `sent`.

    None if no version has consumed them. Rows that Kafka lost (`has_lost`) count as consumed.
    """

    def has_passed(manifest: Manifest) -> bool:
        source = manifest.inputs.get(channel)
        return source is not None and source.version >= sent

    position = line.first_where(0, len(line), has_passed)
    return position if position < len(line) else None


def has_lost(manifest: Manifest, channel: str, sent: int) -> bool:
    """Return True if a claim skipped the rows of the sender's version `sent`, because Kafka had deleted them."""
    lost = manifest.lost.get(channel)
    return lost is not None and lost.after < sent <= lost.up_to


def version_that_consumed(store: ObjectStore, head: Manifest, channel: str, sent: int) -> int | None:
    """Return the version, up to `head`, that read a channel's rows of the sender's version `sent`.

    None if no version has read the rows, or if Kafka lost the rows. Raises `NotFound` if a version that may have read
    the rows was collected.
    """
    line = VersionLine.up_to(store, head)
    if (position := position_consuming(line, channel, sent)) is None:
        return None
    manifest = line.checked(position)
    is_read = manifest.traits.reads_records and not has_lost(manifest, channel, sent)
    return manifest.version if is_read else None


def undone_lines(versions: VersionList, head: Manifest) -> tuple[VersionLine, ...]:
    """Return the versions that rewinds undid, by rewind. Each line begins with the target version of the rewind."""
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
