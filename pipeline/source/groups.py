"""Groups of offset ranges.

One Spark task reads one group, so the number of tasks follows the cores, not the partitions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from ...state.records import Range

Group = tuple[Range, ...]
"""Ranges of distinct partitions, by partition."""

MIN_SPLIT = 50_000
"""Minimum mean number of offsets of a group at which ranges are split."""
MAX_GROUP = 1_000_000
"""Number of offsets of a group above which each core gets several groups, as far as whole ranges permit.

A backlog of 5 million records took longer with one group for each of two cores; the cause is unknown.
"""


def group_ranges(parts: Sequence[Range], count: int, *, can_split: bool = False) -> tuple[Group, ...]:
    """Divide ranges into at most `count` groups with about equally many offsets.

    A huge batch is divided into a multiple of `count` groups. With `can_split`, ranges of a large batch are split where
    a group is full, so that all groups have equal size. Otherwise the largest remaining range is always added to the
    smallest group, so the largest group exceeds the mean by less than the largest range (Graham, "Bounds on
    Multiprocessing Timing Anomalies", 1969).
    """
    sizes = {part: part.last - part.first for part in parts}
    total = sum(sizes.values())
    count *= max(1, -(-total // (count * MAX_GROUP)))
    if can_split and total >= count * MIN_SPLIT:
        return _split_evenly(parts, -(-total // count))
    groups: list[list[Range]] = [[] for _ in range(min(count, len(parts)))]
    smallest = [(0, number) for number in range(len(groups))]
    for part in sorted(parts, key=lambda part: -sizes[part]):
        size, number = smallest[0]
        groups[number].append(part)
        heapq.heapreplace(smallest, (size + sizes[part], number))
    return tuple(tuple(sorted(group, key=lambda part: part.partition)) for group in groups)


def _split_evenly(parts: Sequence[Range], size: int) -> tuple[Group, ...]:
    groups: list[list[Range]] = [[]]
    room = size
    for part in parts:
        first = part.first
        while first < part.last:
            if not room:
                groups.append([])
                room = size
            last = min(part.last, first + room)
            groups[-1].append(replace(part, first=first, last=last))
            room -= last - first
            first = last
    return tuple(map(tuple, groups))
