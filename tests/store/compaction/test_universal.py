"""Universal compaction keeps few runs in every state partition, and rewrites each byte rarely."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.compaction import picker
from slackwater.store.compaction.plan import Compaction, CompactionResult, apply_results
from slackwater.store.sst.sorted_runs import (
    by_partition,
    estimate_within,
    max_overlap,
    overlapped_partitions,
    overlapping,
    overlapping_pairs,
    sorted_runs,
)
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Policy

from tests.store.compaction.runs import PARTITIONS, a_run, compaction_of, merged, runs_of


def pick(ssts: tuple[Sst, ...], partitions: int = PARTITIONS, **knobs: Any) -> tuple[Compaction, ...]:
    return picker.pick(ssts, partitions, Policy(**knobs))


def carried_out(one: Compaction) -> CompactionResult:
    """Return the result of a merge whose keys are spread over its range, without executing it."""
    low, high = one.hash_range
    assert all(low <= sst.hash_min and sst.hash_max <= high for sst in one.inputs)
    whole = replace(
        a_run(min(sst.seq_min for sst in one.inputs), max(sst.seq_max for sst in one.inputs), 0, one.partition),
        object=f"{one.inputs[0].object}+{len(one.inputs)}",
        bytes=sum(sst.bytes for sst in one.inputs),
        hash_min=low,
        hash_max=high,
        level=one.output_level,
    )
    if not one.cuts:
        return CompactionResult(one, (whole,))
    outputs = []
    for p in overlapped_partitions(whole, one.partitions):
        begin, end = hash_bounds(p, one.partitions)
        # Some inputs reach only into some of the ranges.
        own = overlapping(one.inputs, begin, end)
        piece = replace(
            whole,
            object=f"{whole.object}/{p}",
            bytes=sum(estimate_within(sst.bytes, sst, begin, end) for sst in own),
            hash_min=max(low, begin),
            hash_max=min(high, end),
            seq_min=min(sst.seq_min for sst in own),
            seq_max=max(sst.seq_max for sst in own),
        )
        outputs.append(piece)
    return CompactionResult(one, tuple(outputs))


def runs_by_partition(ssts: tuple[Sst, ...], partitions: int) -> dict[int, int]:
    """Return, for each state partition, the number of SSTs that may contain one of its keys."""
    return {p: sum(map(max_overlap, sorted_runs(mine))) for p, mine in by_partition(ssts, partitions).items()}


def test_runs_from_before_a_rescale_are_cut_when_they_are_merged() -> None:
    large = a_run(0, 0, 100 << 20, partitions=1)
    small = tuple(a_run(i, i, 10 << 20, partitions=1) for i in range(6, 0, -1))
    assert pick((*small, large)) == ()
    new = tuple(a_run(8, 8, 10, partition) for partition in (1, 2))
    (one,) = pick((*new, *small, large))
    # The other ranges have their turn when these are cut: no SST is in two compactions.
    assert (one.inputs, one.partition, one.cuts, one.drops_tombstones) == (small, 1, True, False)
    assert one.hash_range == hash_bounds(0, 1)
    ssts = apply_results((*new, *small, large), [carried_out(one)])
    assert [sst.hash_min for sst in ssts[2:6]] == [hash_bounds(p, 4)[0] for p in range(4)]
    assert pick(ssts) == ()


def test_small_runs_over_all_partitions_are_merged_without_the_large_runs_of_each_partition() -> None:
    """Small runs are not cut, and large ones are not read.

    Puts therefore depend on batches, not on state partitions.
    """
    large = tuple(a_run(1, 9, 100 << 20, p) for p in range(4))
    wide = tuple(a_run(i, i, 1 << 16, partitions=1) for i in range(16, 9, -1))
    assert pick((*wide[1:], *large)) == ()
    (one,) = pick((*wide, *large))
    assert (one.inputs, one.cuts, one.drops_tombstones) == (wide, False, False)


def test_large_runs_over_all_partitions_are_cut_and_then_merged_in_each_partition() -> None:
    large = tuple(a_run(1, 9, 2 << 20, p) for p in range(4))
    wide = tuple(a_run(i, i, 3 << 20, partitions=1) for i in (12, 11, 10))
    (one,) = pick((*wide, *large), l0_trigger=4)
    assert (one.inputs, one.cuts) == (wide, True)
    ssts = apply_results((*wide, *large), [carried_out(one)])
    assert pick(ssts, l0_trigger=4) == ()
    picked = pick(ssts, l0_trigger=2)
    assert [(one.partition, len(one.inputs), one.cuts) for one in picked] == [(p, 2, False) for p in range(4)]


def test_runs_of_partitions_are_merged_early_to_leave_room_for_runs_over_all_partitions() -> None:
    """Otherwise, each batch would have to be cut, so that it can be merged with the newest runs of each partition."""
    older = tuple(a_run(7 - i, 7 - i, 4 << 20 + 2 * i, p) for i in range(7) for p in range(4))
    assert pick(older) == ()
    batch = a_run(8, 8, 1 << 10, partitions=1)
    picked = pick((batch, *older))
    assert [one.partition for one in picked] == [0, 1, 2, 3]
    assert all(batch not in one.inputs and not one.cuts for one in picked)


def test_runs_between_those_over_all_partitions_are_included_only_if_all_are_small() -> None:
    newest = tuple(a_run(seq, seq, 1 << 10, partitions=1) for seq in (4, 3))
    between, oldest = a_run(2, 2, 1 << 10), a_run(1, 1, 1 << 10, partitions=1)
    (one,) = pick((*newest, between, oldest), l0_trigger=4)
    assert (one.inputs, one.cuts) == ((*newest, between, oldest), False)
    between = replace(between, bytes=100 << 20)
    (one,) = pick((*newest, between, oldest), l0_trigger=4)
    assert (one.inputs, one.cuts) == (newest, False)
    (one,) = pick((newest[0], between, oldest), l0_trigger=2)
    assert (one.inputs, one.cuts) == ((oldest,), True), "the newest is cut in its turn"


def test_runs_of_two_partitions_are_one_run_after_these_are_joined() -> None:
    left = (a_run(6, 9, 10, 0), a_run(1, 5, 100, 0))
    right = (a_run(9, 9, 10, 1), a_run(7, 8, 10, 1), a_run(1, 6, 100, 1))
    newer, beyond = a_run(10, 10, 10, partitions=2), a_run(1, 9, 1000, 3)
    ssts = (newer, *left, *right, beyond)
    assert pick(ssts, 2, l0_trigger=5) == ()
    (one,) = pick(ssts, 2, l0_trigger=4)
    assert one.inputs[0] == newer
    assert set(one.inputs) == {newer, *left, *right}
    assert one.drops_tombstones


ERAS = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.integers(1, 10**7),
        st.lists(st.integers(0, 5), max_size=12),
    ),
    min_size=1,
    max_size=8,
)
"""Numbers of ranges, bytes per SST, and for each batch its number of tasks, which is a divisor of the ranges."""


@given(ERAS, st.integers(2, 9))
def test_for_any_partitions_and_tasks_merging_ends_with_few_ssts_per_partition(
    eras: list[tuple[int, int, list[int]]], trigger: int
) -> None:
    ssts: tuple[Sst, ...] = ()
    seq = 0
    for ranges, size, batches in eras:
        for choice in batches:
            seq += 1
            divisors = [tasks for tasks in range(1, ranges + 1) if ranges % tasks == 0]
            tasks = divisors[choice % len(divisors)]
            ssts = (*(a_run(seq, seq, size, p, tasks) for p in range(tasks)), *ssts)
        counts, wide = runs_by_partition(ssts, ranges), num_wide(ssts, ranges)
        while picked := pick(ssts, ranges, l0_trigger=trigger):
            inputs = [sst for one in picked for sst in one.inputs]
            assert len(inputs) == len(set(inputs))
            before = ssts
            ssts = apply_results(ssts, [carried_out(one) for one in picked])
            assert not {*inputs} & {*ssts}, "no compaction fits"
            assert_order(ssts)
            fewer, fewer_wide = runs_by_partition(ssts, ranges), num_wide(ssts, ranges)
            assert all(fewer[p] <= counts[p] for p in counts)
            assert (sum(fewer.values()), fewer_wide) < (sum(counts.values()), wide), (before, picked)
            counts, wide = fewer, fewer_wide
        assert all(count < trigger for count in counts.values())


@pytest.mark.parametrize("base", [0, 1 << 32], ids=lambda base: f"base={base}")
@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 1 << 20], ids=lambda size: f"size={size}")
@pytest.mark.parametrize("tasks", [1, 2, 16])
def test_puts_and_bytes_of_merges_depend_on_the_batches_not_on_the_partitions(tasks: int, size: int, base: int) -> None:
    ranges, batches = 16, 300
    ssts = tuple(a_run(0, 0, base // ranges, p, ranges) for p in range(ranges)) if base else ()
    puts = num_bytes = 0
    for seq in range(1, batches + 1):
        ssts = (*(a_run(seq, seq, size // tasks, p, tasks) for p in range(tasks)), *ssts)
        while due := pick(ssts, ranges):
            done = [carried_out(one) for one in due]
            puts += sum(len(one.outputs) for one in done)
            num_bytes += sum(one.output_bytes for one in done)
            ssts = apply_results(ssts, done)
        assert all(count < 8 for count in runs_by_partition(ssts, ranges).values())
        assert num_wide(ssts, ranges) <= 8 * tasks
    # A result is wide, or has a good part of what a wide one may have at most.
    assert puts <= batches * tasks + 2 * num_bytes / picker.WIDE_BYTES
    assert num_bytes <= batches * size * 2 * math.log2(batches)


def num_wide(ssts: tuple[Sst, ...], ranges: int) -> int:
    return sum(len(overlapped_partitions(sst, ranges)) > 1 for sst in ssts)


def assert_order(ssts: tuple[Sst, ...]) -> None:
    for newer, older in overlapping_pairs(ssts):
        assert newer.seq_min > older.seq_max


def test_few_runs_are_not_merged() -> None:
    assert pick(()) == ()
    assert pick(runs_of(*[10] * 7)) == ()
    assert pick(runs_of(*[10] * 3), l0_trigger=4) == ()


def test_an_impossible_trigger_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 and fanout above 1, found 1"):
        pick((), l0_trigger=1)


def test_newer_runs_that_are_large_together_are_merged_into_the_oldest() -> None:
    ssts = runs_of(*[100] * 7, 600)
    assert pick(ssts) == (compaction_of(ssts, drops_tombstones=True),)


def test_runs_of_similar_size_are_merged_without_the_large_one() -> None:
    ssts = runs_of(*[10] * 7, 10_000)
    assert pick(ssts) == (compaction_of(ssts[:7], drops_tombstones=False),)


def test_similar_runs_behind_a_small_one_are_found() -> None:
    ssts = runs_of(1, 100, 110, 10_000)
    assert pick(ssts, l0_trigger=4, size_ratio=0.2) == (compaction_of(ssts[1:3], drops_tombstones=False),)


def test_without_similar_sizes_the_newest_runs_are_merged() -> None:
    ssts = runs_of(1, 10, 100, 1000, 10_000)
    assert pick(ssts, l0_trigger=4) == (compaction_of(ssts[:3], drops_tombstones=False),)


def test_each_partition_is_picked_separately_for_any_order_of_runs() -> None:
    busy = tuple(a_run(i, i, 10, partition=3) for i in range(8))
    idle = tuple(a_run(i, i, 10, partition=1) for i in range(7))
    newest_first = tuple(reversed(busy))
    assert (
        pick((*idle, *busy))
        == pick((*newest_first, *idle))
        == (compaction_of(newest_first, drops_tombstones=True, partition=3),)
    )


@given(st.lists(st.integers(1, 10**9), max_size=40), st.integers(2, 12), st.integers(2, 8))
def test_merges_have_adjacent_inputs_and_bring_the_number_of_runs_below_the_trigger(
    sizes: list[int], trigger: int, max_width: int
) -> None:
    ssts = runs_of(*sizes)
    for _ in range(len(sizes) + 1):
        picked = pick(ssts, l0_trigger=trigger, max_merge_width=max_width)
        if not picked:
            break
        (one,) = picked
        start = ssts.index(one.inputs[0])
        assert len(one.inputs) >= 2
        assert one.inputs == ssts[start : start + len(one.inputs)]
        assert one.drops_tombstones == (one.inputs[-1] == ssts[-1])
        ssts = apply_results(ssts, [merged(one)])
    assert len(ssts) < trigger


@pytest.mark.parametrize("base", [0, 100, 10_000], ids=lambda base: f"base={base}")
@pytest.mark.parametrize("grows", [True, False], ids=["inserts", "updates"])
def test_each_byte_is_rewritten_a_logarithmic_number_of_times(base: int, grows: bool) -> None:
    batches, batch = 1500, 100
    ssts = (a_run(0, 0, base * batch),) if base else ()
    written = largest_rewrites = 0
    for seq in range(1, batches + 1):
        ssts = (a_run(seq, seq, batch), *ssts)
        written += batch
        for one in pick(ssts):
            size = sum(entry.bytes for entry in one.inputs)
            if not grows:
                # Only so many keys are there to be updated.
                size = min(size, max(base, 100) * batch)
            written += size
            largest_rewrites += one.drops_tombstones
            ssts = apply_results(ssts, [merged(one, size)])
        assert len(ssts) < 8
    state = max(base, batches if grows else 100)
    assert written / (batches * batch) <= 1 + math.log2(state)
    # The oldest run is only rewritten when the others have grown to its size.
    if base:
        assert largest_rewrites <= 2 * batches / base + 1
