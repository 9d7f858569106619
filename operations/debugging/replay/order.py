"""Order of one batch's records in the app: by offset within a partition, by time between partitions.

Message times may go back within a partition: a record counts as late as the latest one before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ....pipeline.batch.rerun import Numbers


@dataclass(frozen=True, slots=True)
class Ordered:
    """Records in the app's order. Arrays have one element per record."""

    order: Numbers
    """Index of each record in the input arrays."""
    times_ms: Numbers
    """Sort key: the latest time in the record's partition up to the record."""
    lanes: Numbers
    """Number of the record's topic partition; records of different lanes with the same time have no order."""

    def tied(self, at: int) -> dict[int, Numbers]:
        """Return the positions of records with the same time as the one at `at`, by lane, its own lane included."""
        same = np.flatnonzero(self.times_ms == self.times_ms[at])
        return {int(lane): same[self.lanes[same] == lane] for lane in np.unique(self.lanes[same])}


def in_order(times_ms: Numbers, topics: Numbers, partitions: Numbers, offsets: Numbers, rows: Numbers) -> Ordered:
    """Sort one batch's records into the app's order; `topics` are topic numbers, `rows` row numbers in messages."""
    by_place = np.lexsort((rows, offsets, partitions, topics))
    begins = np.append(True, (np.diff(topics[by_place]) != 0) | (np.diff(partitions[by_place]) != 0))[: len(by_place)]
    lanes = np.empty(len(by_place), np.int64)
    latest = np.empty(len(by_place), np.int64)
    starts = [*np.flatnonzero(begins).tolist(), len(by_place)]
    for lane, (start, end) in enumerate(pairwise(starts)):
        positions = by_place[start:end]
        lanes[positions] = lane
        latest[positions] = np.maximum.accumulate(times_ms[positions])
    order = np.lexsort((rows, offsets, lanes, latest))
    return Ordered(order, latest[order], lanes[order])
