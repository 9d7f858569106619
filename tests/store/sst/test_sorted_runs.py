from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.sst.hashing import partition_of
from slackwater.store.sst.sorted_runs import (
    by_partition,
    max_overlap,
    overlapped_partitions,
    overlapping,
    overlapping_older,
    sorted_runs,
    ssts_of_partition,
)
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
hashes = st.integers(LOWEST, HIGHEST)
counts = st.integers(1, 20) | st.integers(1, 1 << 20)


def an_sst(hash_min: int, hash_max: int, seq_min: int = 1, seq_max: int = 1, name: str = "") -> Sst:
    return Sst(name, 0, 0, 1, 1, "", hash_min, hash_max, seq_min, seq_max, 0, "", 0)


ssts = st.builds(
    lambda ends, seqs: an_sst(min(ends), max(ends), min(seqs), max(seqs)),
    st.tuples(hashes, hashes),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
)


@given(counts, st.data())
def test_the_bounds_of_a_partition_are_its_first_and_last_hash(partitions: int, data: st.DataObject) -> None:
    partition = data.draw(st.integers(0, partitions - 1))
    low, high = hash_bounds(partition, partitions)
    assert set(partition_of(np.array([low, high]), partitions).tolist()) == {partition}
    assert low == LOWEST or partition_of(np.array([low - 1]), partitions)[0] == partition - 1
    assert high == HIGHEST or partition_of(np.array([high + 1]), partitions)[0] == partition + 1


@given(hashes, hashes, counts)
def test_an_sst_overlaps_the_partitions_between_its_lowest_and_highest_hash(
    one: int, other: int, partitions: int
) -> None:
    low, high = sorted((one, other))
    first, last = partition_of(np.array([low, high]), partitions).tolist()
    assert overlapped_partitions(an_sst(low, high), partitions) == range(first, last + 1)


@given(st.lists(ssts, max_size=8), st.integers(1, 7))
def test_the_ssts_of_a_partition_are_all_that_overlap_the_partition(some: list[Sst], partitions: int) -> None:
    found = by_partition(some, partitions)
    assert list(found) == sorted(found)
    for partition in range(partitions):
        expected = [sst for sst in some if partition in overlapped_partitions(sst, partitions)]
        assert found.get(partition, []) == list(ssts_of_partition(some, partition, partitions)) == expected


@given(st.lists(ssts, max_size=12))
def test_sorted_runs_never_overlap_in_seq_and_are_as_many_as_possible(some: list[Sst]) -> None:
    runs = sorted_runs(some)
    assert sorted((sst for run in runs for sst in run), key=repr) == sorted(some, key=repr)
    for newer, older in pairwise(runs):
        assert min(sst.seq_min for sst in newer) > max(sst.seq_max for sst in older)
    for run in runs:
        for at in range(1, len(run)):
            assert max(sst.seq_max for sst in run[at:]) >= min(sst.seq_min for sst in run[:at])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_deltas_are_the_ssts_over_an_older_one(ranges: list[tuple[int, int]]) -> None:
    some = [an_sst(min(ends), max(ends), seq, seq) for seq, ends in enumerate(ranges)]
    expected = [
        sst
        for sst in some
        if any(
            sst.hash_min <= other.hash_max and other.hash_min <= sst.hash_max and other.seq_max < sst.seq_max
            for other in some
        )
    ]
    assert list(overlapping_older(some)) == expected


def meet(one: Sst, other: Sst) -> bool:
    return one.hash_min <= other.hash_max and other.hash_min <= one.hash_max


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(1, 20), st.integers(0, 2)), max_size=12),
    st.integers(0, 3),
)
def test_non_overlapping_ssts_of_a_level_are_one_run(some: list[tuple[int, int, int, int]], lasting: int) -> None:
    ssts = [
        replace(an_sst(at, at + width, max(1, seq - lasting), seq, f"{n}"), level=level)
        for n, (at, width, seq, level) in enumerate(some)
    ]
    runs = sorted_runs(ssts)
    assert sorted(sst.object for run in runs for sst in run) == sorted(sst.object for sst in ssts)
    for newer, older in pairwise(runs):
        assert min(sst.seq_min for sst in newer) > max(sst.seq_max for sst in older)
    for run in runs:
        beside = len({sst.level for sst in run}) == 1 and run[0].level and max_overlap(run) == 1
        for at in range(1, len(run)):
            assert beside or max(sst.seq_max for sst in run[at:]) >= min(sst.seq_min for sst in run[:at])
    for newer, older in pairwise(runs):
        levels = {sst.level for sst in (*newer, *older)}
        assert len(levels) > 1 or 0 in levels or any(meet(one, other) for one, other in combinations(newer + older, 2))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_max_overlap_is_the_largest_number_of_ssts_that_may_have_a_hash(ranges: list[tuple[int, int]]) -> None:
    some = [an_sst(min(ends), max(ends)) for ends in ranges]
    assert max_overlap(some) == max(len(overlapping(some, at, at)) for at in range(21))
