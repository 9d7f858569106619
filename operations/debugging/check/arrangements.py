"""How the records of a past batch may come otherwise, as nothing promises that they come as they did: without Spark.

Kept is what is promised. Records of one partition of a user's topic come in their order; rows of a repartition topic in
the order of the versions that sent them, and of one version in any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
"""Of an input, rows of its records by their places there, in the order in which they come."""
Batch = Mapping[str, Rows]
"""What one batch has of each input."""


@dataclass(frozen=True, slots=True)
class Came:
    """Where the records of one input come from, in the order in which they were read."""

    partitions: npt.NDArray[np.int64]
    """int64[records], each one's Kafka partition; those of a partition are neighbours."""
    versions: npt.NDArray[np.int64]
    """int64[records], the version upstream that sent it; 0 for a user's topic."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a run has the records of a version."""

    batches: tuple[Batch, ...]
    partitions: int = 1
    """The state partitions of the table."""
    apart: bool = False
    """Whether Spark has the records in many small tasks and batches of Arrow."""
    elsewhere: bool = False
    """Whether Python functions run in other processes than those of the other runs."""


def as_read(inputs: Mapping[str, Came]) -> Batch:
    """All of them in one batch, as they were read."""
    return {name: np.arange(len(came.partitions)) for name, came in inputs.items()}


def in_batches(inputs: Mapping[str, Came], random: np.random.Generator) -> tuple[Batch, ...]:
    """All of them in two or three batches that end anywhere; in one where there are too few for two."""
    count = int(random.integers(2, 4))
    number = {name: np.empty(len(came.partitions), np.int64) for name, came in inputs.items()}
    spans = [(name, *span) for name, came in inputs.items() for span in _spans(came.partitions)]
    for name, first, last in spans:
        ends = np.sort(random.integers(0, last - first + 1, count - 1))
        number[name][first:last] = np.searchsorted(ends, np.arange(last - first), side="right")
    if spans and len({*np.concatenate([*number.values()]).tolist()}) < 2:
        # All came together: then the last stretch is by itself, or its second half.
        for mine in number.values():
            mine[:] = 0
        name, first, last = spans[-1]
        number[name][first if len(spans) > 1 else (first + last) // 2 : last] = 1
    return _batches(number)


def last_first(inputs: Mapping[str, Came]) -> tuple[Batch, ...]:
    """All of them in up to three batches of whole partitions, the last ones first; in one where there is one partition.

    So of two records of different partitions the later one comes in an earlier batch, unless they come in the same.
    """
    spans = [(name, *span) for name, came in inputs.items() for span in _spans(came.partitions)]
    number = {name: np.zeros(len(came.partitions), np.int64) for name, came in inputs.items()}
    for at, (name, first, last) in enumerate(reversed(spans)):
        number[name][first:last] = 3 * at // max(len(spans), 3)
    return _batches(number)


def _batches(number: Mapping[str, npt.NDArray[np.int64]]) -> tuple[Batch, ...]:
    """Those that have records, in order; `number` says of each record in which batch it comes."""
    count = max((int(mine.max(initial=-1)) for mine in number.values()), default=-1) + 1
    found = ({name: np.flatnonzero(mine == at) for name, mine in number.items()} for at in range(count))
    return tuple(batch for batch in found if any(map(len, batch.values())))


def in_another_order(inputs: Mapping[str, Came]) -> Batch:
    """All of them in one batch, with what has no order the other way round: partitions, and rows of one version."""
    found = {}
    for name, came in inputs.items():
        parts = []
        for first, last in reversed(_spans(came.partitions)):
            mine = np.arange(first, last)
            versions = came.versions[first:last]
            # Of a user's topic, each record is by itself: they stay as they are.
            parts.append(mine if not versions.any() else mine[np.lexsort((-mine, versions))])
        found[name] = np.concatenate([np.empty(0, np.int64), *parts])
    return found


def _spans(values: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Where each stretch of equal values begins and ends."""
    edges = np.flatnonzero(np.diff(values)) + 1
    return [(int(first), int(last)) for first, last in zip([0, *edges], [*edges, len(values)], strict=True) if last]
