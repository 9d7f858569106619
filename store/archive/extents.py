"""Ranges of offsets by Kafka partition, and sets of them: what an archive covers, lacks, and what its objects have.

A set is a tuple of extents in order, of which no two of a partition touch. Gaps in Kafka's own offsets do not matter:
an extent is what was read, whatever records lay there.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from ..versions import limits
from ..versions.checks import Wrong


class Extent(Struct, frozen=True, order=True, array_like=True):
    """Offsets `first` to before `end` of one Kafka partition."""

    partition: limits.KafkaPartition
    first: limits.Offset
    end: limits.Offset

    def __str__(self) -> str:
        return f"[{self.partition}]@{self.first}..{self.end}"


Extents = tuple[Extent, ...]


def union(*sets: Iterable[Extent]) -> Extents:
    """The offsets that are in any of these; they need not be in order, and may overlap."""
    found: list[Extent] = []
    for each in sorted(one for some in sets for one in some if one.first < one.end):
        last = found[-1] if found else None
        if last is not None and last.partition == each.partition and each.first <= last.end:
            found[-1] = Extent(each.partition, last.first, max(last.end, each.end))
        else:
            found.append(each)
    return tuple(found)


def minus(extents: Iterable[Extent], taken: Iterable[Extent]) -> Extents:
    """The offsets of one set that are not in the other."""
    holes: dict[int, list[Extent]] = {}
    for hole in union(taken):
        holes.setdefault(hole.partition, []).append(hole)
    found = []
    for each in union(extents):
        at = each.first
        for hole in holes.get(each.partition, ()):
            if hole.end <= at:
                continue
            if hole.first >= each.end:
                break
            if hole.first > at:
                found.append(Extent(each.partition, at, hole.first))
            at = hole.end
        if at < each.end:
            found.append(Extent(each.partition, at, each.end))
    return tuple(found)


def common(one: Iterable[Extent], other: Iterable[Extent]) -> Extents:
    """The offsets that are in both sets."""
    extents = tuple(one)
    return minus(extents, minus(extents, other))


def gaps(extents: Iterable[Extent]) -> Extents:
    """What lies between the extents of each partition."""
    found: list[Extent] = []
    last: Extent | None = None
    for each in union(extents):
        if last is not None and last.partition == each.partition:
            found.append(Extent(each.partition, last.end, each.first))
        last = each
    return tuple(found)


def count(extents: Iterable[Extent]) -> int:
    """How many offsets they are."""
    return sum(each.end - each.first for each in extents)


def wrong(at: str, extents: Extents) -> Iterator[Wrong]:
    """What is wrong with a set: the first extent that is empty, or not behind the one before it."""
    before: Extent | None = None
    for number, each in enumerate(extents):
        if each.first >= each.end:
            yield Wrong(f"{at}[{number}]", str(each), "an offset more than the first, at least")
        elif before is not None and (before.partition, before.end) >= (each.partition, each.first):
            yield Wrong(f"{at}[{number}]", str(each), f"offsets behind those before it, {before}")
        before = each
