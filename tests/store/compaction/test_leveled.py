"""Leveled compaction: the merges that it picks, and invariants of the table."""

import shutil
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.compaction import picker
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick, pick_all
from slackwater.store.compaction.plan import Compaction, CompactionResult, apply_results
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.sorted_runs import by_partition, max_overlap
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Policy

from tests.models.profiles import scaled
from tests.support.state_rows import ROUTES, columns, write_version

LEVELED = Policy("leveled", l0_trigger=2, level_base_bytes=100, fanout=10, target_file_bytes=50)


def an_sst(
    level: int, size: int, seqs: tuple[int, int], eighths: tuple[int, int] = (0, 8), tombstones: int = 0, name: str = ""
) -> Sst:
    """Return an SST whose hashes cover some eighths of the hash range: from `eighths[0]` to before `eighths[1]`."""
    low, high = hash_bounds(eighths[0], 8)[0], hash_bounds(eighths[1] - 1, 8)[1]
    name = name or f"{level}/{eighths}/{seqs}"
    return Sst(name, 0, level, size, size, "", low, high, *seqs, 0, "", 0, tombstones)


def picked(*ssts: Sst, policy: Policy = LEVELED, partitions: int = 1) -> tuple[Compaction, ...]:
    return pick(ssts, partitions, policy)


def test_below_all_limits_nothing_is_picked() -> None:
    assert picked() == ()
    assert picked(an_sst(0, 10, (9, 9)), an_sst(1, 100, (1, 8))) == ()


def test_all_of_level_0_is_merged_with_the_overlapping_ssts_of_level_1() -> None:
    new = (an_sst(0, 10, (9, 9)), an_sst(0, 10, (8, 8), (0, 4)))
    upper = (an_sst(1, 40, (5, 7), (0, 4)), an_sst(1, 40, (4, 7), (4, 8)))
    last = an_sst(2, 500, (1, 3))
    (one,) = picked(*new, *upper, last)
    assert one.inputs == (*new, *upper)
    assert (one.output_level, one.drops_tombstones, one.is_trivial_move) == (1, False, False)
    assert one.hash_range == hash_bounds(0, 1)


def test_a_level_that_is_too_large_moves_down_the_ssts_with_the_least_overlap_below() -> None:
    upper = tuple(an_sst(1, 80, (8, 9), (n, n + 4)) for n in (0, 4))
    lower = (an_sst(2, 500, (1, 3), (0, 4)), an_sst(2, 50, (1, 3), (4, 6)), an_sst(2, 50, (1, 3), (6, 8)))
    (one,) = picked(*upper, *lower)
    assert set(one.inputs) == {upper[1], *lower[1:]}
    assert (one.output_level, one.drops_tombstones, one.hash_range) == (2, True, hash_bounds(1, 2))
    # What exceeds the level's size is 60: one SST is enough. Of 140, two are needed, in two merges.
    more = tuple(replace(sst, bytes=120) for sst in upper)
    assert [set(one.inputs) for one in picked(*more, *lower)] == [{more[1], *lower[1:]}, {more[0], lower[0]}]


def test_an_sst_without_overlap_below_moves_without_being_read() -> None:
    upper = tuple(an_sst(1, 80, (8, 9), (n, n + 4)) for n in (0, 4))
    lower = an_sst(2, 500, (1, 3), (0, 4))
    (one,) = picked(*upper, lower)
    assert (one.inputs, one.is_trivial_move, one.input_bytes) == ((upper[1],), True, 0)
    store, cache = MemoryStore(), SstCache(Path("/nowhere"), 0)
    done = run_compaction(store, cache, "a", "s", ROUTES, one)
    assert done.outputs == (replace(upper[1], level=2),)
    assert apply_results((*upper, lower), [done]) == (upper[0], *done.outputs, lower)
    # Tombstones are dropped on that occasion, so it is read.
    (one,) = picked(upper[0], replace(upper[1], tombstones=1), lower)
    assert (one.is_trivial_move, one.drops_tombstones) == (False, True)


def test_outputs_are_cut_where_the_overlap_with_deeper_levels_begins() -> None:
    upper = an_sst(1, 300, (8, 9), (0, 4))
    lower = an_sst(2, 500, (3, 4), (0, 4))
    last = an_sst(3, 9000, (1, 2), (0, 1))
    (one,) = picked(upper, lower, last)
    assert (one.inputs, one.output_level, one.drops_tombstones) == ((upper, lower), 2, False)
    assert one.slots == 32, "1000 bytes in SSTs of 50 are 20 slots, and so 32"
    assert one.guards == {hash_bounds(slot, 32)[0] for slot in range(5)}


def test_levels_above_the_last_are_merged_with_it_if_space_amplification_is_too_high() -> None:
    some = (an_sst(0, 10, (9, 9)), an_sst(1, 90, (5, 8)), an_sst(2, 80, (1, 4)))
    (one,) = picked(*some)
    assert (one.inputs, one.output_level, one.drops_tombstones) == (some, 2, True)
    assert picked(*some, policy=replace(LEVELED, max_space_amplification=1.2)) == ()


