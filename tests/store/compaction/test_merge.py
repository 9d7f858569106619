"""Execution of a compaction: its memory, its store requests and the sizes of its results."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from slackwater.errors import Refused
from slackwater.store.compaction import merge
from slackwater.store.compaction.merge import MergeStopped, run_compaction
from slackwater.store.compaction.plan import Compaction, newest_first
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.sorted_runs import overlapped_partitions, sorted_runs
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

TABLE = Table((Column("n", "int64"),), (Column("v", "int64"), Column("w", "int64")), partitions=1)
RANDOM = np.random.default_rng(7)


def written(store: object, cache: SstCache | None, keys: np.ndarray, seq: int, *, level: int = 0) -> Sst:
    """Write an SST with random values for these keys."""
    rows = pa.table({"n": keys, "v": RANDOM.integers(1 << 62, size=len(keys)), "w": np.full(len(keys), seq)})
    rows = rows.append_column("_hash", pa.array(hash_keys(rows, ["n"])))
    rows = rows.append_column("_seq", pa.array(np.full(len(keys), seq)))
    rows = rows.append_column("_op", pa.array(np.zeros(len(keys), np.int8)))
    sst = writer.write_sst(store, cache, app="a", stage="s", table=TABLE, partition=0, rows=rows)  # type: ignore[arg-type]
    return structs.replace(sst, level=level)


def whole(inputs: tuple[Sst, ...], target_file_bytes: int, partitions: int = 1) -> Compaction:
    """Return a compaction of the only state partition, or of the first of several."""
    return Compaction(0, partitions, newest_first(inputs), drops_tombstones=True, target_file_bytes=target_file_bytes)


_POOLS: list[pa.MemoryPool] = []
"""Memory pools that outlive a test, because its buffers may."""


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """Yield a list that gets the peak number of bytes that Python, numpy and Arrow allocate within the block."""
    peak: list[int] = []
    before = pa.default_memory_pool()
    _POOLS.append(pool := pa.proxy_memory_pool(before))
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1] + pool.max_memory())
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.parametrize("cached", [True, False], ids=["inputs in the cache", "inputs in the store"])
def test_a_merge_holds_only_a_small_part_of_the_table_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    # These bound the memory, whatever is merged: smaller here, so that the table need not be huge.
    monkeypatch.setattr(merge, "_SLICE_ROWS", 1 << 13)
    monkeypatch.setattr(merge, "_READ_BYTES", 1 << 19)
    monkeypatch.setattr("slackwater.store.read.decode.BLOCK_ROWS", 1 << 13)
    monkeypatch.setattr("slackwater.store.sst.writer.ROW_GROUP_ROWS", 1 << 13)
    store = CountingStore(LocalStore(tmp_path / "store"))
    cache = SstCache(tmp_path / "cache", 1 << 30 if cached else 0)
    base = written(store, cache, np.arange(600_000), 1, level=1)
    news = [written(store, cache, RANDOM.choice(600_000, 18_000, replace=False), seq) for seq in range(2, 5)]
    decoded = 41 * 600_000
    for _ in range(3):  # threads that other tests have left can add to what is measured, and take nothing off it
        before = store.counts["put"]
        with peak_bytes() as peak:
            done = run_compaction(store, cache, "a", "s", TABLE, whole((base, *news), 1 << 19))
        if peak[0] < decoded / 3:
            break
    assert peak[0] < decoded / 3
    assert sum(one.rows for one in done.outputs) == 600_000
    assert len(done.outputs) == store.counts["put"] - before > 10
    assert all(one.bytes < 1.3 * (1 << 19) for one in done.outputs)
    newest = np.concatenate([cache.open(store, one, TABLE).stored["w"].to_numpy() for one in done.outputs])
    assert 36_000 < np.count_nonzero(newest > 1) <= 54_000


def test_the_ssts_of_a_result_do_not_overlap_and_are_one_run(tmp_path: Path) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path, 1 << 30)
    inputs = tuple(written(store, cache, np.arange(seq, 60_000, 3), seq) for seq in range(1, 4))
    done = run_compaction(store, cache, "a", "s", TABLE, whole(inputs, 200_000))
    assert len(done.outputs) > 4
    assert all(one.level == 1 for one in done.outputs)
    for one, other in pairwise(done.outputs):
        assert one.hash_max < other.hash_min
    newer, older = written(store, cache, np.arange(9), 4), written(store, cache, np.arange(9), 0)
    assert [len(each) for each in sorted_runs((newer, *done.outputs, older))] == [1, len(done.outputs), 1]


def test_an_sst_contains_complete_slots_or_part_of_one_and_ends_at_a_guard(tmp_path: Path) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path, 1 << 30)
    inputs = (written(store, cache, np.arange(40_000), 1),)

    def cut(target_file_bytes: int, slots: int, *guarded: int) -> list[set[int]]:
        one = Compaction(
            0,
            1,
            inputs,
            drops_tombstones=True,
            target_file_bytes=target_file_bytes,
            slots=slots,
            guards=frozenset(hash_bounds(slot, slots)[0] for slot in guarded),
        )
        return [
            set(overlapped_partitions(made, slots))
            for made in run_compaction(store, cache, "a", "s", TABLE, one).outputs
        ]

    size = inputs[0].bytes
    assert cut(2 * size, 8) == [set(range(8))]
    assert cut(2 * size, 8, 3, 4) == [{0, 1, 2}, {3}, {4, 5, 6, 7}]
    assert cut(int(size / 3.5), 8) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    parts = cut(size // 10, 4)
    assert all(len(part) == 1 for part in parts)
    assert [sum(part == {slot} for part in parts) for slot in range(4)] == [3, 3, 3, 3]


def test_uncached_inputs_are_read_in_pieces_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore(MemoryStore())
    monkeypatch.setattr("slackwater.store.sst.writer.ROW_GROUP_ROWS", 1 << 14)
    inputs = tuple(written(store, None, np.arange(seq, 200_000, 2), seq) for seq in (1, 2))
    size = sum(one.bytes for one in inputs)
    monkeypatch.setattr(merge, "_READ_BYTES", size // 2)
    store.reset()
    done = run_compaction(store, SstCache(tmp_path, 0), "a", "s", TABLE, whole(inputs, 1 << 30))
    assert done.outputs[0].rows == 199_999
    assert 2 * (1 + 2) <= store.counts["get_range"] <= 2 * (1 + 3), "of each SST the footer, and its rows in few pieces"
    assert store.counts == {"get_range": store.counts["get_range"], "put": 1}
    assert store.bytes_read <= size


def test_a_result_is_cut_at_the_bounds_of_state_partitions_only_if_requested(tmp_path: Path) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path, 1 << 30)
    wide = tuple(written(store, cache, np.arange(40_000), seq, level=3) for seq in (1, 2))
    window = wide[0].hash_min, wide[0].hash_max
    one = replace(whole(wide, 64 << 20, partitions=4), window=window)
    (output,) = run_compaction(store, cache, "a", "s", TABLE, one).outputs
    assert (output.level, output.rows, output.partition) == (4, 40_000, 0)
    outputs = run_compaction(store, cache, "a", "s", TABLE, replace(one, cuts=True, level=0)).outputs
    assert [(sst.level, sst.partition) for sst in outputs] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [overlapped_partitions(sst, 4) for sst in outputs] == [range(p, p + 1) for p in range(4)]
    assert sum(sst.rows for sst in outputs) == 40_000
    with pytest.raises(ValueError, match="reaches beyond them"):
        run_compaction(store, cache, "a", "s", TABLE, whole(wide, 100_000, partitions=4))


def test_a_merge_stops_on_request_and_before_its_result_counts_as_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path, 1 << 30)
    one = whole((written(store, cache, np.arange(10), 1),), 1 << 20)
    with pytest.raises(MergeStopped):
        run_compaction(store, cache, "a", "s", TABLE, one, should_stop=lambda: True)
    monkeypatch.setattr(merge, "_MAX_MERGE_S", -1.0)
    with pytest.raises(Refused, match="hash range 0 takes more than") as refused:
        run_compaction(store, cache, "a", "s", TABLE, one)
    assert "tasks=" in refused.value.hint
