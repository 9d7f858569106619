"""Search for the first bad record of a batch: the last record of the shortest prefix of records that is bad.

Records are in the order in which the app read them from users' topics: by commit, and within a batch by `sort_records`.
Each test replays all stages from the users' topics to the bad moment with only some of these records, and evaluates the
moment. Whole batches are tried first, stage by stage upstream, then single records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ....pipeline.batch.rerun import RecordNumbers
from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.verdict import RecordlessBatch, RecordLocation
from ....state.failing import find_early_turning_point, find_late_turning_point, find_turning_point, minimize_failing
from .batches import InputPart
from .what_if import (
    BadBatch,
    ChosenRecords,
    PartRecord,
    all_records_of,
    effects_without_records,
    group_by_part,
    has_due_rows,
)

_MAX_NEEDS_REPLAYS = 20
"""Maximum number of replays that search for `FirstRecord.needs`."""
_MAX_SCANNED_ITEMS = 8
"""Number of items up to which every prefix is tried instead of a binary search.

Unlike a binary search, this finds the first bad item even if a longer prefix is good.
"""
_LANES = 16
"""Maximum number of partitions for which other orders of records with equal times are tried."""


@dataclass(frozen=True, slots=True)
class RecordQueue:
    """Records from several inputs and partitions, in the order in which the app read them.

    Each array has one element per record.
    """

    parts: tuple[InputPart, ...]
    part_indexes: RecordNumbers
    numbers: RecordNumbers
    order: RecordOrder | None
    """Order of the records, with their sort times.

    None if several batches read the records, or if a record comes from a repartition topic.
    """

    @classmethod
    def from_parts(cls, parts: Sequence[InputPart]) -> RecordQueue:
        """Return all records of `parts`. The parts' batches must be in the order in which the app read records."""
        of, numbers, order = [np.empty(0, np.int64)], [np.empty(0, np.int64)], None
        for batch in dict.fromkeys(part.batch for part in parts):
            indexes = [at for at, part in enumerate(parts) if part.batch is batch]
            batch_numbers = np.concatenate([parts[at].numbers for at in indexes])
            partition, offset, row, time = (batch.column(name)[batch_numbers] for name in batch.origin.column_names[:4])
            order = sort_records(time, batch.inputs[batch_numbers], partition, offset, row)
            of.append(np.repeat(indexes, [len(parts[at].numbers) for at in indexes])[order.order])
            numbers.append(batch_numbers[order.order])
        is_one_batch = len(of) == 2 and not any(part.upstream for part in parts)
        return cls(tuple(parts), np.concatenate(of), np.concatenate(numbers), order if is_one_batch else None)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, position: int) -> PartRecord:
        return self.parts[int(self.part_indexes[position])], int(self.numbers[position])

    def numbers_by_part(self, positions: RecordNumbers) -> dict[InputPart, RecordNumbers]:
        of, numbers = self.part_indexes[positions], self.numbers[positions]
        return {part: np.sort(numbers[of == at]) for at, part in enumerate(self.parts) if (of == at).any()}

    def positions(self, chosen: Mapping[InputPart, RecordNumbers]) -> RecordNumbers:
        parts_found = [np.empty(0, np.int64)]
        for at, part in enumerate(self.parts):
            if part in chosen:
                parts_found.append(np.flatnonzero((self.part_indexes == at) & np.isin(self.numbers, chosen[part])))
        return np.sort(np.concatenate(parts_found))


@dataclass
class Level:
    """Step of the search upstream: batches of one stage, or of several stages whose source records interleave."""

    parts: tuple[InputPart, ...]
    replays: int


@dataclass
class FirstRecord:
    """The first bad record, and findings about it."""

    part: InputPart
    number: int
    records_before: ChosenRecords
    records_until: ChosenRecords
    earlier: list[PartRecord]
    candidates: ChosenRecords
    proved: bool
    """True if replays show that the moment is bad with this record and good without this record.

    Both replays include all earlier records of the app.
    """
    alone: bool = True
    needs: list[PartRecord] | None = None
    """Smallest set of earlier records that makes the moment bad together with this record.

    None if the set is not known, or if the record is bad alone.
    """
    tied: tuple[RecordLocation, ...] = ()


