"""Which items make a batch fail: halving, or finer, until the failing ones are alone. Pure.

Group testing (Dorfman 1943; adaptive splitting) where items fail by themselves, and a binary search for the item with
which a beginning turns bad where several only fail together. What is bad stays bad when items are added to it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .delta import turning_point

Ranges = tuple[tuple[int, int], ...]
"""Items by number: from the first of each pair to before its second; ascending, none of them empty."""

Fails = Callable[[Sequence[Ranges]], int | None]
"""Tries choices of items side by side, each by itself: the place of one that fails; None where all pass."""

CHUNKS = 32
"""Where one item was found and others fail as well, the rest is tried in so many pieces."""


class TooMany(Exception):
    """More items fail than may. `found` has those that are known, ascending."""

    def __init__(self, found: Sequence[int]) -> None:
        super().__init__(f"{len(found)} items fail")
        self.found = tuple(sorted(found))


class Passes(Exception):
    """What failed together passes when it is tried again."""


@dataclass(slots=True)
class Search:
    """Finds items without which the rest passes, and of which none can be given back.

    Attributes:
        fails: Tries items.
        width: Into how many pieces a choice that fails is cut, at least 2.
        most: How many items may be found.
    """

    fails: Fails
    width: int
    most: int
    _found: set[int] = field(default_factory=set)
    """Those that are to be left out, as far as they are known."""
    _together: list[int] = field(default_factory=list)
    """Those of `_found` that fail only with others."""

    def first(self, items: Ranges) -> int:
        """One item of those that fail together: at best the only one. log(items) trials, to the base `width`.

        Raises:
            Passes: They do not fail.
            TooMany: It is one more than `most`.
        """
        while num_items(items) > 1:
            pieces = split(items, self.width)
            failing = self.fails(pieces)
            if failing is None:
                return self._turning(items)
            items = pieces[failing]
        return self._add(items[0][0])

    def all(self, items: Ranges) -> tuple[int, ...]:
        """All items to leave out of those that fail together, ascending; none where nothing fails.

        For p items that fail by themselves, beside those that were found before: at most
        p * (log(items) + 2) + `CHUNKS` + 2 trials, the logarithm to the base `width`, rounded up.

        Raises:
            TooMany: They are more than `most`.
        """
        for chunk in split(without(items, self._found), CHUNKS):
            while (rest := without(chunk, self._found)) and self.fails([rest]) is not None:
                self.first(rest)
        while (rest := without(items, self._found)) and self.fails([rest]) is not None:
            self._turning(rest)
        for item in self._together:
            # What it failed with may have been left out since.
            if self.fails([without(items, self._found - {item})]) is None:
                self._found.discard(item)
        return tuple(sorted(self._found))

    def _turning(self, items: Ranges) -> int:
        """The item with which a beginning of these turns bad."""
        if self.fails([items]) is None:
            raise Passes
        place = turning_point(num_items(items), lambda count: self.fails([beginning(items, count)]) is not None)
        item = nth(items, place)
        self._together.append(item)
        return self._add(item)

    def _add(self, item: int) -> int:
        self._found.add(item)
        if len(self._found) > self.most:
            raise TooMany(tuple(self._found))
        return item


def num_items(items: Ranges) -> int:
    """How many items these are."""
    return sum(last - first for first, last in items)


def nth(items: Ranges, place: int) -> int:
    """The item at a place, from 0."""
    for first, last in items:
        if place < last - first:
            return first + place
        place -= last - first
    raise IndexError(place)


def beginning(items: Ranges, count: int) -> Ranges:
    """The first `count` of these."""
    return tuple(_between(items, 0, count))


def split(items: Ranges, pieces: int) -> tuple[Ranges, ...]:
    """The items in so many pieces of about equal size, in their order; fewer where there are fewer items."""
    count = num_items(items)
    size = -(-count // pieces) if count else 1
    return tuple(tuple(_between(items, at, at + size)) for at in range(0, count, size))


def without(items: Ranges, others: Iterable[int]) -> Ranges:
    """The items, some of them left out."""
    left = list(items)
    for item in others:
        left = [
            part
            for first, last in left
            for part in (((first, item), (item + 1, last)) if first <= item < last else ((first, last),))
            if part[0] < part[1]
        ]
    return tuple(left)


def _between(items: Ranges, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The items at the places from `low` to before `high`."""
    at = 0
    for first, last in items:
        begin, end = max(low, at), min(high, at + last - first)
        if begin < end:
            yield first + begin - at, first + end - at
        at += last - first
