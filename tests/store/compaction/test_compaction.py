import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.store.compaction import merge, picker
from slackwater.store.compaction.merge import run
from slackwater.store.compaction.plan import Compaction, Done, apply
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import bounds, by_partition, depth, sorted_runs, touched
from slackwater.store.sst.writer import prepare
from slackwater.store.versions.manifest import Policy, Sst

from tests.support.state_rows import ROUTES, Hashes, Key, Values, write_version

LARGE = 1 << 40


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryStore())


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", LARGE)


PARTITIONS = 4
"""State partitions that runs without content are picked among."""


def pick(ssts: tuple[Sst, ...], partitions: int = PARTITIONS, **knobs: Any) -> tuple[Compaction, ...]:
    return picker.pick(ssts, partitions, Policy(**knobs))


def a_run(seq_min: int, seq_max: int, size: int, partition: int = 0, partitions: int = PARTITIONS) -> Sst:
    """A run that only says how large it is, and where."""
    name = f"{partition}of{partitions}/{seq_min}-{seq_max}"
    return Sst(name, partition, 0, size, size, "", *bounds(partition, partitions), seq_min, seq_max)


def compaction_of(
    inputs: tuple[Sst, ...], *, drops_tombstones: bool, partition: int = 0, partitions: int = PARTITIONS
) -> Compaction:
    return Compaction(partition, partitions, inputs, drops_tombstones=drops_tombstones)


def whole(inputs: tuple[Sst, ...], *, drops_tombstones: bool) -> Compaction:
    """Of the only state partition."""
    return compaction_of(inputs, drops_tombstones=drops_tombstones, partitions=1)


def runs_of(*sizes: int) -> tuple[Sst, ...]:
    """Runs of these sizes, newest first."""
    count = len(sizes)
    return tuple(a_run(count - i, count - i, size) for i, size in enumerate(sizes))


def merged(done: Compaction, size: int | None = None) -> Done:
    """As if it had been carried out."""
    inputs = done.inputs
    size = sum(entry.bytes for entry in inputs) if size is None else size
    return Done(done, (a_run(inputs[-1].seq_min, inputs[0].seq_max, size, inputs[0].partition),))


def cut(one: Compaction) -> Done:
    """As if it had been carried out, with keys everywhere."""
    count = one.partitions
    pieces = [(entry, p) for entry in one.inputs for p in touched(entry, count) if p != one.partition]
    oldest, newest = min(entry.seq_min for entry in one.inputs), max(entry.seq_max for entry in one.inputs)
    size = sum(entry.bytes for entry in one.inputs)
    outputs = [a_run(oldest, newest, size, one.partition, count)]
    for number, (piece, p) in enumerate(pieces):
        low, high = bounds(p, count)
        low, high = max(low, piece.hash_min), min(high, piece.hash_max)
        outputs.append(replace(piece, object=f"{piece.object}/{number}", partition=p, hash_min=low, hash_max=high))
    return Done(one, tuple(outputs))


def runs_by_partition(ssts: tuple[Sst, ...], partitions: int) -> dict[int, int]:
    """In how many SSTs of each state partition a key can be."""
    return {p: sum(map(depth, sorted_runs(mine))) for p, mine in by_partition(ssts, partitions).items()}


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
            ssts = apply(ssts, [cut(one) for one in picked])
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
        ssts = apply(ssts, [merged(one)])
    assert len(ssts) < trigger


@pytest.mark.parametrize("base", [0, 100, 10_000], ids=lambda base: f"base={base}")
@pytest.mark.parametrize("grows", [True, False], ids=["inserts", "updates"])
def test_each_byte_is_rewritten_a_logarithmic_number_of_times(base: int, grows: bool) -> None:
    batches, batch = 3000, 100
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
            ssts = apply(ssts, [merged(one, size)])
        assert len(ssts) < 8
    state = max(base, batches if grows else 100)
    assert written / (batches * batch) <= 1 + math.log2(state)
    # The oldest run is only rewritten when the others have grown to its size.
    if base:
        assert largest_rewrites <= 2 * batches / base + 1


def test_the_newest_row_of_each_key_is_kept(store: CountingStore, cache: SstCache) -> None:
    old = write_version(store, None, ROUTES, {("a", "x"): (1, None, None), ("b", "x"): (1, None, None)}, 1)
    new = write_version(store, cache, ROUTES, {("a", "x"): (2, None, None), ("c", "x"): (2, None, None)}, 2)
    before = store.counts["put"]
    done = run(store, cache, "app", "stage", ROUTES, whole((*new, *old), drops_tombstones=True))
    (output,) = done.outputs
    assert store.counts["put"] == before + 1
    kept = cache.peek(output, ROUTES)
    assert kept is not None
    found = {row["origin"]: (row["flights"], row["_seq"]) for row in kept.table.to_pylist()}
    assert found == {"a": (2, 2), "b": (1, 1), "c": (2, 2)}
    assert (output.seq_min, output.seq_max, output.level, output.rows) == (1, 2, 1, 3)
    assert output.object not in (old[0].object, new[0].object)


def test_tombstones_stay_while_an_older_run_may_have_the_key(store: CountingStore, cache: SstCache) -> None:
    mid = write_version(store, cache, ROUTES, {("a", "x"): (1, None, None), ("b", "x"): None}, 2)
    new = write_version(store, cache, ROUTES, {("a", "x"): None}, 3)
    done = run(store, cache, "app", "stage", ROUTES, whole((*new, *mid), drops_tombstones=False))
    (output,) = done.outputs
    assert (output.rows, output.tombstones) == (2, 2)
    gone = run(store, cache, "app", "stage", ROUTES, whole((output,), drops_tombstones=True))
    assert gone.outputs == ()
    assert apply((output,), [gone]) == ()


