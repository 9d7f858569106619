"""The first bad record of a batch: of all prefixes in the app's order, the shortest bad one ends with it.

The order is that of the commits with which records of users' topics came into the app, and in such a batch that of
`order.py`. What is tried is the bad moment as it would be with some of these records only, through all stages between:
first whole batches, those of one stage after those of the stage below it; then records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ...fold.culprit import first_turn, last_turn, smallest, turning_point
from ...search.verdict import Address, NoRecord
from ..batch.rerun import Numbers
from ..spark.user_errors import reason_of
from .batches import Part
from .order import Ordered, in_order
from .what_if import BadBatch, Chosen, Item, by_part, may_emit, no_record, whole

_MOST = 20
"""Replays, after which nobody asks any more which of the records before a guilty one are needed."""
_SCANNED = 8
"""Of so many records each prefix is tried, so that the first is found also where what is bad does not stay so."""
_LANES = 16
"""Partitions whose records of the same time are tried in another order."""


@dataclass
class Level:
    """The batches of one stage on the way up, or of several whose records interleave."""

    parts: tuple[Part, ...]
    """Of the batch below, those with whose records the bad moment turns bad."""
    replays: int
    """How many choices were tried to find them."""


@dataclass
class Found:
    """The record, and what is known of it."""

    part: Part
    number: int
    """Its number in the part's batch."""
    before: Chosen
    """All records that come before it, in the app's order."""
    until: Chosen
    """And with it."""
    earlier: list[Item]
    """Of those before it, the ones that may have to do with it."""
    candidates: int
    """How many records may be it: of its batch, those that may have to do with what is bad."""
    proved: bool
    """Whether replays of all records before it, and of these and the record, show that it turns bad with it."""
    alone: bool = True
    needs: list[Item] | None = None
    """Where it is not bad alone, the records before it with which it is, of which none can be left out; None where
    that is not known."""
    tied: tuple[Address, ...] = ()


