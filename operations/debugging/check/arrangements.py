"""Alternative arrangements of a past batch's records (order and batch boundaries), computed without Spark.

Guaranteed orders are kept. Records of one partition of a user's topic keep their order; rows of a repartition topic
keep the order of the versions that sent them, and have no order within one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RowIndexes = npt.NDArray[np.int64]
"""Indexes of one input's records, in the order in which a batch receives them."""
BatchRows = Mapping[str, RowIndexes]
"""Indexes of the records of one batch, by input."""


@dataclass(frozen=True, slots=True)
class RecordOrigins:
    """Origins of one input's records; each array has one element per record, in the order in which Kafka was read."""

    partitions: npt.NDArray[np.int64]
    """int64[records], Kafka partition of each record; records of one partition are adjacent."""
    versions: npt.NDArray[np.int64]
    """int64[records], upstream version that sent each record; 0 for a user's topic."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Split of a version's records into batches, and Spark settings for a run."""

    batches: tuple[BatchRows, ...]
    partitions: int = 1
    """Number of state partitions of the table."""
    in_small_tasks: bool = False
    """True to split the records over many small tasks and Arrow batches."""
    in_new_processes: bool = False
    """True to run Python functions in processes that no other run uses."""


def original_order(inputs: Mapping[str, RecordOrigins]) -> BatchRows:
    """Return one batch of all records, in the order in which they were read."""
    return {name: np.arange(len(came.partitions)) for name, came in inputs.items()}


def random_batches(inputs: Mapping[str, RecordOrigins], random: np.random.Generator) -> tuple[BatchRows, ...]:
    """Return two or three batches that end at random positions; one batch if there are too few records."""
    count = int(random.integers(2, 4))
    number = {name: np.empty(len(came.partitions), np.int64) for name, came in inputs.items()}
    spans = [(name, *span) for name, came in inputs.items() for span in _equal_spans(came.partitions)]
    for name, first, last in spans:
        ends = np.sort(random.integers(0, last - first + 1, count - 1))
        number[name][first:last] = np.searchsorted(ends, np.arange(last - first), side="right")
    if spans and len({*np.concatenate([*number.values()]).tolist()}) < 2:
        # All records fell into one batch: move the last partition, or its second half, to a second one.
        for numbers in number.values():
            numbers[:] = 0
        name, first, last = spans[-1]
        number[name][first if len(spans) > 1 else (first + last) // 2 : last] = 1
    return _group_into_batches(number)


def last_partitions_first(inputs: Mapping[str, RecordOrigins]) -> tuple[BatchRows, ...]:
    """Return up to three batches of whole partitions, the last partitions first.

    With one partition, one batch is returned. The batches receive the partitions in descending order.
    """
    spans = [(name, *span) for name, came in inputs.items() for span in _equal_spans(came.partitions)]
    number = {name: np.zeros(len(came.partitions), np.int64) for name, came in inputs.items()}
    for at, (name, first, last) in enumerate(reversed(spans)):
        number[name][first:last] = 3 * at // max(len(spans), 3)
    return _group_into_batches(number)


def _group_into_batches(batch_numbers: Mapping[str, npt.NDArray[np.int64]]) -> tuple[BatchRows, ...]:
    count = max((int(numbers.max(initial=-1)) for numbers in batch_numbers.values()), default=-1) + 1
    batches = ({name: np.flatnonzero(numbers == at) for name, numbers in batch_numbers.items()} for at in range(count))
    return tuple(batch for batch in batches if any(map(len, batch.values())))


def reversed_order(inputs: Mapping[str, RecordOrigins]) -> BatchRows:
    """Return one batch of all records, with the partitions in reverse order.

    Rows that one version sent to a repartition topic are in reverse order as well.
    """
    batch = {}
    for name, came in inputs.items():
        parts = []
        for first, last in reversed(_equal_spans(came.partitions)):
            rows = np.arange(first, last)
            versions = came.versions[first:last]
            # Records of a user's topic keep their order.
            parts.append(rows if not versions.any() else rows[np.lexsort((-rows, versions))])
        batch[name] = np.concatenate([np.empty(0, np.int64), *parts])
    return batch


def _equal_spans(values: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(values)) + 1
    return [(int(first), int(last)) for first, last in zip([0, *edges], [*edges, len(values)], strict=True) if last]
