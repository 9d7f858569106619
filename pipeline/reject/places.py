"""The records that a batch reads, as numbers: which stretch of which Kafka partition each is in. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from ...fold.records import Position, ranges
from ...store.versions.manifest import Input

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


@dataclass(frozen=True)
class Places:
    """All places of a batch's messages, numbered from 0 in the order of inputs, partitions and offsets."""

    stretches: tuple[Stretch, ...]
    _starts: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = [each.last - each.first for each in self.stretches]
        object.__setattr__(self, "_starts", tuple(accumulate(sizes, initial=0)))

    @property
    def numbered(self) -> tuple[tuple[int, Stretch], ...]:
        """Each stretch, after the number of its first place."""
        return tuple(zip(self._starts, self.stretches, strict=False))

    def at(self, place: int) -> tuple[Stretch, int]:
        """The stretch and the offset of a place."""
        number = bisect_right(self._starts, place) - 1
        return self.stretches[number], self.stretches[number].first + place - self._starts[number]


def places_of(before: Mapping[str, Input], after: Mapping[str, Position]) -> Places:
    """What a batch reads between where the version before it stood and where it ends, by the inputs' names."""
    return Places(
        tuple(
            Stretch(name, one.partition, one.first, one.last, one.rows)
            for name, end in after.items()
            for one in ranges(before[name].offsets, end.offsets, before[name].passed, end.consumed)
        )
    )


def record_number(place: int, row: int) -> int:
    """The number of a record, by its message's place and its row there."""
    return place << ROW_BITS | row


def place_of(number: int) -> tuple[int, int]:
    """The place and the row of a record's number."""
    return number >> ROW_BITS, number & ((1 << ROW_BITS) - 1)
