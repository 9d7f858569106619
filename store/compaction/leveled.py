"""Leveled compaction: levels of growing size, each one sorted run of SSTs with disjoint hash ranges.

Like RocksDB (wiki pages "Leveled Compaction" and "Choose Level Compaction Files";
`db/compaction/compaction_picker_level.cc`), for each state partition on its own. Batches write level 0. When level 0
has `l0_trigger` runs, they are merged into level 1. SSTs of a level that exceeds its size are merged into the next
level, starting with those that overlap the fewest bytes there for each byte of their own (`kMinOverlappingRatio`).
Pure.

One difference keeps the law of `sst.sorted_runs`, on which all readers rely: SSTs that overlap in `_hash` do not
overlap in `_seq`. Level i is cut at fixed hashes into slots (2^d_i equal parts of the partition, as many as make an SST
of a full level about the target size), and a merge into the next level takes all SSTs that the level has in a slot. So
in each slot a level is newer than the levels below it as a whole, and not just key by key. Spooky also cuts upper
levels where the lower ones are cut (Dayan, Weiss, Dashevsky, Pan, Bortnikov, Twitto: "Spooky: Granulating LSM-Tree
Compactions Correctly", VLDB 2022); here hashes are spread evenly, so the bounds are fixed. If a rescale or another
policy left SSTs that cross slots, a compaction includes more inputs until the law holds for its result.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import ceil, log2

from ..sst.sorted_runs import bounds, depth, meeting, of_hash, overlapping, part_within, sorted_runs, touched
from ..versions.manifest import Policy, Sst
from .plan import Compaction, newest_first

_MOST_SLOTS = 1 << 30
"""Most slots of a table: slot bounds are set by the upper 32 bits of a hash."""


def pick(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> tuple[Compaction, ...]:
    """Return the compactions of the level of a state partition that needs them most; none if no level does.

    A level's score is its runs divided by `l0_trigger` for level 0, and its bytes divided by its size limit for other
    levels. The highest score of at least 1 wins. Level 0 is merged as a whole; of another level, enough SSTs to bring
    it within its limit. When the levels between 0 and the last take more than `max_space_amplification` times the bytes
    of the last, the whole partition is merged into one level.
    """
    return tuple(_Tree(partition, partitions, ssts, policy).pick())


def everything(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> Compaction:
    """Return the compaction of all SSTs that touch a state partition, into one run."""
    return _Tree(partition, partitions, ssts, policy).everything()


class _Tree:
    """The levels of one state partition."""

    def __init__(self, partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> None:
        self._partition, self._partitions = partition, partitions
        self._policy = policy
        self._low, self._high = bounds(partition, partitions)
        self._ssts = ssts
        total, self._bottom = sum(map(self._bytes, ssts)), 1
        while self._may_hold(self._bottom) < total:
            self._bottom += 1
        self._level = _levels(ssts, self._bottom + 1)

    def pick(self) -> Iterator[Compaction]:
        sizes: dict[int, int] = {}
        for sst in self._ssts:
            if level := self._level[sst]:
                sizes[level] = sizes.get(level, 0) + self._bytes(sst)
        newest = [sst for sst in self._ssts if not self._level[sst]]
        scores = {level: size / self._may_hold(level) for level, size in sizes.items()}
        scores[0] = sum(map(depth, sorted_runs(newest))) / self._policy.l0_trigger
        last = max(sizes, default=0)
        between = sum(size for level, size in sizes.items() if level < last)
        level = min(scores, key=lambda level: (-scores[level], level))
        if between > self._policy.max_space_amplification * sizes.get(last, 0):
            yield self.everything()
        elif scores[level] < 1:
            return
        elif level:
            yield from self._overflow(level, sizes[level] - self._may_hold(level))
        else:
            yield self._closed(newest, 1)

    def everything(self) -> Compaction:
        return self._compaction(frozenset(self._ssts), (self._low, self._high), self._bottom)

    def _overflow(self, level: int, excess: float) -> Iterator[Compaction]:
        """Yield merges into the next level that move at least `excess` bytes, the cheapest first."""
        inputs: set[Sst] = set()
        for sst in self._cheapest(level):
            if excess <= 0:
                return
            if sst not in inputs:
                compaction = self._closed([sst], level + 1)
                if inputs.isdisjoint(compaction.inputs):
                    inputs.update(compaction.inputs)
                    excess -= sum(self._bytes(source) for source in compaction.inputs if self._level[source] == level)
                    yield compaction

    def _cheapest(self, level: int) -> list[Sst]:
        """Return the SSTs of a level, those first whose merge rewrites the fewest bytes of the next level."""
        below = sorted((sst for sst in self._ssts if self._level[sst] == level + 1), key=lambda sst: sst.hash_min)
        begins, ends = [sst.hash_min for sst in below], [sst.hash_max for sst in below]
        cumulative = list(accumulate((sst.bytes for sst in below), initial=0))

        def cost(sst: Sst) -> tuple[float, int]:
            met = cumulative[bisect_right(begins, sst.hash_max)] - cumulative[bisect_left(ends, sst.hash_min)]
            return met / sst.bytes, sst.hash_min

        return sorted((sst for sst in self._ssts if self._level[sst] == level), key=cost)

    def _closed(self, ssts: Iterable[Sst], into: int) -> Compaction:
        """Return the smallest compaction of these SSTs into a level (or a deeper one) whose result keeps the law."""
        inputs = set(ssts)
        while True:
            top = min(self._level[sst] for sst in inputs)
            into = max(into, *(self._level[sst] for sst in inputs))
            # The inputs' hashes, within the partition, extended to the bounds of the level's slots.
            slots = self._slots(max(1, top))
            first = of_hash(max(self._low, min(sst.hash_min for sst in inputs)), slots)
            last = of_hash(min(self._high, max(sst.hash_max for sst in inputs)), slots)
            window = bounds(first, slots)[0], bounds(last, slots)[1]
            oldest, newest = min(sst.seq_min for sst in inputs), max(sst.seq_max for sst in inputs)
            more = {
                sst
                for sst in overlapping(self._ssts, *window)
                if max(1, top) <= self._level[sst] <= into or (sst.seq_min <= newest and sst.seq_max >= oldest)
            }
            if more <= inputs:
                return self._compaction(frozenset(inputs), window, into)
            inputs |= more

    def _compaction(self, inputs: frozenset[Sst], window: tuple[int, int], into: int) -> Compaction:
        oldest = min(sst.seq_min for sst in inputs)
        older = [sst for sst in overlapping(self._ssts, *window) if sst not in inputs and sst.seq_max < oldest]
        # The level may be cut at any slot bound, and must be cut around slots that have older SSTs below.
        slots = self._slots(into)
        first, last = of_hash(window[0], slots), of_hash(window[1], slots)
        below = (touched(sst, slots) for sst in older)
        guarded = {slot for met in below for slot in range(max(met.start, first), min(met.stop, last) + 1)}
        levels = {self._level[sst] for sst in inputs}
        is_of_one_level = len(levels) == 1 and 0 not in levels
        leaves_rows = not any(sst.tombstones or len(touched(sst, self._partitions)) > 1 for sst in inputs)
        return Compaction(
            self._partition,
            self._partitions,
            newest_first(inputs),
            drops_tombstones=not older,
            level=into,
            target_file_bytes=self._policy.target_file_bytes,
            window=window,
            slots=slots,
            guards=frozenset(bounds(slot, slots)[0] for slot in guarded),
            moves=not older and is_of_one_level and leaves_rows,
        )

    def _bytes(self, sst: Sst) -> int:
        return part_within(sst.bytes, sst, self._low, self._high)

    def _may_hold(self, level: int) -> float:
        return self._policy.level_base_bytes * self._policy.fanout ** (level - 1)

    def _slots(self, level: int) -> int:
        """Return the number of slots that the whole table has at a level."""
        ssts = self._may_hold(level) / self._policy.target_file_bytes
        slots = self._partitions << max(0, ceil(log2(ssts)))
        while slots > _MOST_SLOTS and slots > self._partitions:
            slots //= 2
        return slots


def _levels(ssts: Sequence[Sst], deepest: int) -> dict[Sst, int]:
    """Return the effective level of each SST: its own, if all older SSTs that it overlaps are in deeper levels, else 0.

    Universal compaction numbers levels differently. Of its SSTs, the oldest run becomes a level, and newer runs are
    merged like level 0. `deepest` limits a level number that universal compaction has counted up.
    """
    effective: dict[Sst, int] = {}
    overlapped: dict[Sst, list[Sst]] = {sst: [] for sst in ssts}
    for newer, older in meeting(ssts):
        overlapped[newer].append(older)
    for sst in sorted(ssts, key=lambda sst: sst.seq_max):
        level = min(sst.level, deepest)
        effective[sst] = level if all(effective[other] > level for other in overlapped[sst]) else 0
    return effective