@dataclass
class Search(BadBatch):
    """The search for the record behind one bad commit."""

    last: bool = False
    """Whether what is looked for is the last record that changed something; else the first that is bad."""
    levels: list[Level] = field(default_factory=list)
    reason: str = ""
    """Why the batches further up were not replayed; empty where they were."""
    nothing: NoRecord | None = None
    """What made it bad with none of the records, where it did."""
    fixed: dict[Part, Numbers] = field(default_factory=dict)
    """The parts that come before those in which the record is, whole."""

    def run(self) -> Found | None:
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

    def _descend(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Of these parts, those with which it turns bad. Those before them are `fixed`."""
        begun, clusters = self.replays, self.batches.clusters(parts)

        def is_bad(count: int) -> bool:
            return self.is_bad(self.fixed | whole(part for cluster in clusters[:count] for part in cluster))

        at = last_turn(len(clusters), is_bad) if self.last else turning_point(len(clusters), is_bad)
        self.fixed |= whole(part for cluster in clusters[:at] for part in cluster)
        self.levels.append(Level(tuple(clusters[at]), self.replays - begun))
        return tuple(clusters[at])

    def _record(self, parts: tuple[Part, ...]) -> Found:
        begun = self.replays
        items, order = _ordered(parts)
        relevant = [self.reach(part) for part in parts]
        narrow = self.relevant is not None and all(some is not None for some in relevant)
        if narrow:
            of = {part: set(some.tolist()) for part, some in zip(parts, relevant, strict=True) if some is not None}
            candidates = [at for at, (part, number) in enumerate(items) if number in of[part]]
        if not narrow or not candidates:
            candidates = [*range(len(items))]

        def chosen(places: Iterable[int]) -> Chosen:
            return self.fixed | by_part(items[place] for place in places)

        def turn(count: int, is_bad: Callable[[int], bool]) -> int:
            return last_turn(count, is_bad) if self.last else first_turn(count, is_bad, scan=_SCANNED)

        only = self.relevant if narrow else None
        at = len(items)
        if len(candidates) < len(items) and self.is_bad(chosen(candidates), only):
            found = turn(len(candidates), lambda count: self.is_bad(chosen(candidates[:count]), only))
            at = candidates[found]
        if at == len(items) or not self._turns(chosen(range(at)), chosen(range(at + 1))):
            # What records have to do with it does not show in their keys.
            candidates = [*range(len(items))]
            at = turn(len(items), lambda count: self.is_bad(chosen(range(count))))
        before, until = chosen(range(at)), chosen(range(at + 1))
        part, number = items[at]
        earlier = [items[place] for place in candidates if place < at]
        proved = not self.reason
        found_ = Found(part, number, before, until, earlier, len(candidates), proved)
        self.levels[-1].replays += self.replays - begun
        if not self.last:
            self._alone(found_)
            found_.tied = self._tied(items, order, at, chosen) if order is not None and proved else ()
        return found_

    def in_order(self, items: Iterable[Item]) -> list[Item]:
        """Records of one batch in the app's order."""
        chosen = by_part(items)
        every, _ = _ordered(tuple(chosen))
        return [(part, number) for part, number in every if number in chosen[part]]

    def _turns(self, before: Chosen, until: Chosen) -> bool:
        return self.is_bad(until) and not self.is_bad(before)

    def _alone(self, found: Found) -> None:
        """Whether it is bad without those before it, and else with which of them."""
        record = (found.part, found.number)
        if not found.earlier and not any(len(numbers) for numbers in self.fixed.values()):
            return
        begun = self.replays
        found.alone = self.is_bad(by_part([record]))
        if not found.alone:
            reached = ((part, self.reach(part)) for part in self.fixed)
            fixed = [
                (part, number) for part, some in reached for number in (part.numbers if some is None else some).tolist()
            ]
            items = [*fixed, *found.earlier]
            needed, is_smallest = smallest(items, lambda some: self.is_bad(by_part([*some, record])), most=_MOST)
            found.needs = list(needed) if is_smallest else None
        # What is asked for that is no part of the search.
        self.replays = begun

    def _tied(
        self, items: list[Item], order: Ordered, at: int, chosen: Callable[[Iterable[int]], Chosen]
    ) -> tuple[Address, ...]:
        """The records of other partitions that may have been the first, had theirs been read before, or after."""
        lanes = order.tied(at)
        others = [lane for lane in lanes if lane != order.lanes[at]][:_LANES]
        if not others:
            return ()
        begun, tied = self.replays, list[Address]()
        earlier = np.flatnonzero(order.times_ms < order.times_ms[at]).tolist()
        for lane in others:
            mine = lanes[lane].tolist()
            rest = [place for other in lanes if other != lane for place in lanes[other].tolist()]
            for first in (earlier, [*earlier, *rest]):
                if self.is_bad(chosen(first)):
                    break

                def is_bad(count: int, first: list[int] = first, mine: list[int] = mine) -> bool:
                    return self.is_bad(chosen([*first, *mine[:count]]))

                if is_bad(len(mine)):
                    part, number = items[mine[turning_point(len(mine), is_bad)]]
                    tied.append(part.batch.address(number))
                    break
        self.replays = begun
        return tuple(tied)


def _ordered(parts: tuple[Part, ...]) -> tuple[list[Item], Ordered | None]:
    """All records of the parts in the app's order, which is told where they are of one batch and of users' topics."""
    items = list[Item]()
    order = None
    for batch in dict.fromkeys(part.batch for part in parts):
        mine = [part for part in parts if part.batch is batch]
        numbers = np.concatenate([part.numbers for part in mine])
        of = np.repeat(np.arange(len(mine)), [len(part.numbers) for part in mine])
        partition, offset, row, time = (batch.column(name)[numbers] for name in batch.place.column_names[:4])
        order = in_order(time, batch.inputs[numbers], partition, offset, row)
        items += [(mine[of[at]], int(numbers[at])) for at in order.order.tolist()]
    is_one = len({part.batch for part in parts}) == 1 and not any(part.upstream for part in parts)
    return items, order if is_one else None
