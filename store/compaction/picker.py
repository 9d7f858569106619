"""Chooses compactions by a table's compaction policy, for each hash range separately. Pure functions."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import ceil, log2

from ..sst.sorted_runs import (
    by_partition,
    estimate_within,
    max_overlap,
    overlapped_partitions,
    overlapping,
    overlapping_pairs,
    sorted_runs,
)
from ..sst.ttl import expired_suffix, has_expired_rows
from ..versions.entries.hash_ranges import hash_bounds, partition_of_hash
from ..versions.entries.ssts import Sst
from ..versions.manifest import Manifest, Policy
from .plan import Compaction, newest_first

_MAX_SLOTS = 1 << 30


def pick_for_manifest(
    manifest: Manifest, *, full: bool = False, accepts: Callable[[int], bool] = lambda _partition: True
) -> tuple[Compaction, ...]:
    """Return the compactions of a version, chosen by `pick`, or by `pick_all` with `full`; none without a table.

    `accepts` selects hash ranges for `pick_all`.
    """
    table = manifest.table
    if table is None:
        return ()
    choose = partial(pick_all, accepts=accepts) if full else pick
    return choose(manifest.ssts, table.ranges, table.compaction, clock_ms=manifest.clock_ms)


def pick(
    ssts: Iterable[Sst], partitions: int, policy: Policy, *, clock_ms: int | None = None
) -> tuple[Compaction, ...]:
    """Return the compactions that a table's policy requires, in the order of hash ranges. They share no input.

    `ssts` are a manifest's SSTs in any order, and `clock_ms` is the manifest's clock; None if no row expires. If
    expired rows have at least half of the bytes of the oldest runs, these runs are merged first (`ttl.expired_suffix`).

    Picking and merging in turns ends after finitely many rounds. Then each hash range has fewer than `l0_trigger` runs
    (universal), or fewer than `l0_trigger` runs in level 0 and every other level within its size limit (leveled).
    Raises `ValueError` for an `l0_trigger` below 2 or a `fanout` of at most 1.
    """
    if policy.l0_trigger < 2 or policy.fanout <= 1:
        raise ValueError(
            f"expected l0_trigger of at least 2 and fanout above 1, found {policy.l0_trigger} and {policy.fanout}"
        )
    choose = _pick_leveled if policy.kind == "leveled" else _pick_universal
    due = (
        compaction
        for p, own_ssts in by_partition(ssts, partitions).items()
        for compaction in _pick_expired(p, partitions, own_ssts, policy, clock_ms)
        or choose(p, partitions, own_ssts, policy)
    )
    return _disjoint(_with_clock(compaction, clock_ms) for compaction in due)


def _with_clock(compaction: Compaction, clock_ms: int | None) -> Compaction:
    has_expired = clock_ms is not None and any(has_expired_rows(sst, clock_ms) for sst in compaction.inputs)
    return replace(compaction, clock_ms=clock_ms, is_trivial_move=compaction.is_trivial_move and not has_expired)


def _pick_expired(
    partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy, clock_ms: int | None
) -> tuple[Compaction, ...]:
    if clock_ms is None or not any(sst.expiring for sst in ssts):
        return ()
    runs = sorted_runs(ssts)
    start = expired_suffix(runs, clock_ms)
    if start is None:
        return ()
    due = ssts if policy.kind == "leveled" else [sst for run in runs[start:] for sst in run]
    return (_merge_all(partition, partitions, due, policy),)


def pick_all(
    ssts: Sequence[Sst],
    partitions: int,
    policy: Policy,
    *,
    clock_ms: int | None = None,
    accepts: Callable[[int], bool] = lambda _partition: True,
) -> tuple[Compaction, ...]:
    """Return a compaction into one run for each hash range that `accepts` selects. Compactions share no input.

    Skips a hash range that is one run already, if no SST in it has tombstones, expired rows or hashes of other ranges.
    """

    def is_settled(sst: Sst) -> bool:
        has_expired = clock_ms is not None and has_expired_rows(sst, clock_ms)
        return not sst.tombstones and len(overlapped_partitions(sst, partitions)) == 1 and not has_expired

    return _disjoint(
        _with_clock(_merge_all(p, partitions, own_ssts, policy), clock_ms)
        for p, own_ssts in by_partition(ssts, partitions).items()
        if accepts(p) and not (len(sorted_runs(own_ssts)) == 1 and all(is_settled(sst) for sst in own_ssts))
    )


def _disjoint(compactions: Iterable[Compaction]) -> tuple[Compaction, ...]:
    picked: list[Compaction] = []
    inputs: set[Sst] = set()
    for compaction in compactions:
        if inputs.isdisjoint(compaction.inputs):
            inputs.update(compaction.inputs)
            picked.append(compaction)
    return tuple(picked)


def _merge_all(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> Compaction:
    if policy.kind == "leveled":
        return _LeveledTree(partition, partitions, ssts, policy).merge_all()
    return _universal_merge(partition, partitions, ssts, policy)


def _pick_universal(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> tuple[Compaction, ...]:
    """Return the compaction that a hash range needs now, from the SSTs that overlap it; empty if none.

    Universal compaction keeps few sorted runs, each about as large as all newer ones together: runs of similar size are
    merged into one, so each row is rewritten O(log(state / batch)) times, and the large oldest run only when the newer
    ones have grown to a good part of its size. The rules are RocksDB's (wiki page "Universal Compaction";
    `db/compaction/compaction_picker_universal.cc`). Nothing is merged if there are fewer than `l0_trigger` runs. A run
    whose SSTs overlap counts as several runs: as many as the SSTs that can share one key. The first applicable rule
    decides:

    1. If all other runs together have more than `max_space_amplification` times the bytes of the oldest, merge all.
    2. Merge the longest sequence of runs in which each has at most `1 + size_ratio` times the bytes of the sequence's
       newer runs together. It begins at the newest run for which it has at least `min_merge_width` runs.
    3. Merge just enough of the newest runs to leave fewer than `l0_trigger`.

    An SST that reaches beyond the hash range counts only with its estimated bytes within the range.
    """
    runs = sorted_runs(ssts)
    depths = [max_overlap(run) for run in runs]
    if sum(depths) < policy.l0_trigger:
        return ()
    low, high = hash_bounds(partition, partitions)
    sizes = [sum(estimate_within(sst.bytes, sst, low, high) for sst in run) for run in runs]
    if sum(sizes[:-1]) > policy.max_space_amplification * sizes[-1]:
        start, end = 0, len(runs)
    else:
        remaining = (sum(depths) - merged + 1 for merged in accumulate(depths))
        fewest = next((num for num, count in enumerate(remaining, start=1) if count < policy.l0_trigger), len(runs))
        start, end = _find_similar_runs(sizes, policy) or (0, min(fewest, max(2, policy.max_merge_width)))
    merged = _universal_merge(partition, partitions, [sst for run in runs[start:end] for sst in run], policy)
    return (replace(merged, drops_tombstones=end == len(runs)),)


def _universal_merge(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> Compaction:
    inputs, target = newest_first(ssts), policy.target_file_bytes
    return Compaction(partition, partitions, inputs, drops_tombstones=True, target_file_bytes=target)


def _find_similar_runs(sizes: Sequence[int], policy: Policy) -> tuple[int, int] | None:
    for start in range(len(sizes)):
        total, end = sizes[start], start + 1
        while (
            end < len(sizes) and end - start < policy.max_merge_width and sizes[end] <= total * (1 + policy.size_ratio)
        ):
            total += sizes[end]
            end += 1
        if end - start >= max(2, policy.min_merge_width):
            return start, end
    return None


def _pick_leveled(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> tuple[Compaction, ...]:
    return tuple(_LeveledTree(partition, partitions, ssts, policy).pick())


class _LeveledTree:
    """Levels of one hash range. From level 1 on, a level is a sorted run with a size limit that grows by level.

    The rules are RocksDB's (wiki pages "Leveled Compaction" and "Choose Level Compaction Files";
    `db/compaction/compaction_picker_level.cc`), applied to each hash range separately. Batches write level 0. When
    level 0 has `l0_trigger` runs, they are merged into level 1. SSTs of a level that exceeds its size limit are merged
    into the next level, starting with those that overlap the fewest bytes there for each byte of their own
    (`kMinOverlappingRatio`).

    One difference preserves the invariant of `sst.sorted_runs`, on which all readers rely: SSTs that overlap in `_hash`
    do not overlap in `_seq`. Level i is divided into 2^d_i slots, equal ranges of the hash range, with d_i chosen so
    that one slot of a full level is about one SST of the target size. A merge into the next level takes all SSTs that
    the level has in a slot. So in each slot a level is newer than the levels below it as a whole, and not just key by
    key. Spooky also cuts upper levels where the lower ones are cut (Dayan, Weiss, Dashevsky, Pan, Bortnikov, Twitto:
    "Spooky: Granulating LSM-Tree Compactions Correctly", VLDB 2022); here hashes are spread evenly, so the bounds are
    fixed. If a rescale or another policy left SSTs that cross slots, a compaction includes more inputs until the
    invariant holds for its result.
    """

    def __init__(self, partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> None:
        self._partition, self._partitions = partition, partitions
        self._policy = policy
        self._low, self._high = hash_bounds(partition, partitions)
        self._ssts = ssts
        total, self._bottom = sum(map(self._bytes, ssts)), 1
        while self._max_bytes(self._bottom) < total:
            self._bottom += 1
        self._level = _effective_levels(ssts, self._bottom + 1)

    def pick(self) -> Iterator[Compaction]:
        """Yield the compactions of the level that most needs compaction.

        The score of level 0 is its number of runs divided by `l0_trigger`; the score of another level is its bytes
        divided by its size limit. The level with the highest score is compacted, if that is at least 1: level 0 as a
        whole, and of another level enough SSTs to bring it within its limit. If the levels between 0 and the last have
        more than `max_space_amplification` times the bytes of the last, the whole hash range is merged into one level.
        """
        sizes: dict[int, int] = {}
        for sst in self._ssts:
            if level := self._level[sst]:
                sizes[level] = sizes.get(level, 0) + self._bytes(sst)
        newest = [sst for sst in self._ssts if not self._level[sst]]
        scores = {level: size / self._max_bytes(level) for level, size in sizes.items()}
        scores[0] = sum(map(max_overlap, sorted_runs(newest))) / self._policy.l0_trigger
        last = max(sizes, default=0)
        between = sum(size for level, size in sizes.items() if level < last)
        level = min(scores, key=lambda level: (-scores[level], level))
        if between > self._policy.max_space_amplification * sizes.get(last, 0):
            yield self.merge_all()
        elif scores[level] < 1:
            return
        elif level:
            yield from self._overflow(level, sizes[level] - self._max_bytes(level))
        else:
            yield self._complete(newest, 1)

    def merge_all(self) -> Compaction:
        return self._compaction(frozenset(self._ssts), (self._low, self._high), self._bottom)

    def _overflow(self, level: int, excess: float) -> Iterator[Compaction]:
        inputs: set[Sst] = set()
        for sst in self._cheapest(level):
            if excess <= 0:
                return
            if sst not in inputs:
                compaction = self._complete([sst], level + 1)
                if inputs.isdisjoint(compaction.inputs):
                    inputs.update(compaction.inputs)
                    excess -= sum(self._bytes(source) for source in compaction.inputs if self._level[source] == level)
                    yield compaction

    def _cheapest(self, level: int) -> list[Sst]:
        below = sorted((sst for sst in self._ssts if self._level[sst] == level + 1), key=lambda sst: sst.hash_min)
        begins, ends = [sst.hash_min for sst in below], [sst.hash_max for sst in below]
        cumulative = list(accumulate((sst.bytes for sst in below), initial=0))

        def cost(sst: Sst) -> tuple[float, int]:
            met = cumulative[bisect_right(begins, sst.hash_max)] - cumulative[bisect_left(ends, sst.hash_min)]
            return met / sst.bytes, sst.hash_min

        return sorted((sst for sst in self._ssts if self._level[sst] == level), key=cost)

    def _complete(self, ssts: Iterable[Sst], into: int) -> Compaction:
        """Return the smallest valid compaction of these SSTs into level `into` or a deeper level.

        It is valid if SSTs that overlap in `_hash` do not overlap in `_seq` afterwards.
        """
        inputs = set(ssts)
        while True:
            top = min(self._level[sst] for sst in inputs)
            into = max(into, *(self._level[sst] for sst in inputs))
            # The inputs' hashes, within the partition, extended to the bounds of the level's slots.
            slots = self._slots(max(1, top))
            first = partition_of_hash(max(self._low, min(sst.hash_min for sst in inputs)), slots)
            last = partition_of_hash(min(self._high, max(sst.hash_max for sst in inputs)), slots)
            window = hash_bounds(first, slots)[0], hash_bounds(last, slots)[1]
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
        first, last = partition_of_hash(window[0], slots), partition_of_hash(window[1], slots)
        below = (overlapped_partitions(sst, slots) for sst in older)
        guarded = {slot for met in below for slot in range(max(met.start, first), min(met.stop, last) + 1)}
        levels = {self._level[sst] for sst in inputs}
        is_of_one_level = len(levels) == 1 and 0 not in levels
        leaves_rows = not any(sst.tombstones or len(overlapped_partitions(sst, self._partitions)) > 1 for sst in inputs)
        return Compaction(
            self._partition,
            self._partitions,
            newest_first(inputs),
            drops_tombstones=not older,
            level=into,
            target_file_bytes=self._policy.target_file_bytes,
            window=window,
            slots=slots,
            guards=frozenset(hash_bounds(slot, slots)[0] for slot in guarded),
            is_trivial_move=not older and is_of_one_level and leaves_rows,
        )

    def _bytes(self, sst: Sst) -> int:
        return estimate_within(sst.bytes, sst, self._low, self._high)

    def _max_bytes(self, level: int) -> float:
        return self._policy.level_base_bytes * self._policy.fanout ** (level - 1)

    def _slots(self, level: int) -> int:
        ssts = self._max_bytes(level) / self._policy.target_file_bytes
        slots = self._partitions << max(0, ceil(log2(ssts)))
        while slots > _MAX_SLOTS and slots > self._partitions:
            slots //= 2
        return slots


def _effective_levels(ssts: Sequence[Sst], deepest: int) -> dict[Sst, int]:
    """Return the level of each SST for compaction: its stored level if all overlapping older SSTs are deeper, else 0.

    A stored level above `deepest` counts as `deepest`. Universal compaction numbers levels differently: here, its
    oldest run is a level of its own, and its newer runs are in level 0.
    """
    effective: dict[Sst, int] = {}
    overlapped: dict[Sst, list[Sst]] = {sst: [] for sst in ssts}
    for newer, older in overlapping_pairs(ssts):
        overlapped[newer].append(older)
    for sst in sorted(ssts, key=lambda sst: sst.seq_max):
        level = min(sst.level, deepest)
        effective[sst] = level if all(effective[other] > level for other in overlapped[sst]) else 0
    return effective
