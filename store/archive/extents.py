"""Extents (ranges of offsets of Kafka partitions), and set operations on extents.

A set is a sorted tuple of extents that neither overlap nor touch within a partition. An extent is a range of offsets
that was read. Some offsets of an extent may have no record.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from msgspec import Struct

from ..versions import limits
from ..versions.checks import Violation


class Extent(Struct, frozen=True, order=True, array_like=True):
    """Range of offsets of one Kafka partition, from `first` up to but not including `end`."""

    partition: limits.KafkaPartition
    first: limits.Offset
    end: limits.Offset

    def __str__(self) -> str:
        return f"[{self.partition}]@{self.first}..{self.end}"


Extents = tuple[Extent, ...]


def extents_between(starts: Sequence[int], ends: Sequence[int]) -> Extents:
    """Return the extents between two tuples of offsets by partition. A missing offset is 0."""
    return union(Extent(number, *span) for number, span in enumerate(zip_longest(starts, ends, fillvalue=0)))


def split(extents: Iterable[Extent], max_offsets: int) -> Iterator[Extent]:
    for extent in extents:
        for first in range(extent.first, extent.end, max_offsets):
            yield Extent(extent.partition, first, min(first + max_offsets, extent.end))


def union(*sets: Iterable[Extent]) -> Extents:
    merged: list[Extent] = []
    for extent in sorted(extent for some in sets for extent in some if extent.first < extent.end):
        last = merged[-1] if merged else None
        if last is not None and last.partition == extent.partition and extent.first <= last.end:
            merged[-1] = Extent(extent.partition, last.first, max(last.end, extent.end))
        else:
            merged.append(extent)
    return tuple(merged)


def subtract(extents: Iterable[Extent], removed: Iterable[Extent]) -> Extents:
    holes: dict[int, list[Extent]] = {}
    for hole in union(removed):
        holes.setdefault(hole.partition, []).append(hole)
    remaining = []
    for extent in union(extents):
        at = extent.first
        for hole in holes.get(extent.partition, ()):
            if hole.end <= at:
                continue
            if hole.first >= extent.end:
                break
            if hole.first > at:
                remaining.append(Extent(extent.partition, at, hole.first))
            at = hole.end
        if at < extent.end:
            remaining.append(Extent(extent.partition, at, extent.end))
    return tuple(remaining)


def intersect(first: Iterable[Extent], second: Iterable[Extent]) -> Extents:
    extents = tuple(first)
    return subtract(extents, subtract(extents, second))


def gaps(extents: Iterable[Extent]) -> Extents:
    between: list[Extent] = []
    previous: Extent | None = None
    for extent in union(extents):
        if previous is not None and previous.partition == extent.partition:
            between.append(Extent(extent.partition, previous.end, extent.first))
        previous = extent
    return tuple(between)


def count_offsets(extents: Iterable[Extent]) -> int:
    return sum(extent.end - extent.first for extent in extents)


def extent_violations(path: str, extents: Extents) -> Iterator[Violation]:
    """Yield a violation for each extent that is empty, or does not lie entirely after the previous extent."""
    previous: Extent | None = None
    for number, extent in enumerate(extents):
        if extent.first >= extent.end:
            yield Violation(f"{path}[{number}]", str(extent), "an end above the first offset")
        elif previous is not None and (previous.partition, previous.end) >= (extent.partition, extent.first):
            yield Violation(f"{path}[{number}]", str(extent), f"offsets after the previous extent, {previous}")
        previous = extent