def test_all_runs_of_universal_compaction_but_the_oldest_count_as_level_0() -> None:
    runs = (an_sst(0, 10, (9, 9)), an_sst(3, 20, (7, 8)), an_sst(5, 40, (5, 6)), an_sst(1, 90, (1, 4)))
    (one,) = picked(*runs)
    assert (one.inputs, one.output_level) == (runs, 1)
    # Universal counts levels up: the oldest run of many has no depth of that number.
    oldest = an_sst(40, 5000, (1, 6))
    assert picked(an_sst(2, 300, (7, 8)), oldest) == ()
    (one,) = picked(an_sst(2, 1500, (7, 8)), oldest)
    assert (len(one.inputs), one.output_level) == (1, 3)


def test_a_full_compaction_merges_into_the_level_that_can_hold_the_result() -> None:
    some = (an_sst(1, 90, (5, 8)), an_sst(2, 1900, (1, 4)))
    (one,) = pick_all(some, 1, LEVELED)
    assert (one.inputs, one.output_level, one.drops_tombstones) == (some, 3, True)
    assert pick_all(some[1:], 1, LEVELED) == ()
    assert pick_all((replace(some[1], tombstones=1),), 1, LEVELED)[0].drops_tombstones


@dataclass(frozen=True)
class Era:
    """Operations during which a table has this number of state partitions."""

    partitions: int
    batches: list[dict[int, int | None]]
    late: int
    """Number of batches after which results of merges are committed."""


eras = st.builds(
    Era,
    st.integers(1, 4),
    st.lists(
        st.dictionaries(st.integers(0, 60), st.integers(0, 9) | st.none(), min_size=1, max_size=30),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 2),
)
policies = st.builds(
    Policy,
    st.just("leveled"),
    l0_trigger=st.integers(2, 4),
    max_space_amplification=st.sampled_from([0.5, 1.0, 100.0]),
    level_base_bytes=st.sampled_from([3000, 7000]),
    fanout=st.sampled_from([2.0, 3.0]),
    target_file_bytes=st.sampled_from([1000, 3000]),
)


@scaled(12)
@given(st.lists(eras, min_size=1, max_size=4), policies, st.sampled_from([picker.WIDE_BYTES, 3_000, 0]))
def test_after_any_writes_each_level_is_one_run_and_reads_are_unchanged(
    history: list[Era], policy: Policy, wide_bytes: int
) -> None:
    with patch.object(picker, "WIDE_BYTES", wide_bytes):
        check_history(history, policy)


def check_history(history: list[Era], policy: Policy) -> None:
    folder = Path(tempfile.mkdtemp())
    store, cache, table = MemoryStore(), SstCache(folder, 1 << 30), ROUTES
    ssts: tuple[Sst, ...] = ()
    model: dict[int, int | None] = {}
    seq = 0
    try:
        for era in history:
            table = replace(table, partitions=era.partitions)
            waiting: list[tuple[int, CompactionResult]] = []
            for changes in era.batches:
                seq += 1
                rows = {(str(k), "x"): None if v is None else (v, None, None) for k, v in changes.items()}
                # Small batches have one task, and so one SST for all ranges.
                few = replace(table, tasks=1 if len(rows) < 10 else 0)
                ssts = (*write_version(store, cache, few, rows, seq), *ssts)
                model |= changes
                ssts = apply_results(ssts, [done for at, done in waiting if at <= seq])
                waiting = [(at, done) for at, done in waiting if at > seq]
                busy = {sst for _, done in waiting for sst in done.compaction.inputs}
                for one in pick(ssts, table.partitions, policy):
                    if busy.isdisjoint(one.inputs):
                        waiting.append((seq + era.late, run_compaction(store, cache, "app", "stage", table, one)))
                ssts = apply_results(ssts, [done for at, done in waiting if at <= seq])
                waiting = [(at, done) for at, done in waiting if at > seq]
                check_levels(ssts)
                check_reads(store, cache, ssts, model)
            ssts = apply_results(ssts, [done for _, done in waiting])
        for _ in range(100):
            due = pick(ssts, table.partitions, policy)
            if not due:
                break
            ssts = apply_results(ssts, [run_compaction(store, cache, "app", "stage", table, one) for one in due])
            check_levels(ssts)
        assert not pick(ssts, table.partitions, policy), "merging does not end"
        check_reads(store, cache, ssts, model)
        for mine in by_partition(ssts, table.partitions).values():
            assert max_overlap(sst for sst in mine if not sst.level) < policy.l0_trigger
            assert max_overlap(mine) < policy.l0_trigger + max(sst.level for sst in mine)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_levels(ssts: tuple[Sst, ...]) -> None:
    """Check that SSTs of a level do not overlap, and that where SSTs overlap, the upper level is newer."""
    for one, other in combinations(ssts, 2):
        if one.hash_min <= other.hash_max and other.hash_min <= one.hash_max:
            assert one.level != other.level or not one.level
            upper, lower = sorted((one, other), key=lambda sst: (sst.level, -sst.seq_max))
            assert upper.seq_min > lower.seq_max


def check_reads(store: MemoryStore, cache: SstCache, ssts: tuple[Sst, ...], model: dict[int, int | None]) -> None:
    keys = columns(ROUTES.key, [(str(k), "x") for k in model])
    values, present = multi_get(store, cache, ssts, ROUTES, hash_keys(keys, ["origin", "dest"]), keys)
    assert present.tolist() == [value is not None for value in model.values()]
    assert values["flights"] == pa.chunked_array([pa.array(list(model.values()), pa.int64())])
