from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.store.objects.counting import CountingStore, ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.decode import Block
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst import writer
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

from tests.models.profiles import scaled
from tests.support.state_rows import AS_ALWAYS, ROUTES, Hashes, Key, Values, columns, write_version

LARGE = 1 << 40
NAN = float("nan")


def look_up(
    store: CountingStore,
    cache: SstCache | None,
    ssts: tuple[Sst, ...],
    keys: list[Key],
    table: Table = ROUTES,
    hashes: Hashes = AS_ALWAYS,
) -> list[Values | None]:
    """Return the values of each key, or `None` if it is missing.

    First checks that a read without a cache gives the same.
    """
    asked = columns(table.key, keys)
    values, present = multi_get(store, cache, ssts, table, hashes.of(table, asked), asked)
    assert values.schema.names == [column.name for column in table.values]
    rows = [tuple(row.values()) for row in values.to_pylist()]
    assert all(here or row == (None,) * len(row) for row, here in zip(rows, present, strict=True))
    return [row if here else None for row, here in zip(rows, present, strict=True)]


def test_values_are_returned_in_the_order_of_the_given_keys_including_duplicates(
    store: CountingStore, cache: SstCache
) -> None:
    ssts = write_version(store, cache, ROUTES, {("JFK", "LAX"): (1, 1.5, None), ("EWR", "SFO"): (2, None, None)}, 1)
    asked: list[Key] = [("EWR", "SFO"), ("LGA", "LAX"), ("JFK", "LAX"), ("EWR", "SFO")]
    found = [(2, None, None), None, (1, 1.5, None), (2, None, None)]
    assert look_up(store, cache, ssts, asked) == found
    assert look_up(store, None, ssts, asked) == found


def test_the_newest_row_counts_and_a_tombstone_means_absent(store: CountingStore, cache: SstCache) -> None:
    a, b, c = ("a", "x"), ("b", "x"), ("c", "x")
    old = write_version(store, cache, ROUTES, {a: (1, 1.0, None), b: (1, 1.0, None), c: (1, 1.0, None)}, 1)
    mid = write_version(store, cache, ROUTES, {a: (2, 2.0, None), b: None, c: None}, 2)
    new = write_version(store, cache, ROUTES, {c: (3, 3.0, None)}, 3)
    for ssts in ((*old, *mid, *new), (*new, *mid, *old)):
        assert look_up(store, cache, ssts, [a, b, c]) == [(2, 2.0, None), None, (3, 3.0, None)]
        assert look_up(store, None, ssts, [a, b, c]) == [(2, 2.0, None), None, (3, 3.0, None)]


def test_without_keys_or_runs_nothing_is_found(store: CountingStore, cache: SstCache) -> None:
    ssts = write_version(store, cache, ROUTES, {("a", "x"): (1, 1.0, None)}, 1)
    assert look_up(store, cache, ssts, []) == []
    assert look_up(store, cache, (), [("a", "x")]) == [None]
    assert look_up(store, None, (), [("a", "x")]) == [None]


def test_keys_that_look_alike_are_distinguished(store: CountingStore, cache: SstCache) -> None:
    table = Table((Column("k", "string"), Column("x", "double")), (Column("v", "int64"),), 1)
    strings = [None, "", " ", "\0", "a", "A", "\u00c5", "A\u030a", "а", "null"]  # noqa: RUF001
    keys: list[Key] = [(s, x) for s in strings for x in (None, 0.0, NAN, float("inf"), 5e-324)]
    ssts = write_version(store, cache, table, {key: (i,) for i, key in enumerate(keys)}, 1)
    assert look_up(store, cache, ssts, keys, table) == [(i,) for i in range(len(keys))]
    assert look_up(store, cache, ssts, [("a", -0.0)], table) == look_up(store, cache, ssts, [("a", 0.0)], table)


def test_keys_with_the_same_hash_are_distinguished(store: CountingStore, cache: SstCache) -> None:
    one = Hashes(1)
    keys: list[Key] = [(str(i), None) for i in range(20)]
    old = write_version(store, cache, ROUTES, {key: (i, 0.0, None) for i, key in enumerate(keys)}, 1, one)
    new = write_version(store, cache, ROUTES, {keys[7]: (70, 0.0, None), keys[8]: None}, 2, one)
    asked = [*keys, ("none", None)]
    expected = [(i, 0.0, None) if i not in (7, 8) else (70, 0.0, None) if i == 7 else None for i in range(20)]
    assert look_up(store, cache, old + new, asked, hashes=one) == [*expected, None]
    assert look_up(store, None, old + new, asked, hashes=one) == [*expected, None]


