"""Look-ups on a machine without cached objects: their reads, concurrent or in sequence, and their memory."""

import threading
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from cachetools import LRUCache
from slackwater.errors import Corruption
from slackwater.store.objects.counting import CountingStore, ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.read import fetch, footers
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import DEFAULT_READ_AHEAD, ReadAhead, multi_get
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

from tests.support.s3_servers import BUCKET

LARGE = 1 << 40
NUMBERED = Table((Column("k", "int64"),), (Column("v", "int64"),), partitions=1)
GROUP_ROWS = 16_384
BASE_ROWS = 40 * GROUP_ROWS
NEWER_ROWS = 20_000


def put(store: CountingStore, numbers: np.ndarray, seq: int) -> Sst:
    keys = pa.table({"k": numbers})
    rows = (
        keys.append_column("v", pa.array(numbers * 10 + seq))
        .append_column("_hash", pa.array(hash_keys(keys, ["k"])))
        .append_column("_seq", pa.array(np.full(len(numbers), seq)))
        .append_column("_op", pa.array(np.zeros(len(numbers), np.int8)))
    )
    return writer.write_sst(store, None, app="a", stage="s", table=NUMBERED, partition=0, rows=rows)


@pytest.fixture(scope="module")
def table() -> tuple[CountingStore, tuple[Sst, ...]]:
    """Return a store, and the SSTs of a table: a base and three newer runs."""
    store = CountingStore(MemoryStore())
    random = np.random.default_rng(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_ROWS", GROUP_ROWS)
        ssts = [put(store, np.arange(BASE_ROWS), 1)]
        ssts += [put(store, random.choice(BASE_ROWS, NEWER_ROWS, replace=False), seq) for seq in (2, 3, 4)]
    return store, tuple(ssts)


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_footers", "_indexes", "_chunks"):
        monkeypatch.setattr(footers, name, LRUCache(1 << 20))


def nothing_is_known() -> None:
    for known in (footers._footers, footers._indexes, footers._chunks):
        known.clear()


def look_up(
    store: CountingStore,
    cache: SstCache,
    ssts: tuple[Sst, ...],
    numbers: np.ndarray,
    reads: ReadCounters,
    read_ahead: ReadAhead = DEFAULT_READ_AHEAD,
) -> list[int | None]:
    keys = pa.table({"k": numbers})
    values, _ = multi_get(store, cache, ssts, NUMBERED, hash_keys(keys, ["k"]), keys, reads, read_ahead=read_ahead)
    return values["v"].to_pylist()


@pytest.mark.parametrize("num", [3, 30, 300, 3_000, 100_000])
def test_a_cold_look_up_reads_hardly_more_than_the_row_groups_of_its_keys(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, num: int
) -> None:
    store, ssts = table
    numbers = np.random.default_rng(num).integers(BASE_ROWS, size=num)
    reads, before = ReadCounters(), store.bytes_read
    found = look_up(store, SstCache(tmp_path / "cache", LARGE), ssts, numbers, reads)
    assert [value // 10 for value in found if value is not None] == numbers.tolist()
    assert reads.bytes == store.bytes_read - before
    assert reads.bytes <= 1.2 * reads.touched_bytes


def test_absent_keys_cost_part_of_a_filter_and_no_page(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path
) -> None:
    store, ssts = table
    reads = ReadCounters()
    numbers = BASE_ROWS + np.arange(20)
    assert look_up(store, SstCache(tmp_path / "cache", LARGE), ssts, numbers, reads) == [None] * 20
    # Of 100 keys that are not there, 3 pass a filter.
    assert reads.row_groups <= 8
    assert reads.filtered >= 65
    assert reads.bytes < reads.touched_bytes / 4
    keys = pa.table({"k": numbers})
    assert not multi_get(store, None, ssts, NUMBERED, hash_keys(keys, ["k"]), keys)[1].any()


def test_a_key_costs_three_round_trips_and_one_page_per_column(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path
) -> None:
    store, ssts = table
    for number in range(7, 27):
        nothing_is_known()
        reads, before = ReadCounters(), store.bytes_read
        (found,) = look_up(store, SstCache(tmp_path / str(number), LARGE), ssts, np.array([number]), reads)
        assert found is not None
        assert found // 10 == number
        assert reads.round_trips == 3
        assert reads.bytes == store.bytes_read - before < 100_000 < ssts[0].bytes / 50


@pytest.mark.parametrize(("unfiltered", "trips"), [(4, 2), (3, 3)])
def test_with_read_ahead_the_index_is_read_with_the_footer_and_filters_of_few_ssts_are_skipped(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, unfiltered: int, trips: int
) -> None:
    store, ssts = table
    read_ahead = ReadAhead(index_bytes=1 << 20, max_unfiltered_probes=unfiltered)
    for number in [*range(7, 17), BASE_ROWS + 5]:
        nothing_is_known()
        reads, before = ReadCounters(), store.bytes_read
        (found,) = look_up(store, SstCache(tmp_path / str(number), LARGE), ssts, np.array([number]), reads, read_ahead)
        assert (None if found is None else found // 10) == (number if number < BASE_ROWS else None)
        assert reads.round_trips == trips - (unfiltered == 3 and found is None)
        assert reads.bytes == store.bytes_read - before < ssts[0].bytes / 8


def test_an_index_larger_than_the_read_ahead_is_read_separately(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path
) -> None:
    store, ssts = table
    reads = ReadCounters()
    read_ahead = ReadAhead(index_bytes=1_000, max_unfiltered_probes=1)
    assert look_up(store, SstCache(tmp_path / "cache", LARGE), ssts[:1], np.array([7]), reads, read_ahead) == [71]
    assert reads.round_trips == 3


def test_a_damaged_index_that_was_read_with_the_footer_is_found(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    sst = put(store, np.arange(50_000), 1)
    data = bytearray(store.get(sst.object))
    data[sst.bytes - sst.footer_bytes - 600] ^= 1
    store.put(sst.object, bytes(data))
    with pytest.raises(Corruption, match="page index of row group 0"):
        look_up(
            store, SstCache(tmp_path / "cache", LARGE), (sst,), np.array([7]), ReadCounters(), ReadAhead(0, 1 << 20, 1)
        )


def test_a_hundred_keys_cost_less_than_their_row_groups(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path
) -> None:
    store, ssts = table
    numbers = np.random.default_rng(5).integers(BASE_ROWS, size=100)
    reads, before = ReadCounters(), store.bytes_read
    found = look_up(store, SstCache(tmp_path / "cache", LARGE), ssts, numbers, reads)
    assert [value // 10 for value in found if value is not None] == numbers.tolist()
    assert reads.round_trips <= 6
    assert reads.bytes == store.bytes_read - before < reads.touched_bytes / 2


@pytest.mark.s3
def test_pages_are_read_from_a_real_s3_server(each_s3: str) -> None:
    assert each_s3
    store = CountingStore(open_store(f"s3://{BUCKET}/{uuid4().hex}"))
    ssts = (put(store, np.arange(200_000), 1), put(store, np.arange(0, 200_000, 10), 2))
    keys = pa.table({"k": [20, 77_777, 200_001]})
    reads = ReadCounters()
    values, _ = multi_get(store, None, ssts, NUMBERED, hash_keys(keys, ["k"]), keys, reads)
    assert values["v"].to_pylist() == [202, 777_771, None]
    assert "get" not in store.counts
    assert reads.round_trips <= 4
    assert reads.bytes == store.bytes_read < sum(sst.bytes for sst in ssts) / 10


def test_the_footers_of_all_runs_are_read_concurrently(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ssts = table
    together = threading.Barrier(len(ssts), timeout=180)
    get_range = CountingStore.get_range

    def meet(self: CountingStore, key: str, start: int, length: int) -> bytes:
        data = get_range(self, key, start, length)
        if len(footers._footers) < len(ssts):
            together.wait()
        return data

    monkeypatch.setattr(CountingStore, "get_range", meet)
    reads = ReadCounters()
    look_up(store, SstCache(tmp_path / "cache", LARGE), ssts, np.array([BASE_ROWS + 1]), reads)
    assert reads.requests >= len(ssts)


def test_small_runs_are_read_concurrently_with_the_footer_of_a_large_one(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (base, *_) = table
    small = [put(store, np.arange(seq, 2_000 + seq), seq) for seq in (2, 3, 4)]
    together, met = threading.Barrier(len(small) + 1, timeout=180), set[str]()

    def meet(method):  # type: ignore[no-untyped-def]
        def waits(self: CountingStore, key: str, *where: int) -> bytes:
            if key not in met:
                met.add(key)
                together.wait()
            return method(self, key, *where)

        return waits

    for name in ("get", "get_range"):
        monkeypatch.setattr(CountingStore, name, meet(getattr(CountingStore, name)))
    reads = ReadCounters()
    assert look_up(store, SstCache(tmp_path / "cache", LARGE), (*small, base), np.array([99_999]), reads) == [999_991]
    assert reads.round_trips == 3


def test_distant_ranges_are_read_concurrently_and_near_ones_in_one_request(
    table: tuple[CountingStore, tuple[Sst, ...]],
) -> None:
    store, (base, *_) = table
    data = store.get(base.object)
    reads = ReadCounters()
    before = store.counts["get_range"]
    ranges = [(0, 400_000), (600_000, 649_900), (650_000, 900_000), (1_500_000, 1_500_100), (1_504_000, 1_504_100)]
    found = fetch.read_ranges([(fetch.RangeReader(store, base, reads), ranges)])[0].ranges
    assert [(start, len(piece)) for start, piece in found] == [(0, 400_000), (600_000, 300_000), (1_500_000, 4_100)]
    assert all(piece == data[start : start + len(piece)] for start, piece in found)
    assert (reads.requests, reads.bytes) == (3, 704_100)
    assert store.counts["get_range"] - before == 3


def test_a_long_range_is_read_in_parts(
    table: tuple[CountingStore, tuple[Sst, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (base, *_) = table
    monkeypatch.setattr(fetch, "_MAX_REQUEST_BYTES", 100_000)
    reads = ReadCounters()
    (found,) = fetch.read_ranges([(fetch.RangeReader(store, base, reads), [(5, 350_005)])])
    ((start, data),) = found.ranges
    assert (start, data) == (5, store.get(base.object)[5:350_005])
    assert reads.requests == 4


def test_a_range_beyond_the_object_is_damage(table: tuple[CountingStore, tuple[Sst, ...]]) -> None:
    store, (base, *_) = table
    reader = fetch.RangeReader(store, base, ReadCounters())
    with pytest.raises(Corruption, match="expected 200 bytes"):
        fetch.read_ranges([(reader, [(0, 100), (base.bytes - 100, base.bytes + 100)])])


def test_gaps_are_never_more_than_a_fraction_of_what_is_read() -> None:
    starts = list(range(0, 1_000_000, 10_000))
    stretches = list(fetch._join_ranges([(start, start + 5_000) for start in starts]))
    assert len(stretches) == 100
    near = list(fetch._join_ranges([(start, start + 9_990) for start in starts]))
    assert near == [(0, 999_990)]


def test_without_a_usable_folder_ssts_larger_than_memory_are_read_in_pieces_each_time(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ssts = table
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setattr("slackwater.store.read.cache._MEMORY_BYTES", 4 << 20)
    cache = SstCache(blocked / "cache", LARGE)
    numbers = np.arange(0, BASE_ROWS, 100)
    expected = look_up(store, SstCache(tmp_path / "good", LARGE), ssts, numbers, ReadCounters())
    assert look_up(store, cache, ssts, numbers, ReadCounters()) == expected
    before = store.counts.get("get", 0)
    reads = ReadCounters()
    assert look_up(store, cache, ssts, numbers, reads) == expected
    # The small ones fit into its memory; the base does not, and nobody tried again to keep it.
    assert (reads.cache_hits, reads.cache_misses) == (3, 1)
    assert reads.row_groups == 40
    assert store.counts.get("get", 0) == before
    assert cache._in_memory.currsize <= 4 << 20


def test_an_sst_too_large_for_memory_is_copied_to_the_folder_in_pieces(
    table: tuple[CountingStore, tuple[Sst, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (base, *_) = table
    monkeypatch.setattr("slackwater.store.read.cache._MAX_WHOLE_FETCH_BYTES", 100_000)
    cache = SstCache(tmp_path / "cache", LARGE)
    before = store.counts.get("get", 0)
    assert cache.open(store, base, NUMBERED).stored.num_rows == BASE_ROWS
    assert store.counts.get("get", 0) == before
    assert cache.has(base)
    assert cache.size_of(base) > base.bytes
