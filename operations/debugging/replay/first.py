"""The first bad record of a batch: of all prefixes in the app's order, the shortest bad one ends with it.

The order is that of the commits with which records of users' topics came into the app, and in such a batch that of
`order.py`. What is tried is the bad moment as it would be with some of these records only, through all stages between:
first whole batches, those of one stage after those of the stage below it; then records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....pipeline.batch.rerun import Numbers
from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.verdict import Address, NoRecord
from ....state.failing import first_turn, last_turn, smallest, turning_point
from .batches import InputPart
from .order import Ordered, in_order
from .what_if import BadBatch, Chosen, Item, by_part, may_emit, no_record, whole

_MOST = 20
"""Replays, after which nobody asks any more which of the records before a guilty one are needed."""
_SCANNED = 8
"""Of so many records each prefix is tried, so that the first is found also where what is bad does not stay so."""
_LANES = 16
"""Partitions whose records of the same time are tried in another order."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The records of some parts in the app's order. Arrays have one element a record."""

    parts: tuple[InputPart, ...]
    of: Numbers
    """Of which part each is."""
    numbers: Numbers
    """Its number in the part's batch."""
    order: Ordered | None
    """What the order rests upon, where all are records of users' topics that one batch read; None elsewhere."""

    @classmethod
    def of_parts(cls, parts: Sequence[InputPart]) -> Queue:
        """All records of these parts; the batches are in their order."""
        of, numbers, order = [np.empty(0, np.int64)], [np.empty(0, np.int64)], None
        for batch in dict.fromkeys(part.batch for part in parts):
            mine = [at for at, part in enumerate(parts) if part.batch is batch]
            some = np.concatenate([parts[at].numbers for at in mine])
            partition, offset, row, time = (batch.column(name)[some] for name in batch.place.column_names[:4])
            order = in_order(time, batch.inputs[some], partition, offset, row)
            of.append(np.repeat(mine, [len(parts[at].numbers) for at in mine])[order.order])
            numbers.append(some[order.order])
        is_one = len(of) == 2 and not any(part.upstream for part in parts)
        return cls(tuple(parts), np.concatenate(of), np.concatenate(numbers), order if is_one else None)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Item:
        return self.parts[int(self.of[place])], int(self.numbers[place])

    def chosen(self, places: Numbers) -> dict[InputPart, Numbers]:
        """The records at some places."""
        of, numbers = self.of[places], self.numbers[places]
        return {part: np.sort(numbers[of == at]) for at, part in enumerate(self.parts) if (of == at).any()}

    def places(self, some: Mapping[InputPart, Numbers]) -> Numbers:
        """Where records are, ascending."""
        found = [np.empty(0, np.int64)]
        for at, part in enumerate(self.parts):
            if part in some:
                found.append(np.flatnonzero((self.of == at) & np.isin(self.numbers, some[part])))
        return np.sort(np.concatenate(found))


@dataclass
class Level:
    """The batches of one stage on the way up, or of several whose records interleave."""

    parts: tuple[InputPart, ...]
    """Of the batch below, those with whose records the bad moment turns bad."""
    replays: int
    """How many choices were tried to find them."""


@dataclass
class FirstRecord:
    """The record, and what is known of it."""

    part: InputPart
    number: int
    """Its number in the part's batch."""
    before: Chosen
    """All records that come before it, in the app's order."""
    until: Chosen
    """And with it."""
    earlier: list[Item]
    """Of those before it, the ones that may have to do with it."""
    candidates: Chosen
    """The records of its batch that may have to do with what is bad."""
    proved: bool
    """Whether replays of all records before it, and of these and the record, show that it turns bad with it."""
    alone: bool = True
    needs: list[Item] | None = None
    """Where it is not bad alone, the records before it with which it is, of which none can be left out; None where
    that is not known."""
    tied: tuple[Address, ...] = ()


