"""Which runs are merged, by their sizes: few are left in every state partition, and each byte is rewritten seldom."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.compaction import picker
from slackwater.store.compaction.plan import Compaction, CompactionResult, apply_results
from slackwater.store.sst.sorted_runs import by_partition, max_overlap, overlapped_partitions, sorted_runs
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Policy

from tests.store.compaction.runs import PARTITIONS, a_run, compaction_of, merged, runs_of


def pick(ssts: tuple[Sst, ...], partitions: int = PARTITIONS, **knobs: Any) -> tuple[Compaction, ...]:
    return picker.pick(ssts, partitions, Policy(**knobs))


def cut(one: Compaction) -> CompactionResult:
    """As if it had been carried out, with keys everywhere."""
    count = one.partitions
    pieces = [(entry, p) for entry in one.inputs for p in overlapped_partitions(entry, count) if p != one.partition]
    oldest, newest = min(entry.seq_min for entry in one.inputs), max(entry.seq_max for entry in one.inputs)
    size = sum(entry.bytes for entry in one.inputs)
    outputs = [a_run(oldest, newest, size, one.partition, count)]
    for number, (piece, p) in enumerate(pieces):
        low, high = hash_bounds(p, count)
        low, high = max(low, piece.hash_min), min(high, piece.hash_max)
        outputs.append(replace(piece, object=f"{piece.object}/{number}", partition=p, hash_min=low, hash_max=high))
    return CompactionResult(one, tuple(outputs))


def runs_by_partition(ssts: tuple[Sst, ...], partitions: int) -> dict[int, int]:
    """In how many SSTs of each state partition a key can be."""
    return {p: sum(map(max_overlap, sorted_runs(mine))) for p, mine in by_partition(ssts, partitions).items()}


def test_runs_from_before_a_rescale_are_cut_where_they_are_merged() -> None:
    large = a_run(0, 0, 1000, partitions=1)
    small = tuple(a_run(i, i, 10, partitions=1) for i in range(6, 0, -1))
    assert pick((*small, large)) == ()
    new = tuple(a_run(8, 8, 10, partition) for partition in (1, 2))
    # The other partition has its turn when these are cut: no SST is in two compactions.
    assert pick((*new, *small, large)) == (compaction_of((new[0], *small), drops_tombstones=False, partition=1),)


def test_runs_that_lay_side_by_side_are_one_run_when_their_partitions_are() -> None:
    left = (a_run(6, 9, 10, 0), a_run(1, 5, 100, 0))
    right = (a_run(9, 9, 10, 1), a_run(7, 8, 10, 1), a_run(1, 6, 100, 1))
    newer, beyond = a_run(10, 10, 10, partitions=2), a_run(1, 9, 1000, 3)
    ssts = (newer, *left, *right, beyond)
    assert pick(ssts, 2, l0_trigger=5) == ()
    (one,) = pick(ssts, 2, l0_trigger=4)
    assert one.inputs[0] == newer
    assert set(one.inputs) == {newer, *left, *right}
    assert one.drops_tombstones


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 10**6), st.integers(0, 12)), min_size=1, max_size=8),
    st.integers(2, 9),
)
def test_whatever_the_rescales_merging_ends_with_few_ssts_in_every_partition(
    eras: list[tuple[int, int, int]], trigger: int
) -> None:
    ssts: tuple[Sst, ...] = ()
    seq = 0
    for partitions, size, batches in eras:
        for _ in range(batches):
            seq += 1
            ssts = (*(a_run(seq, seq, size, p, partitions) for p in range(partitions)), *ssts)
        counts = runs_by_partition(ssts, partitions)
        while picked := pick(ssts, partitions, l0_trigger=trigger):
            inputs = [sst for one in picked for sst in one.inputs]
            assert len(inputs) == len(set(inputs))
            ssts = apply_results(ssts, [cut(one) for one in picked])
            fewer = runs_by_partition(ssts, partitions)
            assert all(fewer[p] <= counts[p] for p in counts)
            assert all(fewer[one.partition] < counts[one.partition] for one in picked)
            counts = fewer
        assert all(count < trigger for count in counts.values())


def test_few_runs_are_left_alone() -> None:
    assert pick(()) == ()
    assert pick(runs_of(*[10] * 7)) == ()
    assert pick(runs_of(*[10] * 3), l0_trigger=4) == ()


def test_a_trigger_that_can_never_be_met_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 and fanout above 1, found 1"):
        pick((), l0_trigger=1)


def test_deltas_that_outgrow_the_oldest_run_are_merged_into_it() -> None:
    ssts = runs_of(*[100] * 7, 600)
    assert pick(ssts) == (compaction_of(ssts, drops_tombstones=True),)


def test_runs_of_similar_size_are_merged_and_the_large_one_is_left() -> None:
    ssts = runs_of(*[10] * 7, 10_000)
    assert pick(ssts) == (compaction_of(ssts[:7], drops_tombstones=False),)


def test_similar_runs_behind_a_small_one_are_found() -> None:
    ssts = runs_of(1, 100, 110, 10_000)
    assert pick(ssts, l0_trigger=4, size_ratio=0.2) == (compaction_of(ssts[1:3], drops_tombstones=False),)


def test_when_no_sizes_are_similar_the_newest_runs_make_room() -> None:
    ssts = runs_of(1, 10, 100, 1000, 10_000)
    assert pick(ssts, l0_trigger=4) == (compaction_of(ssts[:3], drops_tombstones=False),)


def test_each_partition_is_picked_for_by_itself_in_any_order_of_runs() -> None:
    busy = tuple(a_run(i, i, 10, partition=3) for i in range(8))
    idle = tuple(a_run(i, i, 10, partition=1) for i in range(7))
    newest_first = tuple(reversed(busy))
    assert (
        pick((*idle, *busy))
        == pick((*newest_first, *idle))
        == (compaction_of(newest_first, drops_tombstones=True, partition=3),)
    )


@given(st.lists(st.integers(1, 10**9), max_size=40), st.integers(2, 12), st.integers(2, 8))
def test_what_is_picked_are_neighbours_and_brings_the_runs_below_the_trigger(
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