@dataclass
class RecordSearch(BadBatch):
    """Search for the record that caused one bad commit."""

    find_last: bool = False
    """True to find the last record that changed the committed rows; False to find the first bad record."""
    levels: list[Level] = field(default_factory=list)
    reason: str = ""
    no_record_finding: RecordlessBatch | None = None
    """Expired or due rows that make the moment bad even without any record; else None."""
    fixed: dict[InputPart, RecordNumbers] = field(default_factory=dict)
    """Parts that the app read before the suspected parts. Every replay of the search includes all their records."""

    def run(self) -> FirstRecord | None:
        """Return the first bad record; None if the moment is bad even without any record (`no_record_finding`).

        Raises the errors of replays.
        """
        parts = self.root.parts
        if (nothing := self.find_effects_without_records()) is not None:
            self.no_record_finding = nothing
            return None
        while True:
            parts = self._descend(parts)
            above = [part for part in parts if part.upstream]
            if not above:
                break
            try:
                senders = [*dict.fromkeys(self.batches.replay_sender(part) for part in above)]
            except Exception as error:
                self.reason = reason_of(error)
                break
            if any(has_due_rows(sender) for sender in senders) and self.is_bad(self.fixed):
                self.no_record_finding = effects_without_records(next(filter(has_due_rows, senders)))
                return None
            parts = tuple(part for part in parts if not part.upstream) + tuple(p for s in senders for p in s.parts)
        return self._find_record_in(parts)

    def _descend(self, parts: tuple[InputPart, ...]) -> tuple[InputPart, ...]:
        replays_before, clusters = self.replays, self.batches.cluster_parts(parts)

        def is_bad(count: int) -> bool:
            return self.is_bad(self.fixed | all_records_of(part for cluster in clusters[:count] for part in cluster))

        alone = [self.records_leading_to(part, self.records_bad_alone) for part in parts]
        bad = {part for part, some in zip(parts, alone, strict=True) if some is not None and len(some)}
        at = self._find_turn(len(clusters), is_bad, [at for at, cluster in enumerate(clusters) if bad & {*cluster}])
        self.fixed |= all_records_of(part for cluster in clusters[:at] for part in cluster)
        self.levels.append(Level(tuple(clusters[at]), self.replays - replays_before))
        return tuple(clusters[at])

    def _find_turn(self, count: int, is_bad: Callable[[int], bool], suspects: Sequence[int]) -> int:
        return (
            find_late_turning_point(count, is_bad)
            if self.find_last
            else find_early_turning_point(count, is_bad, scan=_MAX_SCANNED_ITEMS, suspects=suspects)
        )

    def _reached_positions(self, queue: RecordQueue, targets: RecordNumbers | None) -> RecordNumbers | None:
        reached = {part: self.records_leading_to(part, targets) for part in queue.parts}
        known_parts = {part: some for part, some in reached.items() if some is not None}
        return queue.positions(known_parts) if len(known_parts) == len(reached) else None

    def _find_record_in(self, parts: tuple[InputPart, ...]) -> FirstRecord:
        replays_before, queue = self.replays, RecordQueue.from_parts(parts)
        everything = np.arange(len(queue))
        reached = self._reached_positions(queue, self.relevant_records)
        candidates = everything if reached is None or not len(reached) else reached
        alone = self._reached_positions(queue, self.records_bad_alone)

        def turn(positions: RecordNumbers, only: RecordNumbers | None) -> int:
            bad = np.intersect1d(positions, alone) if alone is not None else positions[:0]
            suspects = np.searchsorted(positions, bad).tolist()
            at = self._find_turn(len(positions), lambda count: self.is_bad(chosen(positions[:count]), only), suspects)
            return int(positions[at])

        def chosen(positions: RecordNumbers) -> ChosenRecords:
            return self.fixed | queue.numbers_by_part(positions)

        at = -1
        if len(candidates) < len(queue) and self.is_bad(chosen(candidates), self.relevant_records):
            at = turn(candidates, self.relevant_records)
        if at < 0 or not self.is_bad(chosen(everything[: at + 1])) or self.is_bad(chosen(everything[:at])):
            # Keys do not show which records are involved.
            candidates = everything
            at = turn(everything, None)
        part, number = queue[at]
        before_record, until = (chosen(everything[:end]) for end in (at, at + 1))
        earlier = [queue[place] for place in candidates[candidates < at].tolist()]
        record = FirstRecord(
            part, number, before_record, until, earlier, queue.numbers_by_part(candidates), proved=not self.reason
        )
        self.levels[-1].replays += self.replays - replays_before
        replays_before = self.replays
        if not self.find_last:
            self._test_alone(record)
            if queue.order is not None and record.proved:
                record.tied = tuple(self._find_tied(queue, queue.order, at))
        # Replays for extra findings do not count as part of the search.
        self.replays = replays_before
        return record

    def _test_alone(self, result: FirstRecord) -> None:
        record = (result.part, result.number)
        if not result.earlier and not any(len(numbers) for numbers in self.fixed.values()):
            return
        result.alone = self.is_bad(group_by_part([record]))
        if not result.alone:
            fixed = [(part, number) for part in self.fixed for number in self.candidates_of(part).tolist()]
            items = [*fixed, *result.earlier]

            def is_bad(some: Sequence[PartRecord]) -> bool:
                return self.is_bad(group_by_part([*some, record]))

            if is_bad(items):
                needed, is_smallest = minimize_failing(items, is_bad, max_tries=_MAX_NEEDS_REPLAYS)
                result.needs = list(needed) if is_smallest else None

    def _find_tied(self, queue: RecordQueue, order: RecordOrder, at: int) -> Iterator[RecordLocation]:
        lanes = order.tied_positions(at)
        earlier = np.flatnonzero(order.times_ms < order.times_ms[at])
        for lane in [lane for lane in lanes if lane != order.lanes[at]][:_LANES]:
            lane_positions = lanes[lane]
            other_positions = np.concatenate([positions for other, positions in lanes.items() if other != lane])
            for first in (earlier, np.append(earlier, other_positions)):

                def is_bad(
                    count: int, first: RecordNumbers = first, lane_positions: RecordNumbers = lane_positions
                ) -> bool:
                    return self.is_bad(self.fixed | queue.numbers_by_part(np.append(first, lane_positions[:count])))

                if is_bad(0):
                    break
                if is_bad(len(lane_positions)):
                    part, number = queue[int(lane_positions[find_turning_point(len(lane_positions), is_bad)])]
                    yield part.batch.address(number)
                    break


@dataclass(frozen=True, slots=True)
class RecordOrder:
    """Records in the order in which the app read them. Each array has one element per record."""

    order: RecordNumbers
    times_ms: RecordNumbers
    """Sort time of each record in milliseconds: the latest time in its partition up to that record."""
    lanes: RecordNumbers
    """Lane of each record: a number that stands for its topic partition.

    Records with equal times in different lanes have no order.
    """

    def tied_positions(self, at: int) -> dict[int, RecordNumbers]:
        """Return the positions of all records with the same sort time as the record at `at`, by lane."""
        same = np.flatnonzero(self.times_ms == self.times_ms[at])
        return {int(lane): same[self.lanes[same] == lane] for lane in np.unique(self.lanes[same])}


def sort_records(
    times_ms: RecordNumbers,
    topics: RecordNumbers,
    partitions: RecordNumbers,
    offsets: RecordNumbers,
    rows: RecordNumbers,
) -> RecordOrder:
    """Sort the records of one batch into the order in which the app read them.

    `topics` has the topic number of each record, and `rows` the row number within its message.
    """
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
    return RecordOrder(order, latest[order], lanes[order])
