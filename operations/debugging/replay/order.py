"""The order in which an app had the records of one batch: by offset within a partition, between partitions by time.

The times of messages need not ascend within a partition: a record is as late as the latest one up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ....pipeline.batch.rerun import Numbers


@dataclass(frozen=True, slots=True)
class Ordered:
    """Records in the app's order. Arrays have one element a record."""

    order: Numbers
    """Where each was in what was given."""
    times_ms: Numbers
    """The latest time of its partition up to it: what it is ordered by."""
    lanes: Numbers
    """Which partition of which topic it is of; records of other lanes with the same time have no order."""

    def tied(self, at: int) -> dict[int, Numbers]:
        """The places of records of the same time as the one at a place, by lane, its own included."""
        same = np.flatnonzero(self.times_ms == self.times_ms[at])
        return {int(lane): same[self.lanes[same] == lane] for lane in np.unique(self.lanes[same])}


def in_order(times_ms: Numbers, topics: Numbers, partitions: Numbers, offsets: Numbers, rows: Numbers) -> Ordered:
    """Records of one batch in the app's order; `topics` numbers them, `rows` are their rows in their messages."""
    by_place = np.lexsort((rows, offsets, partitions, topics))
    begins = np.append(True, (np.diff(topics[by_place]) != 0) | (np.diff(partitions[by_place]) != 0))[: len(by_place)]
    lanes = np.empty(len(by_place), np.int64)
    latest = np.empty(len(by_place), np.int64)
    starts = [*np.flatnonzero(begins).tolist(), len(by_place)]
    for lane, (start, end) in enumerate(pairwise(starts)):
        mine = by_place[start:end]
        lanes[mine] = lane
        latest[mine] = np.maximum.accumulate(times_ms[mine])
    order = np.lexsort((rows, offsets, lanes, latest))
    return Ordered(order, latest[order], lanes[order])
