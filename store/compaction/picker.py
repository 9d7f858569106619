"""Chooses compactions by a table's policy, for each hash range separately. Pure.

A small batch has fewer tasks than hash ranges, so its SSTs are *wide*: each SST covers several ranges. A compaction of
one range that includes wide SSTs is widened to all ranges of these SSTs (`_as_wide`). A small result stays one wide
SST, so small batches cost few puts, regardless of the number of ranges. A larger result is cut at the bounds of the
ranges, and from then on each range is merged separately.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, count, dropwhile, pairwise, takewhile
from math import ceil, log2

from msgspec.structs import replace as with_fields

from ..sst.sorted_runs import (
    estimate_within,
    max_overlap,
    overlapped_partitions,
    overlapping,
    overlapping_pairs,
    sorted_runs,
)
from ..sst.ttl import expired_suffix, has_expired_rows
from ..versions.entries.hash_ranges import hash_bounds, partition_of_hash
from ..versions.entries.ssts import Sst, Ssts
from ..versions.manifest import Manifest, Policy
from .plan import Compaction, newest_first
from .runs import Run, TableRuns

_MAX_SLOTS = 1 << 30
_MAX_SEQ = (1 << 63) - 1
WIDE_BYTES = 1 << 20
"""Largest bytes per covered hash range of a wide result. A larger result is cut at the bounds of hash ranges."""


class Picker:
    """Chooses compactions for successive versions of one table. Not thread-safe.

    The cost for a version depends on its changes since the previous version and on the merges that the version needs.
    """

    def __init__(self) -> None:
        self._runs = TableRuns(0)

    def pick(self, manifest: Manifest) -> tuple[Compaction, ...]:
        """Return the compactions of a version, as `pick_for_manifest` does."""
        if manifest.table is None:
            return ()
        if self._runs.partitions != manifest.table.ranges:
            self._runs = TableRuns(manifest.table.ranges)
        self._runs.update(manifest.ssts)
        return _pick(self._runs, manifest.table.compaction, manifest.clock_ms)


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

    Repeated picking and merging terminates. Afterwards, each hash range has fewer than `l0_trigger` runs (universal);
    or it has fewer than `l0_trigger` runs in level 0, and no further level exceeds its size limit (leveled). If the
    newest runs are wide, older runs are merged as soon as the range has three quarters of `l0_trigger` runs, which
    leaves room for wide runs. Raises `ValueError` for an `l0_trigger` below 2 or a `fanout` of at most 1.
    """
    return _pick(_runs_of(ssts, partitions), policy, clock_ms)


def _runs_of(ssts: Iterable[Sst], partitions: int) -> TableRuns:
    runs = TableRuns(partitions)
    runs.update(ssts if isinstance(ssts, Ssts) else Ssts(ssts))
    return runs


