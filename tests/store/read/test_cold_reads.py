"""Look-ups on a machine that has nothing yet: what they read, at once or one after the other, and what they hold."""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from cachetools import LRUCache
from slackwater.errors import Corruption
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read import footers, range_reads
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get, point_get
from slackwater.store.read.read_stats import Reads
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, Sst, Table

LARGE = 1 << 40
NUMBERED = Table((Column("k", "int64"),), (Column("v", "int64"),), partitions=1, state="test")
BASE_ROWS = 40 * writer.ROW_GROUP_ROWS
NEWER_ROWS = 20_000


def put(store: CountingStore, numbers: np.ndarray, seq: int) -> Sst:
    keys = pa.table({"k": numbers})
    rows = (
        keys.append_column("v", pa.array(numbers * 10 + seq))
        .append_column("_hash", pa.array(hash_keys(keys, ["k"])))
        .append_column("_seq", pa.array(np.full(len(numbers), seq)))
        .append_column("_op", pa.array(np.zeros(len(numbers), np.uint8)))
    )
    return writer.write(store, None, app="a", stage="s", table=NUMBERED, partition=0, rows=rows)


@pytest.fixture(scope="module")
def table() -> tuple[CountingStore, tuple[Sst, ...]]:
    """A base and three newer runs."""
    store = CountingStore(MemoryStore())
    random = np.random.default_rng(1)
    ssts = [put(store, np.arange(BASE_ROWS), 1)]
    ssts += [put(store, random.choice(BASE_ROWS, NEWER_ROWS, replace=False), seq) for seq in (2, 3, 4)]
    return store, tuple(ssts)


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers, "_footers", LRUCache(1024))


def look_up(
    store: CountingStore, cache: SstCache, ssts: tuple[Sst, ...], numbers: np.ndarray, reads: Reads
) -> list[int | None]:
    keys = pa.table({"k": numbers})
    values, _ = multi_get(store, cache, ssts, NUMBERED, hash_keys(keys, ["k"]), keys, reads)
    return values["v"].to_pylist()


@pytest.mark.parametrize("num", [3, 30, 300, 3_000, 100_000])
def test_a_cold_look_up_reads_hardly_more_than_the_row_groups_its_keys_fall_in(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, num: int
) -> None:
    store, ssts = table
    numbers = np.random.default_rng(num).integers(BASE_ROWS, size=num)
    reads, before = Reads(), store.bytes_read
    found = look_up(store, SstCache(tmp_path / "cache", LARGE), ssts, numbers, reads)
    assert [value // 10 for value in found if value is not None] == numbers.tolist()
    assert reads.bytes == store.bytes_read - before
    assert reads.bytes <= 1.2 * reads.touched_bytes


def test_absent_keys_cost_a_filter_and_no_row_group(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path
) -> None:
    store, ssts = table
    reads = Reads()
    numbers = BASE_ROWS + np.arange(20)
    assert look_up(store, SstCache(tmp_path / "cache", LARGE), ssts, numbers, reads) == [None] * 20
    # Of 100 keys that are not there, 3 pass a filter.
    assert reads.row_groups <= 8
    assert reads.filtered >= 65
    assert reads.bytes < reads.touched_bytes / 4
    keys = pa.table({"k": numbers})
    assert not point_get(store, ssts, NUMBERED, hash_keys(keys, ["k"]), keys).present.any()


def test_the_tails_of_all_runs_come_at_once(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ssts = table
    together = threading.Barrier(len(ssts), timeout=30)
    get_range = CountingStore.get_range

    def meet(self: CountingStore, key: str, start: int, length: int) -> bytes:
        data = get_range(self, key, start, length)
        if len(footers._footers) < len(ssts):
            together.wait()
        return data

    monkeypatch.setattr(CountingStore, "get_range", meet)
    reads = Reads()
    look_up(store, SstCache(tmp_path / "cache", LARGE), ssts, np.array([BASE_ROWS + 1]), reads)
    assert reads.requests >= len(ssts)


def test_far_ranges_come_at_once_and_near_ones_together(table: tuple[CountingStore, tuple[Sst, ...]]) -> None:
    store, (base, *_) = table
    data = store.get(base.object)
    reads = Reads()
    before = store.counts["get_range"]
    starts, ends = [0, 600_000, 650_000, 1_500_000], [400_000, 649_900, 900_000, 1_500_100]
    found = range_reads.RangeReader(store, base, reads).read(starts, ends)
    assert [(start, len(piece)) for start, piece in found] == [(0, 400_000), (600_000, 300_000), (1_500_000, 100)]
    assert all(piece == data[start : start + len(piece)] for start, piece in found)
    assert (reads.requests, reads.bytes) == (3, 700_100)
    assert store.counts["get_range"] - before == 3


def test_a_long_range_is_read_in_parts(
    table: tuple[CountingStore, tuple[Sst, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (base, *_) = table
    monkeypatch.setattr(range_reads, "_LARGEST_BYTES", 100_000)
    reads = Reads()
    ((start, data),) = range_reads.RangeReader(store, base, reads).read([5], [350_005])
    assert (start, data) == (5, store.get(base.object)[5:350_005])
    assert reads.requests == 4


def test_a_range_beyond_the_object_is_damage(table: tuple[CountingStore, tuple[Sst, ...]]) -> None:
    store, (base, *_) = table
    with pytest.raises(Corruption, match="expected 200 bytes"):
        range_reads.RangeReader(store, base, Reads()).read([0, base.bytes - 100], [100, base.bytes + 100])


def test_gaps_never_add_up_to_more_than_a_part_of_what_is_read() -> None:
    starts = list(range(0, 1_000_000, 10_000))
    ends = [start + 5_000 for start in starts]
    stretches = list(range_reads._joined(starts, ends))
    assert len(stretches) == 100
    near = list(range_reads._joined(starts, [start + 9_990 for start in starts]))
    assert near == [(0, 999_990)]


def test_without_a_usable_folder_what_exceeds_the_memory_is_read_by_pieces_each_time(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path
) -> None:
    store, ssts = table
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    cache = SstCache(blocked / "cache", LARGE, max_memory_bytes=4 << 20)
    numbers = np.arange(0, BASE_ROWS, 100)
    expected = look_up(store, SstCache(tmp_path / "good", LARGE), ssts, numbers, Reads())
    assert look_up(store, cache, ssts, numbers, Reads()) == expected
    before = store.counts.get("get", 0)
    reads = Reads()
    assert look_up(store, cache, ssts, numbers, reads) == expected
    # The small ones fit into its memory; the base does not, and nobody tried again to keep it.
    assert (reads.cache_hits, reads.cache_misses) == (3, 1)
    assert reads.row_groups == 40
    assert store.counts.get("get", 0) == before
    assert cache._in_memory.currsize <= 4 << 20


def test_an_sst_too_large_for_memory_comes_to_the_folder_by_pieces(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (base, *_) = table
    monkeypatch.setattr("slackwater.store.read.cache._WHOLE_BYTES", 100_000)
    cache = SstCache(tmp_path / "cache", LARGE)
    before = store.counts.get("get", 0)
    assert cache.open(store, base, NUMBERED).stored.num_rows == BASE_ROWS
    assert store.counts.get("get", 0) == before
    assert cache.has(base)
    assert cache.size_of(base) > base.bytes