@dataclass
class RecordSearch(BadBatch):
    """The search for the record behind one bad commit."""

    last: bool = False
    """Whether what is looked for is the last record that changed something; else the first that is bad."""
    levels: list[Level] = field(default_factory=list)
    reason: str = ""
    """Why the batches further up were not replayed; empty where they were."""
    nothing: NoRecord | None = None
    """What made it bad with none of the records, where it did."""
    fixed: dict[InputPart, Numbers] = field(default_factory=dict)
    """The parts that come before those in which the record is, whole."""

    def run(self) -> FirstRecord | None:
        """The record; None where it is bad with none of them (`nothing`). Raises as replays do."""
        parts = self.root.parts
        if (nothing := self.with_none()) is not None:
            self.nothing = nothing
            return None
        while True:
            parts = self._descend(parts)
            above = [part for part in parts if part.upstream]
            if not above:
                break
            try:
                senders = [*dict.fromkeys(self.batches.expand(part) for part in above)]
            except Exception as error:
                self.reason = reason_of(error)
                break
            if any(may_emit(sender) for sender in senders) and self.is_bad(self.fixed):
                self.nothing = no_record(next(filter(may_emit, senders)))
                return None
            parts = tuple(part for part in parts if not part.upstream) + tuple(p for s in senders for p in s.parts)
        return self._record(parts)

    def _descend(self, parts: tuple[InputPart, ...]) -> tuple[InputPart, ...]:
        """Of these parts, those with which it turns bad. Those before them are `fixed`."""
        begun, clusters = self.replays, self.batches.clusters(parts)

        def is_bad(count: int) -> bool:
            return self.is_bad(self.fixed | whole(part for cluster in clusters[:count] for part in cluster))

        alone = [self.reach(part, self.alone) for part in parts]
        bad = {part for part, some in zip(parts, alone, strict=True) if some is not None and len(some)}
        at = self._turn(len(clusters), is_bad, [at for at, cluster in enumerate(clusters) if bad & {*cluster}])
        self.fixed |= whole(part for cluster in clusters[:at] for part in cluster)
        self.levels.append(Level(tuple(clusters[at]), self.replays - begun))
        return tuple(clusters[at])

    def _turn(self, count: int, is_bad: Callable[[int], bool], suspects: Sequence[int]) -> int:
        """With which of so many items it turns bad; suspects are those with a record that is bad by itself."""
        return last_turn(count, is_bad) if self.last else first_turn(count, is_bad, scan=_SCANNED, suspects=suspects)

    def _reached(self, queue: Queue, wanted: Numbers | None) -> Numbers | None:
        """Where in a queue the records are of which the `wanted` ones of the bad batch are made; None if not known."""
        found = {part: self.reach(part, wanted) for part in queue.parts}
        known = {part: some for part, some in found.items() if some is not None}
        return queue.places(known) if len(known) == len(found) else None

    def _record(self, parts: tuple[InputPart, ...]) -> FirstRecord:
        begun, queue = self.replays, Queue.of_parts(parts)
        everything = np.arange(len(queue))
        reached = self._reached(queue, self.relevant)
        candidates = everything if reached is None or not len(reached) else reached
        alone = self._reached(queue, self.alone)

        def turn(places: Numbers, only: Numbers | None) -> int:
            suspects = np.searchsorted(places, np.intersect1d(places, alone)).tolist() if alone is not None else ()
            return int(
                places[self._turn(len(places), lambda count: self.is_bad(chosen(places[:count]), only), suspects)]
            )

        def chosen(places: Numbers) -> Chosen:
            return self.fixed | queue.chosen(places)

        at = -1
        if len(candidates) < len(queue) and self.is_bad(chosen(candidates), self.relevant):
            at = turn(candidates, self.relevant)
        if at < 0 or not self.is_bad(chosen(everything[: at + 1])) or self.is_bad(chosen(everything[:at])):
            # Which records have to do with it does not show in keys.
            candidates = everything
            at = turn(everything, None)
        part, number = queue[at]
        before, until = (chosen(everything[:end]) for end in (at, at + 1))
        earlier = [queue[place] for place in candidates[candidates < at].tolist()]
        found = FirstRecord(part, number, before, until, earlier, queue.chosen(candidates), proved=not self.reason)
        self.levels[-1].replays += self.replays - begun
        begun = self.replays
        if not self.last:
            self._alone(found)
            if queue.order is not None and found.proved:
                found.tied = tuple(self._tied(queue, queue.order, at))
        # What is asked for that is no part of the search.
        self.replays = begun
        return found

    def _alone(self, found: FirstRecord) -> None:
        """Ask if it is bad without those before it, and else with which of them."""
        record = (found.part, found.number)
        if not found.earlier and not any(len(numbers) for numbers in self.fixed.values()):
            return
        found.alone = self.is_bad(by_part([record]))
        if not found.alone:
            reached = ((part, self.reach(part, self.relevant)) for part in self.fixed)
            fixed = [
                (part, number) for part, some in reached for number in (part.numbers if some is None else some).tolist()
            ]
            items = [*fixed, *found.earlier]

            def is_bad(some: Sequence[Item]) -> bool:
                return self.is_bad(by_part([*some, record]))

            if is_bad(items):
                needed, is_smallest = smallest(items, is_bad, most=_MOST)
                found.needs = list(needed) if is_smallest else None

    def _tied(self, queue: Queue, order: Ordered, at: int) -> Iterator[Address]:
        """The records of other partitions that may have been the first, had theirs been read before, or after."""
        lanes = order.tied(at)
        earlier = np.flatnonzero(order.times_ms < order.times_ms[at])
        for lane in [lane for lane in lanes if lane != order.lanes[at]][:_LANES]:
            mine = lanes[lane]
            rest = np.concatenate([places for other, places in lanes.items() if other != lane])
            for first in (earlier, np.append(earlier, rest)):

                def is_bad(count: int, first: Numbers = first, mine: Numbers = mine) -> bool:
                    return self.is_bad(self.fixed | queue.chosen(np.append(first, mine[:count])))

                if is_bad(0):
                    break
                if is_bad(len(mine)):
                    part, number = queue[int(mine[turning_point(len(mine), is_bad)])]
                    yield part.batch.address(number)
                    break
