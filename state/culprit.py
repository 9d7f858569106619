"""Which of several items make a whole fail: searches that know nothing of items but whether a set is bad. Pure.

Group testing, many groups at a time: adaptive splitting (Dorfman 1943; Hwang 1972) where items fail by themselves, and
a binary search for the item with which a beginning turns bad where several only fail together. What is bad stays bad
when items are added to it. Delta debugging finds a set of which no member can be left out (Zeller and Hildebrandt,
"Simplifying and Isolating Failure-Inducing Input", 2002: `ddmin`).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Items = npt.NDArray[np.int64]
"""Items by number, ascending."""

Item = TypeVar("Item")

Fails = Callable[[Sequence[Items]], Sequence[bool]]
"""Tries groups of items, each by itself: whether each fails."""


class TooMany(Exception):
    """More items fail than may. `found` has the last of each group that is known to fail, ascending."""

    def __init__(self, found: Sequence[int]) -> None:
        super().__init__(f"at least {len(found)} items fail")
        self.found = tuple(sorted(found))


def culprits(count: int, fails: Fails, most: int) -> tuple[int, ...]:
    """The items to leave out of `count` that fail together: without them the rest passes, and none can be given back.

    They are numbered from 0, and at least one. Found are at most `most`, ascending; none where what failed once passes
    now. Raises `TooMany` where they are more.

    For p items that fail by themselves at most 2 * p * log2(count) + 1 groups are tried, the logarithm rounded up, and
    never more than 2 * `most` at once; each item that fails only with others takes log2(count) + 2 more.
    """
    items = np.arange(count, dtype=np.int64)
    alone = failing_alone(items, fails, most)
    rest = np.setdiff1d(items, alone)
    together: list[int] = []
    while rest.size and fails([rest])[0]:
        beginnings = rest
        at = turning_point(rest.size, lambda size: fails([beginnings[:size]])[0])  # noqa: B023  asked at once
        together.append(int(rest[at]))
        rest = np.delete(rest, at)
        if len(alone) + len(together) > most:
            raise TooMany([*alone, *together])
    for item in tuple(together):
        # What it failed with may have been left out since.
        more = np.sort(np.append(rest, item))
        if not fails([more])[0]:
            together.remove(item)
            rest = more
    return tuple(sorted([*alone, *together]))


def failing_alone(items: Items, fails: Fails, most: int) -> list[int]:
    """The items that fail by themselves, of some that fail together. All groups that fail are halved at once.

    Raises `TooMany` where they are more than `most`.
    """
    alone: list[int] = []
    failing = [items]
    while failing:
        alone += [int(group[0]) for group in failing if group.size == 1]
        halves = [half for group in failing if group.size > 1 for half in np.array_split(group, 2)]
        failing = [half for half, bad in zip(halves, fails(halves), strict=True) if bad] if halves else []
        if len(alone) + len(failing) > most:
            raise TooMany([*alone, *(int(group[-1]) for group in failing)])
    return sorted(alone)


def first_turn(
    count: int, is_bad: Callable[[int], bool], *, scan: int = 0, suspects: Sequence[int] = (), most: int = 8
) -> int:
    """As `turning_point`; of several such items an early one, also where what is bad does not stay so.

    Of at most `scan` items it is the first. Else it is none behind the first of the `suspects`, ascending and at least
    one, up to which it is bad: of these at most so many (`most`) are asked.
    """
    if count <= scan:
        return next((size - 1 for size in range(1, count) if is_bad(size)), count - 1)
    good, bad = 0, count
    for suspect in suspects[:most]:
        if suspect + 1 >= count or is_bad(suspect + 1):
            bad = min(bad, suspect + 1)
            break
        good = suspect + 1
    if good < bad - 1 and bad < count:
        if not is_bad(bad - 1):
            return bad - 1
        bad -= 1
    return good + turning_point(bad - good, lambda size: is_bad(good + size))


def last_turn(count: int, is_bad: Callable[[int], bool]) -> int:
    """As `turning_point`: of several such items one near the end, and the last item where that is one.

    Beginnings that lack one item of the end, then two, four and so on, are asked until one is not bad.
    """
    lacking, bad = 1, count
    while lacking < count and is_bad(count - lacking):
        bad, lacking = count - lacking, 2 * lacking
    good = max(count - lacking, 0)
    return good + turning_point(bad - good, lambda size: is_bad(good + size))


def turning_point(count: int, is_bad: Callable[[int], bool]) -> int:
    """The number, from 0, of an item with which a sequence of `count` turns bad: up to it, it is bad, and without not.

    `is_bad` says whether the first so many items are. It holds for all, at least one, and not for none: neither is
    asked. It is asked at most log2(count), rounded up, times. Where what is bad does not stay so, it is one such place.
    """
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(middle):
            bad = middle
        else:
            good = middle
    return good


def smallest(
    items: Sequence[Item], is_bad: Callable[[Sequence[Item]], bool], *, most: int
) -> tuple[Sequence[Item], bool]:
    """Some of the items, which are bad together, of which none can be left out: delta debugging.

    `is_bad` says whether a choice of them, in their order, is; it may be asked so often (`most`). With the items
    returns whether it is known that each of them is needed: not when `most` did not suffice.
    """
    tries, parts = 0, 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        chunks = [items[at : at + size] for at in range(0, len(items), size)]
        rests = [[item for other in chunks if other is not chunk for item in other] for chunk in chunks]
        # Of two parts, each is the other's rest.
        candidates = [*chunks, *(rests if len(chunks) > 2 else ())]
        for number, candidate in enumerate(candidates):
            if tries == most:
                return items, False
            tries += 1
            if is_bad(candidate):
                items, parts = candidate, 2 if number < len(chunks) else max(len(chunks) - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), 2 * parts)
    return items, True
