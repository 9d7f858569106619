"""Compactions that are split into pieces: the combined results equal that of the complete compaction."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.compaction.merge import iter_visible_rows, run_compaction
from slackwater.store.compaction.picker import pick, pick_all
from slackwater.store.compaction.pieces import split
from slackwater.store.compaction.plan import Compaction, CompactionResult, apply_results
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import by_partition, overlapped_partitions, sorted_runs
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Policy

from tests.store.compaction.runs import a_run
from tests.support.state_rows import ROUTES, Key, Values, write_version

NOT_CACHED = SstCache(Path("/dev/null") / "cache", 0)
LEVELED = Policy("leveled", l0_trigger=2, level_base_bytes=16_000, fanout=2, target_file_bytes=2_000)


def written(policy: Policy, versions: int, seed: int, partitions: int = 2) -> tuple[MemoryStore, tuple[Sst, ...]]:
    """Write versions that put and delete some of a hundred keys each. Return the SSTs of these batches."""
    store, random, ssts = MemoryStore(), np.random.default_rng(seed), tuple[Sst, ...]()
    table = replace(ROUTES, partitions=partitions, compaction=policy)
    for version in range(1, versions + 1):
        chosen = sorted(random.choice(400, 100, replace=False).tolist())
        changes: dict[Key, Values | None] = {
            (str(key), "x"): None if random.random() < 0.2 else (version, None, None) for key in chosen
        }
        ssts = (*write_version(store, None, table, changes, version), *ssts)
    return store, ssts


def rows_of(store: MemoryStore, ssts: tuple[Sst, ...]) -> list[dict[str, object]]:
    parts = (iter_visible_rows(store, None, ssts, replace(ROUTES, partitions=2), partition, 0) for partition in (0, 1))
    return [row for part in parts for rows in part for row in rows.to_pylist()]


def carried_out(store: MemoryStore, compaction: Compaction, max_bytes: int, policy: Policy) -> CompactionResult:
    table = replace(ROUTES, partitions=2, compaction=policy)
    pieces = split(compaction, max_bytes)
    results = [run_compaction(store, NOT_CACHED, "app", "stage", table, piece) for piece in pieces]
    return CompactionResult(compaction, tuple(sst for result in results for sst in result.outputs))


@pytest.mark.parametrize("policy", [Policy(l0_trigger=2), LEVELED], ids=["universal", "leveled"])
@given(versions=st.integers(2, 4), seed=st.integers(0, 99), max_bytes=st.integers(4_000, 20_000))
def test_a_merge_in_pieces_gives_the_result_of_the_complete_merge(
    policy: Policy, versions: int, seed: int, max_bytes: int
) -> None:
    store, ssts = written(policy, versions, seed)
    before = rows_of(store, ssts)
    for _ in range(2):
        due = pick(ssts, 2, policy)
        whole = apply_results(ssts, [carried_out(store, compaction, 1 << 40, policy) for compaction in due])
        ssts = tuple(apply_results(ssts, [carried_out(store, compaction, max_bytes, policy) for compaction in due]))
        assert rows_of(store, ssts) == before
        # As many look-ups find a row, and no tombstone is left that the whole merge drops.
        runs_of_pieces, runs_of_whole = (
            {
                partition: [(run[0].level, sum(sst.rows for sst in run)) for run in sorted_runs(own)]
                for partition, own in by_partition(result, 2).items()
            }
            for result in (ssts, whole)
        )
        assert runs_of_pieces == runs_of_whole


def test_pieces_cover_the_hash_range_and_read_about_equal_parts_of_the_input() -> None:
    inputs = tuple(a_run(seq, seq, 100, 1) for seq in (3, 2, 1))
    pieces = split(Compaction(1, 4, inputs, drops_tombstones=True), 64)
    windows = [piece.hash_range for piece in pieces]
    assert len(windows) == 5
    assert (windows[0][0], windows[-1][1]) == hash_bounds(1, 4)
    assert all(earlier[1] + 1 == later[0] for earlier, later in pairwise(windows))
    widths = [high - low for low, high in windows]
    assert max(widths) - min(widths) <= 1
    assert {piece.level for piece in pieces} == {1}


def test_a_leveled_merge_is_split_between_slots() -> None:
    _, ssts = written(LEVELED, 4, 1, partitions=1)
    (whole,) = pick_all(ssts, 1, LEVELED)
    assert whole.slots > 2
    pieces = split(whole, whole.input_bytes // 3)
    assert 2 <= len(pieces) <= whole.slots
    met = [
        set(overlapped_partitions(replace(ssts[0], hash_min=low, hash_max=high), whole.slots))
        for low, high in (piece.hash_range for piece in pieces)
    ]
    assert sum(map(len, met)) == len(set().union(*met)) == whole.slots
    assert len(split(whole, 1)) == whole.slots


def test_a_merge_that_is_small_or_cuts_an_input_is_not_split() -> None:
    inputs = tuple(a_run(seq, seq, 100) for seq in (2, 1))
    small = Compaction(0, 4, inputs, drops_tombstones=True)
    assert split(small, 200) == (small,)
    assert len(split(small, 199)) == 2
    reaching = Compaction(0, 4, (inputs[0], a_run(1, 1, 100, 0, 2)), drops_tombstones=True)
    assert split(reaching, 50) == (reaching,)
    moved = Compaction(0, 4, inputs, drops_tombstones=True, is_trivial_move=True)
    assert split(moved, 1) == (moved,)


def test_a_range_of_hashes_without_input_is_not_a_piece() -> None:
    low = replace(a_run(1, 1, 100), hash_max=hash_bounds(0, 16)[1])
    assert len(split(Compaction(0, 4, (low,), drops_tombstones=True), 25)) == 1