def test_keys_may_have_another_arrow_layout(store: CountingStore, cache: SstCache) -> None:
    ssts = write_version(store, cache, ROUTES, {("a", "x"): (1, 1.0, None)}, 1)
    keys = pa.table({"dest": pa.array(["x"], pa.large_string()), "origin": pa.chunked_array([["a"]], pa.string_view())})
    asked = columns(ROUTES.key, [("a", "x")])
    _, present = multi_get(store, cache, ssts, ROUTES, AS_ALWAYS.of(ROUTES, asked), keys)
    assert present.tolist() == [True]


GROUP_ROWS = 16_384


def wide_sst(store: CountingStore, num_groups: int) -> tuple[tuple[Sst, ...], list[Key], np.ndarray]:
    """Return an SST of many row groups that no cache has, its keys in the order of their hashes, and the hashes."""
    num_rows = num_groups * GROUP_ROWS
    names = pa.array(np.arange(num_rows)).cast(pa.string())
    keys = pa.table({"origin": names, "dest": pa.array(["x"] * num_rows)})
    hashes = AS_ALWAYS.of(ROUTES, keys)
    order = np.argsort(hashes)
    rows = (
        keys.append_column("flights", pa.array(np.arange(num_rows)))
        .append_column("delay", pa.nulls(num_rows, pa.float64()))
        .append_column("_sum", pa.nulls(num_rows, pa.decimal128(38, 2)))
        .append_column("_hash", pa.array(hashes))
        .append_column("_seq", pa.array(np.ones(num_rows, np.int64)))
        .append_column("_op", pa.array(np.zeros(num_rows, np.int8)))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_ROWS", GROUP_ROWS)
        written = writer.write_sst(store, None, app="a", stage="s", table=ROUTES, partition=0, rows=rows)
    return (written,), [(str(i), "x") for i in order.tolist()], order


def test_a_cold_sst_is_read_in_pieces_until_they_cost_as_much_as_the_whole(
    store: CountingStore, cache: SstCache
) -> None:
    ssts, keys, numbers = wide_sst(store, 10)
    asked = keys[:: len(keys) // 20]
    expected = [(int(number), None, None) for number in numbers[:: len(keys) // 20]]
    looked = 0
    while "get" not in store.counts:
        assert look_up(store, cache, ssts, asked) == expected
        looked += 1
    # Each reads 20 pages of 72.
    assert 4 <= looked <= 6
    assert store.bytes_read < 2.5 * ssts[0].bytes
    before = dict(store.counts)
    for _ in range(3):
        assert look_up(store, cache, ssts, asked) == expected
    assert store.counts == before


def test_a_cold_sst_is_fetched_completely_for_many_keys(store: CountingStore, cache: SstCache) -> None:
    ssts, keys, numbers = wide_sst(store, 4)
    asked = keys[:: writer.PAGE_ROWS // 2]
    expected = [(int(number), None, None) for number in numbers[:: writer.PAGE_ROWS // 2]]
    for _ in range(2):
        assert look_up(store, cache, ssts, asked) == expected
    assert store.counts["get"] == 1


def test_keys_of_a_hash_that_spans_row_groups_and_blocks_are_found_in_all(
    store: CountingStore, cache: SstCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr("slackwater.store.read.decode.BLOCK_ROWS", 4)
    two = Hashes(2)
    keys: list[Key] = [(str(i), None) for i in range(16)]
    ssts = write_version(store, None, ROUTES, {key: (i, 0.0, None) for i, key in enumerate(keys)}, 1, two)
    expected = [(i, 0.0, None) for i in range(16)]
    assert look_up(store, None, ssts, keys, hashes=two) == expected
    cache.open(store, ssts[0], ROUTES)
    assert look_up(store, cache, ssts, keys, hashes=two) == expected
    assert [look_up(store, cache, ssts, [key], hashes=two)[0] for key in keys] == expected


def test_a_look_up_reads_pages_of_each_run_that_may_have_the_key(store: CountingStore) -> None:
    (base,), keys, numbers = wide_sst(store, 10)
    newer = write_version(store, None, ROUTES, {("other", "x"): (7, None, None), keys[0]: None}, 2)
    asked = columns(ROUTES.key, [keys[9]])
    reads = ReadCounters()
    values, present = multi_get(store, None, (base, *newer), ROUTES, AS_ALWAYS.of(ROUTES, asked), asked, reads)
    assert present.tolist() == [True]
    assert values["flights"].to_pylist() == [int(numbers[9])]
    assert reads.row_groups <= 2
    assert reads.bytes < base.bytes / 20
    assert store.counts["get_range"] == reads.requests <= 12
    assert "get" not in store.counts
    # Deleted in the newer run.
    assert look_up(store, None, (base, *newer), [keys[0]]) == [None]


def test_read_counters_include_everything_that_a_look_up_read(store: CountingStore, cache: SstCache) -> None:
    old = write_version(store, cache, ROUTES, {(str(i), "x"): (i, None, None) for i in range(50)}, 1)
    new = write_version(store, None, ROUTES, {(str(i), "x"): (i, None, None) for i in range(20)}, 2)
    asked = columns(ROUTES.key, [(str(i), "x") for i in range(30)])
    hashes = AS_ALWAYS.of(ROUTES, asked)
    before, reads = store.bytes_read, ReadCounters()
    multi_get(store, cache, (*old, *new), ROUTES, hashes, asked, reads)
    assert (reads.keys, reads.cache_hits, reads.cache_misses) == (30, 1, 1)
    assert (reads.requests, reads.bytes) == (store.counts["get"], store.bytes_read - before)
    inside = ((hashes >= new[0].hash_min) & (hashes <= new[0].hash_max)).sum()
    assert inside <= reads.searched <= inside + 30
    both = ReadCounters(keys=1)
    both.add(reads)
    both.add(reads)
    assert (both.keys, both.bytes) == (61, 2 * reads.bytes)


def test_runs_that_cannot_have_the_keys_are_not_read(store: CountingStore, cache: SstCache) -> None:
    table = replace(ROUTES, partitions=8)
    changes: dict[Key, Values | None] = {(str(i), "x"): (i, None, None) for i in range(100)}
    ssts = write_version(store, None, table, changes, 1)
    assert len(ssts) == 8
    look_up(store, cache, ssts, [("5", "x")], table)
    assert store.counts["get"] + store.counts.get("get_range", 0) <= 2


@pytest.mark.parametrize("cold", [True, False])
def test_damage_is_an_error_and_never_an_absent_key(store: CountingStore, cache: SstCache, cold: bool) -> None:
    ssts, keys, _ = wide_sst(store, 2)
    store.put(ssts[0].object, bytes(ssts[0].bytes))
    with pytest.raises(Corruption) as error:
        look_up(store, None if cold else cache, ssts, keys[:100])
    assert error.value.object_key == ssts[0].object


@scaled(20, in_ci=200)
@given(
    st.lists(st.dictionaries(st.integers(0, 30), st.integers() | st.none(), min_size=1), min_size=1, max_size=6),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1, 4]),
    st.randoms(use_true_random=False),
)
def test_look_ups_equal_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[int, int | None]],
    modulus: int,
    partitions: int,
    random: Random,
) -> None:
    table = Table((Column("k", "int64"),), (Column("v", "string"),), partitions)
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path_factory.mktemp("cache"), LARGE)
    hashes = Hashes(modulus)
    ssts: tuple[Sst, ...] = ()
    model: dict[int, Values] = {}
    for seq, changes in enumerate(history, start=1):
        rows: dict[Key, Values | None] = {(k,): None if v is None else (str(v),) for k, v in changes.items()}
        ssts += write_version(store, cache if seq % 2 else None, table, rows, seq, hashes)
        for k, v in changes.items():
            model.pop(k, None)
            if v is not None:
                model[k] = (str(v),)
        asked = [(random.randrange(40),) for _ in range(50)]
        expected = [model.get(k) for (k,) in asked]
        assert look_up(store, cache, ssts, list(asked), table, hashes) == expected
        assert look_up(store, None, ssts, list(asked), table, hashes) == expected


@scaled(30, in_ci=300)
@given(st.integers(1, 2_000), st.integers(1, 3_000), st.randoms(use_true_random=False))
def test_a_large_block_is_searched_like_a_small_one(num: int, values: int, random: Random) -> None:
    hashes = np.sort(np.array([random.randrange(-values, values) for _ in range(num)], np.int64))
    asked = np.sort(np.array([random.randrange(-values - 5, values + 5) for _ in range(200)], np.int64))
    block = Block.from_rows(pa.record_batch({"_hash": hashes}))
    large = Block(block.stored, block.hashes, block.hashes[::64][1:].copy())
    expected = np.searchsorted(hashes, asked)
    assert block.find(asked).tolist() == expected.tolist()
    assert large.find(asked).tolist() == expected.tolist()
