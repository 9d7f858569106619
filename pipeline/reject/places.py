"""The records that a batch reads, as numbers: which stretch of which Kafka partition each is in. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest

from ...snapshot.bisect.poison import Ranges
from ...store.versions.manifest import Input
from ..source.planner import Position

ROW_BITS = 20
"""A record's number is that of its message, and in these bits its row in the message: 0 for a user's topic."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a batch reads of one Kafka partition of an input: offsets `first` to before `last`."""

    input: str
    partition: int
    first: int
    last: int
    rows: int | None = None
    """For a channel: how many rows are there, where that is known."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Part of a stretch, as a task is told to read it: of a single message, it may be some of its rows only."""

    input: str
    partition: int
    first: int
    last: int
    rows: tuple[int, int] | None = None
    expected: int | None = None
    """How many rows must be there; None where that is not known."""


@dataclass(frozen=True)
class Places:
    """All places of a batch's messages, numbered from 0 in the order of inputs, partitions and offsets."""

    stretches: tuple[Stretch, ...]
    _starts: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = [each.last - each.first for each in self.stretches]
        object.__setattr__(self, "_starts", tuple(accumulate(sizes, initial=0)))

    @property
    def all(self) -> Ranges:
        """Every place."""
        return ((0, self._starts[-1]),) if self._starts[-1] else ()

    def of(self, number: int) -> Ranges:
        """The places of a stretch, by its number from 0."""
        each = self.stretches[number]
        return ((self._starts[number], self._starts[number] + each.last - each.first),)

    def start(self, stretch: Stretch) -> int:
        """The number of its first place."""
        return self._starts[self.stretches.index(stretch)]

    def at(self, place: int) -> tuple[Stretch, int]:
        """The stretch and the offset of a place."""
        number = bisect_right(self._starts, place) - 1
        return self.stretches[number], self.stretches[number].first + place - self._starts[number]

    def readings(self, places: Ranges) -> Iterator[Reading]:
        """How these places are read, in their order."""
        for low, high in places:
            for start, each in zip(self._starts, self.stretches, strict=False):
                first, last = max(low, start), min(high, start + each.last - each.first)
                if first < last:
                    whole = last - first == each.last - each.first
                    begin = each.first + first - start
                    expected = each.rows if whole else None
                    yield Reading(each.input, each.partition, begin, begin + last - first, None, expected)


def places_of(before: Mapping[str, Input], after: Mapping[str, Position]) -> Places:
    """What a batch reads between where the version before it stood and where it ends, by the inputs' names."""
    found = []
    for name, end in after.items():
        at = before[name]
        counts = (
            [to - since for since, to in zip_longest(at.passed, end.consumed, fillvalue=0)]
            if at.upstream and at.passed and end.consumed
            else [None] * len(end.offsets)
        )
        for partition, (first, last) in enumerate(zip_longest(at.offsets, end.offsets, fillvalue=0)):
            # Where there are only markers, and what failed attempts left, nothing is read.
            if first < last and counts[partition] != 0:
                found.append(Stretch(name, partition, first, last, counts[partition]))
    return Places(tuple(found))


def record_number(place: int, row: int) -> int:
    """The number of a record, by its message's place and its row there."""
    return place << ROW_BITS | row


def place_of(number: int) -> tuple[int, int]:
    """The place and the row of a record's number."""
    return number >> ROW_BITS, number & ((1 << ROW_BITS) - 1)


def left_out(numbers: Collection[int], places: Places) -> dict[str, list[tuple[int, int, int]]]:
    """Records by input: partition, offset and row of each."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for number in sorted(numbers):
        place, row = place_of(number)
        stretch, offset = places.at(place)
        found.setdefault(stretch.input, []).append((stretch.partition, offset, row))
    return found
