"""Which items make a whole fail: group testing, many groups at a time. Pure.

Adaptive splitting (Dorfman 1943; Hwang 1972) where items fail by themselves, and a binary search for the item with
which a beginning turns bad where several only fail together. What is bad stays bad when items are added to it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .delta import turning_point

Items = npt.NDArray[np.int64]
"""Items by number, ascending."""

Fails = Callable[[Sequence[Items]], Sequence[bool]]
"""Tries groups of items, each by itself: whether each fails."""


class TooMany(Exception):
    """More items fail than may. `found` has the last of each group that is known to fail, ascending."""

    def __init__(self, found: Sequence[int]) -> None:
        super().__init__(f"at least {len(found)} items fail")
        self.found = tuple(sorted(found))


def culprits(count: int, fails: Fails, most: int) -> tuple[int, ...]:
    """The items to leave out of `count` that fail together: without them the rest passes, and none can be given back.

    For p items that fail by themselves at most 2 * p * log2(count) + 1 groups are tried, the logarithm rounded up, and
    never more than 2 * `most` at once; each item that fails only with others takes log2(count) + 2 more.

    Args:
        count: How many there are, numbered from 0; at least 1.
        fails: Tries groups of them.
        most: How many may be found.

    Returns:
        Ascending; none where what failed once passes now.

    Raises:
        TooMany: They are more than `most`.
    """
    items = np.arange(count, dtype=np.int64)
    alone = _alone(items, fails, most)
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


def _alone(items: Items, fails: Fails, most: int) -> list[int]:
    """Those that fail by themselves: all groups that fail are halved, and their halves are tried at once."""
    found: list[int] = []
    failing = [items]
    while failing:
        found += [int(group[0]) for group in failing if group.size == 1]
        halves = [half for group in failing if group.size > 1 for half in np.array_split(group, 2)]
        failing = [half for half, bad in zip(halves, fails(halves), strict=True) if bad] if halves else []
        if len(found) + len(failing) > most:
            raise TooMany([*found, *(int(group[-1]) for group in failing)])
    return found