def _pick(table: TableRuns, policy: Policy, clock_ms: int | None) -> tuple[Compaction, ...]:
    if policy.l0_trigger < 2 or policy.fanout <= 1:
        raise ValueError(
            f"expected l0_trigger of at least 2 and fanout above 1, found {policy.l0_trigger} and {policy.fanout}"
        )
    choose = _pick_leveled if policy.kind == "leveled" else _pick_universal
    reserved = with_fields(policy, l0_trigger=max(2, policy.l0_trigger - max(1, policy.l0_trigger // 4)))

    def due(partition: int, runs: Sequence[Run], policy: Policy) -> tuple[Compaction, ...]:
        expired = _pick_expired(partition, table.partitions, runs, policy, clock_ms)
        return expired or choose(partition, table.partitions, runs, policy)

    picks = _Picks(table, policy, clock_ms)
    for partition, runs in sorted(table.by_range.items()):
        # If the newest run is wide: the runs that are older than the newest wide runs.
        older = tuple(dropwhile(lambda run: run.is_wide, runs))
        is_reserved = 0 < len(older) < len(runs)
        for compaction in (is_reserved and due(partition, older, reserved)) or due(partition, runs, policy):
            picks.add(compaction)
    return tuple(picks.compactions)


def _is_wide(sst: Sst, partitions: int) -> bool:
    return len(overlapped_partitions(sst, partitions)) > 1


@dataclass(slots=True)
class _Picks:
    """Collection of compatible compactions. They share no input, and results do not overlap in `_hash` and `_seq`."""

    table: TableRuns
    policy: Policy
    clock_ms: int | None
    full: bool = False
    """True if each hash range is to become one run."""
    compactions: list[Compaction] = field(default_factory=list)
    _inputs: set[Sst] = field(default_factory=set)
    _wide: list[Compaction] = field(default_factory=list)

    def add(self, compaction: Compaction) -> None:
        """Add a compaction picked for one hash range, widened if needed. A conflicting compaction is dropped."""
        if not self._inputs.isdisjoint(compaction.inputs):
            return
        picked = _as_wide(compaction, self.table, self.policy, full=self.full)
        is_wide = picked is not compaction
        if self._inputs.isdisjoint(picked.inputs) and not any(
            _overlap(picked, other) for other in (self.compactions if is_wide else self._wide)
        ):
            picked = _with_clock(picked, self.clock_ms)
            self._inputs.update(picked.inputs)
            self.compactions.append(picked)
            if is_wide:
                self._wide.append(picked)


def _overlap(first: Compaction, second: Compaction) -> bool:
    (low, high), (second_low, second_high) = first.hash_range, second.hash_range
    (oldest, newest), (second_oldest, second_newest) = _seqs(first.inputs), _seqs(second.inputs)
    return low <= second_high and second_low <= high and oldest <= second_newest and second_oldest <= newest


def _seqs(ssts: Iterable[Sst]) -> tuple[int, int]:
    return min(sst.seq_min for sst in ssts), max(sst.seq_max for sst in ssts)


def _as_wide(compaction: Compaction, table: TableRuns, policy: Policy, *, full: bool) -> Compaction:
    """Return a valid compaction in place of a compaction of one hash range that has wide inputs.

    The inputs of the result lie within its hashes. If the inputs and all SSTs between them are small, the result merges
    them into a wide run. Otherwise the result merges only the newest wide inputs: into a wide run if they are small and
    form several runs, else into SSTs that are cut at the bounds of the hash ranges. With `full`, all newer SSTs of
    these ranges are inputs as well.
    """
    partitions = compaction.partitions
    is_wide = partial(_is_wide, partitions=partitions)
    if not any(map(is_wide, compaction.inputs)):
        return compaction
    # A level above 0 is one run. A result that replaces several levels could overlap other SSTs of any level.
    keeps_level = policy.kind == "leveled"
    drops, cuts = compaction.drops_tombstones, False
    inputs, num_ranges = _with_all_between(compaction.inputs, table, older=drops, newer=full)
    if not _is_small(inputs, num_ranges) or (keeps_level and any(sst.level for sst in inputs)):
        newest = [*takewhile(is_wide, dropwhile(lambda sst: not is_wide(sst), compaction.inputs))]
        if keeps_level:
            newest = [sst for sst in newest if sst.level == newest[0].level]
        inputs, num_ranges = _with_all_between(newest, table)
        if not all(map(is_wide, inputs)) or (keeps_level and len({sst.level for sst in inputs}) > 1):
            inputs = {newest[0]}
        drops, cuts = False, full or not _is_small(inputs, num_ranges) or max_overlap(inputs) == 1
    return Compaction(
        compaction.partition,
        partitions,
        newest_first(inputs),
        drops_tombstones=drops,
        level=min(sst.level for sst in inputs) if keeps_level else None,
        target_file_bytes=policy.target_file_bytes,
        window=(min(sst.hash_min for sst in inputs), max(sst.hash_max for sst in inputs)),
        cuts=cuts,
    )


def _is_small(ssts: Iterable[Sst], num_ranges: int) -> bool:
    return sum(sst.bytes for sst in ssts) <= WIDE_BYTES * num_ranges


def _with_all_between(
    ssts: Iterable[Sst], table: TableRuns, *, older: bool = False, newer: bool = False
) -> tuple[set[Sst], int]:
    """Return these SSTs with all SSTs between them in their hash ranges, and the number of these hash ranges.

    With `older` (`newer`), all older (newer) SSTs of the hash ranges are included as well.
    """
    inputs = set(ssts)
    while True:
        first = partition_of_hash(min(sst.hash_min for sst in inputs), table.partitions)
        last = partition_of_hash(max(sst.hash_max for sst in inputs), table.partitions)
        oldest, newest = _seqs(inputs)
        more = table.between(range(first, last + 1), 0 if older else oldest, _MAX_SEQ if newer else newest)
        if more <= inputs:
            return inputs, last - first + 1
        inputs |= more


def _with_clock(compaction: Compaction, clock_ms: int | None) -> Compaction:
    has_expired = clock_ms is not None and any(has_expired_rows(sst, clock_ms) for sst in compaction.inputs)
    return replace(compaction, clock_ms=clock_ms, is_trivial_move=compaction.is_trivial_move and not has_expired)


def _pick_expired(
    partition: int, partitions: int, runs: Sequence[Run], policy: Policy, clock_ms: int | None
) -> tuple[Compaction, ...]:
    if clock_ms is None or not any(run.expiry for run in runs):
        return ()
    start = expired_suffix([(run.total_bytes, run.expired_bytes(clock_ms)) for run in runs])
    if start is None:
        return ()
    due = runs if policy.kind == "leveled" else runs[start:]
    return (_merge_all(partition, partitions, _ssts_of(due), policy),)


def _ssts_of(runs: Iterable[Run]) -> list[Sst]:
    return [sst for run in runs for sst in run.ssts]


def pick_all(
    ssts: Iterable[Sst],
    partitions: int,
    policy: Policy,
    *,
    clock_ms: int | None = None,
    accepts: Callable[[int], bool] = lambda _partition: True,
) -> tuple[Compaction, ...]:
    """Return compactions that bring each hash range that `accepts` selects closer to one run. No two share an input.

    If a returned compaction only cuts wide SSTs, call the function again afterwards. A range that is already one run
    without tombstones and expired rows is skipped.
    """

    def is_settled(sst: Sst) -> bool:
        return not sst.tombstones and not (clock_ms is not None and has_expired_rows(sst, clock_ms))

    table = _runs_of(ssts, partitions)
    picks = _Picks(table, policy, clock_ms, full=True)
    for partition, runs in sorted(table.by_range.items()):
        if accepts(partition) and not (len(runs) == 1 and all(map(is_settled, runs[0].ssts))):
            picks.add(_merge_all(partition, partitions, _ssts_of(runs), policy))
    return tuple(picks.compactions)


def _merge_all(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> Compaction:
    if policy.kind == "leveled":
        return _LeveledTree(partition, partitions, ssts, policy).merge_all()
    return _universal_merge(partition, partitions, ssts, policy)


def _pick_universal(partition: int, partitions: int, runs: Sequence[Run], policy: Policy) -> tuple[Compaction, ...]:
    """Return the compaction that a hash range needs now, from its runs; empty if none.

    Universal compaction keeps few sorted runs, each about as large as all newer runs together. Runs of similar size are
    merged into one, so each row is rewritten O(log(state / batch)) times. The large oldest run is rewritten only when
    the newer runs have grown to a good part of its size. The rules are RocksDB's (wiki page "Universal Compaction";
    `db/compaction/compaction_picker_universal.cc`). Nothing is merged if there are fewer than `l0_trigger` runs. A run
    with overlapping SSTs counts as several runs, one for each SST that can have the same key. The first applicable rule
    decides:

    1. If all other runs together have more than `max_space_amplification` times the bytes of the oldest run, merge all.
    2. Merge the longest sequence of runs in which each run has at most `1 + size_ratio` times the bytes of all newer
    runs
       of the sequence together. It begins at the newest run for which it has at least `min_merge_width` runs.
    3. Merge just enough of the newest runs to leave fewer than `l0_trigger`.

    Of a wide SST, only the estimated bytes within the range count.
    """
    depths, sizes = [run.depth for run in runs], [run.bytes for run in runs]
    if sum(depths) < policy.l0_trigger:
        return ()
    if sum(sizes[:-1]) > policy.max_space_amplification * sizes[-1]:
        start, end = 0, len(runs)
    else:
        remaining = (sum(depths) - merged + 1 for merged in accumulate(depths))
        fewest = next((num for num, count in enumerate(remaining, start=1) if count < policy.l0_trigger), len(runs))
        start, end = _find_similar_runs(sizes, policy) or (0, min(fewest, max(2, policy.max_merge_width)))
    merged = _universal_merge(partition, partitions, _ssts_of(runs[start:end]), policy)
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


def _pick_leveled(partition: int, partitions: int, runs: Sequence[Run], policy: Policy) -> tuple[Compaction, ...]:
    return tuple(_LeveledTree(partition, partitions, _ssts_of(runs), policy).pick()) if _is_due(runs, policy) else ()


def _is_due(runs: Sequence[Run], policy: Policy) -> bool:
    """Return False if the runs of a hash range are levels within their size limits (`_LeveledTree`).

    The cost grows with the number of levels. Also returns True if an SST's level for compaction may differ from the
    stored level.
    """
    level_0, levels = _split_levels(runs)
    deepest = 1 + _bottom_level(sum(run.bytes for run in runs), policy)
    numbers = [run.level for run in levels]
    if (
        any(run.level for run in level_0)
        or any(not a < b for a, b in pairwise((0, *numbers)))
        or numbers[-1:] > [deepest]
    ):
        return True
    sizes = {run.level: run.bytes for run in levels}
    scores = [size / _max_bytes(level, policy) for level, size in sizes.items()]
    scores.append(sum(run.depth for run in level_0) / policy.l0_trigger)
    return max(scores) >= 1 or _has_excess_between(sizes, policy)


def _split_levels(runs: Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run]]:
    num = next((number for number, run in enumerate(runs) if run.level > 0), len(runs))
    return runs[:num], runs[num:]


def _has_excess_between(sizes: Mapping[int, int], policy: Policy) -> bool:
    last = max(sizes, default=0)
    between = sum(size for level, size in sizes.items() if level < last)
    return between > policy.max_space_amplification * sizes.get(last, 0)


def _max_bytes(level: int, policy: Policy) -> float:
    return policy.level_base_bytes * policy.fanout ** (level - 1)


def _bottom_level(num_bytes: int, policy: Policy) -> int:
    return next(level for level in count(1) if _max_bytes(level, policy) >= num_bytes)


class _LeveledTree:
    """Levels of one hash range. From level 1 on, a level is a sorted run with a size limit that grows by level.

    The rules are RocksDB's (wiki pages "Leveled Compaction" and "Choose Level Compaction Files";
    `db/compaction/compaction_picker_level.cc`), applied to each hash range separately. Batches write level 0. When
    level 0 has `l0_trigger` runs, they are merged into level 1. If a level exceeds its size limit, some of its SSTs are
    merged into the next level. First come SSTs with the smallest ratio of the bytes that they overlap in the next level
    to their own bytes (`kMinOverlappingRatio`).

    One difference preserves the invariant of `sst.sorted_runs`, on which all readers rely: SSTs that overlap in `_hash`
    do not overlap in `_seq`. Level i is divided into 2^d_i slots, equal ranges of the hash range, with d_i chosen so
    that one slot of a full level is about one SST of the target size. A merge into the next level takes all SSTs that
    the level has in a slot. So within a slot, every row of a level is newer than every row of the levels below it, not
    just for equal keys. Spooky also cuts upper levels where the lower ones are cut (Dayan, Weiss, Dashevsky, Pan,
    Bortnikov, Twitto: "Spooky: Granulating LSM-Tree Compactions Correctly", VLDB 2022); here hashes are spread evenly,
    so the bounds are fixed. After a rescale or a change of the policy, SSTs may cross slot bounds. A compaction
    includes more inputs until its result preserves the invariant.
    """

    def __init__(self, partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> None:
        self._partition, self._partitions = partition, partitions
        self._policy = policy
        self._low, self._high = hash_bounds(partition, partitions)
        self._ssts = ssts
        self._bottom = _bottom_level(sum(map(self._bytes, ssts)), policy)
        self._level = _effective_levels(ssts, self._bottom + 1)

    def pick(self) -> Iterator[Compaction]:
        """Yield the compactions of the level that most needs compaction.

        The score of level 0 is its number of runs divided by `l0_trigger`; the score of another level is its bytes
        divided by its size limit. The level with the highest score is compacted if the score is at least 1. Level 0 is
        compacted as a whole; a deeper level loses just enough SSTs to stay within its limit. If the levels between 0
        and the last level have more than `max_space_amplification` times the bytes of the last level, the whole hash
        range is merged into one level.
        """
        sizes: dict[int, int] = {}
        for sst in self._ssts:
            if level := self._level[sst]:
                sizes[level] = sizes.get(level, 0) + self._bytes(sst)
        newest = [sst for sst in self._ssts if not self._level[sst]]
        scores = {level: size / _max_bytes(level, self._policy) for level, size in sizes.items()}
        scores[0] = sum(map(max_overlap, sorted_runs(newest))) / self._policy.l0_trigger
        level = min(scores, key=lambda level: (-scores[level], level))
        if _has_excess_between(sizes, self._policy):
            yield self.merge_all()
        elif scores[level] < 1:
            return
        elif level:
            yield from self._overflow(level, sizes[level] - _max_bytes(level, self._policy))
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

        In the result of a valid compaction, SSTs that overlap in `_hash` do not overlap in `_seq`.
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
        # The level may be cut at any slot bound. It must be cut around slots that have older SSTs below the level.
        slots = self._slots(into)
        first, last = partition_of_hash(window[0], slots), partition_of_hash(window[1], slots)
        below = (overlapped_partitions(sst, slots) for sst in older)
        guarded = {slot for met in below for slot in range(max(met.start, first), min(met.stop, last) + 1)}
        levels = {self._level[sst] for sst in inputs}
        is_of_one_level = len(levels) == 1 and 0 not in levels
        leaves_rows = not any(sst.tombstones for sst in inputs)
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

    def _slots(self, level: int) -> int:
        ssts = _max_bytes(level, self._policy) / self._policy.target_file_bytes
        slots = self._partitions << max(0, ceil(log2(ssts)))
        while slots > _MAX_SLOTS and slots > self._partitions:
            slots //= 2
        return slots


def _effective_levels(ssts: Sequence[Sst], deepest: int) -> dict[Sst, int]:
    """Return the level of each SST for compaction: its stored level if all overlapping older SSTs are deeper, else 0.

    A stored level above `deepest` counts as `deepest`. Universal compaction numbers levels differently. With its level
    numbers, the oldest run becomes a level, and all newer runs are in level 0.
    """
    effective: dict[Sst, int] = {}
    overlapped: dict[Sst, list[Sst]] = {sst: [] for sst in ssts}
    for newer, older in overlapping_pairs(ssts):
        overlapped[newer].append(older)
    for sst in sorted(ssts, key=lambda sst: sst.seq_max):
        level = min(sst.level, deepest)
        effective[sst] = level if all(effective[other] > level for other in overlapped[sst]) else 0
    return effective