def test_the_level_is_one_more_than_the_highest_input(store: CountingStore, cache: SstCache) -> None:
    old = write_version(store, cache, ROUTES, {("a", "x"): (1, None, None)}, 1)[0]
    new = write_version(store, cache, ROUTES, {("b", "x"): (1, None, None)}, 2)[0]
    done = run(store, cache, "app", "stage", ROUTES, whole((new, replace(old, level=4)), drops_tombstones=True))
    (output,) = done.outputs
    assert output.level == 5


def test_a_damaged_input_is_told_and_nothing_is_written(store: CountingStore, cache: SstCache) -> None:
    old = write_version(store, None, ROUTES, {("a", "x"): (1, None, None)}, 1)[0]
    store.put(old.object, b"")
    before = store.counts["put"]
    with pytest.raises(Corruption):
        run(store, cache, "app", "stage", ROUTES, whole((old,), drops_tombstones=True))
    assert store.counts["put"] == before


histories = st.lists(
    st.dictionaries(st.integers(0, 40), st.integers(0, 9) | st.none(), min_size=1), min_size=1, max_size=6
)


@settings(max_examples=40)
@given(histories, st.sampled_from([0, 1, 5]), st.booleans(), st.sampled_from([4, 1 << 18]))
def test_merging_changes_nothing_but_the_number_of_rows(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[int, int | None]],
    modulus: int,
    drop: bool,
    slice_rows: int,
) -> None:
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path_factory.mktemp("cache"), LARGE)
    expected: dict[Key, tuple[Values | None, int]] = {}
    ssts: tuple[Sst, ...] = ()
    for seq, changes in enumerate(history, start=1):
        rows: dict[Key, Values | None] = {
            (None if k == 0 else str(k), "x"): None if v is None else (v, None, None) for k, v in changes.items()
        }
        ssts = (*write_version(store, cache, ROUTES, rows, seq, Hashes(modulus)), *ssts)
        expected |= {key: (values, seq) for key, values in rows.items()}
    if drop:
        expected = {key: found for key, found in expected.items() if found[0] is not None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "_SLICE_ROWS", slice_rows)
        patch.setattr("slackwater.store.read.decode.BLOCK_ROWS", 7)
        done = run(store, cache, "app", "stage", ROUTES, whole(ssts, drops_tombstones=drop))
    if not done.outputs:
        assert not expected
        return
    (output,) = done.outputs
    table = cache.open(store, output, ROUTES).table
    found = {
        (row["origin"], row["dest"]): (
            None if row["_op"] else (row["flights"], row["delay"], row["_sum"]),
            row["_seq"],
        )
        for row in table.to_pylist()
    }
    assert found == expected
    assert output.rows == len(expected)
    # In the order of an SST, which preparing it again would not change.
    assert prepare(table, ROUTES) == table


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12), st.integers(0, 6), st.data())
def test_a_result_lands_the_same_whether_newer_runs_came_before_or_after_it(
    sizes: list[int], num_newer: int, data: st.DataObject
) -> None:
    ssts = runs_of(*sizes)
    other = tuple(a_run(i, i, 5, partition=1) for i in range(3))
    start = data.draw(st.integers(0, len(ssts) - 2))
    end = data.draw(st.integers(start + 2, len(ssts)))
    done = merged(compaction_of(ssts[start:end], drops_tombstones=end == len(ssts)))
    if data.draw(st.booleans()):
        done = Done(done.compaction, ())
    newer = tuple(a_run(len(ssts) + i, len(ssts) + i, 7) for i in range(num_newer, 0, -1))
    assert apply((*newer, *ssts, *other), [done]) == (*newer, *apply((*ssts, *other), [done]))


def test_results_of_several_partitions_land_together() -> None:
    left, right = runs_of(1, 1), tuple(a_run(i, i, 1, partition=1) for i in (2, 1))
    done = [
        merged(compaction_of(left, drops_tombstones=True)),
        merged(compaction_of(right, drops_tombstones=True, partition=1)),
    ]
    assert apply((*left, *right), done) == (*done[0].outputs, *done[1].outputs)


def test_a_result_whose_inputs_are_gone_is_left_out() -> None:
    ssts = runs_of(1, 1, 1, 1)
    first = merged(compaction_of(ssts[1:3], drops_tombstones=False))
    second = merged(compaction_of(ssts[:2], drops_tombstones=False))
    after = apply(ssts, [first])
    assert apply(after, [second]) == after
    assert apply((), [first]) == ()


def test_a_result_between_whose_inputs_a_run_lies_now_is_left_out() -> None:
    newest, between, oldest = runs_of(1, 1, 1)
    done = merged(compaction_of((newest, oldest), drops_tombstones=True))
    assert apply((newest, between, oldest), [done]) == (newest, between, oldest)


def test_a_result_without_tombstones_is_left_out_when_there_is_an_older_run() -> None:
    newest, older, oldest = runs_of(1, 1, 1)
    done = merged(compaction_of((newest, older), drops_tombstones=True))
    assert apply((newest, older, oldest), [done]) == (newest, older, oldest)
    assert apply((newest, older), [done]) == done.outputs
