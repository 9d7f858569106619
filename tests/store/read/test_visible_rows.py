from pathlib import Path

import duckdb
import numpy as np
import pytest
from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read import decode, duckdb_view, visible_rows
from slackwater.store.read.cache import SstCache
from slackwater.store.read.decode import BLOCK_ROWS
from slackwater.store.read.multi_get import multi_get
from slackwater.store.read.visible_rows import find_hidden_rows
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table, Ttl

from tests.models.profiles import scaled
from tests.support.state_rows import AS_ALWAYS, ROUTES, Hashes, Key, Values, columns, manifest_of, write_version

LARGE = 1 << 40
NUMBERED = Table((Column("k", "int64"),), (Column("v", "string"),), partitions=1)


def keep(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """Replace the cache of hidden rows by an empty one of this size."""
    monkeypatch.setattr(visible_rows, "_cached", LRUCache(max_bytes, getsizeof=visible_rows._cached.getsizeof))


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch, 1 << 20)


@scaled(20, in_ci=200)
@given(
    st.lists(st.dictionaries(st.integers(0, 30), st.integers() | st.none(), min_size=1), min_size=1, max_size=6),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1, 4]),
    st.sampled_from([2, BLOCK_ROWS]),
    st.booleans(),
)
def test_a_view_and_look_ups_equal_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[int, int | None]],
    modulus: int,
    partitions: int,
    block_rows: int,
    mapped: bool,
) -> None:
    table = replace(NUMBERED, partitions=partitions)
    hashes = Hashes(modulus)
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path_factory.mktemp("cache"), LARGE)
    ssts: tuple[Sst, ...] = ()
    model: dict[int, str] = {}
    every = columns(table.key, ((k,) for k in range(31)))
    with duckdb.connect() as con, pytest.MonkeyPatch.context() as patch:
        for module in (decode, visible_rows):
            patch.setattr(module, "BLOCK_ROWS", block_rows)
        for seq, changes in enumerate(history, start=1):
            rows: dict[Key, Values | None] = {(k,): None if v is None else (str(v),) for k, v in changes.items()}
            new = write_version(store, cache if mapped else None, table, rows, seq, hashes)
            ssts = (*new, *ssts) if seq % 2 else (*ssts, *new)
            for k, v in changes.items():
                model.pop(k, None)
                if v is not None:
                    model[k] = str(v)
            duckdb_view.register_table(con, "t", store, cache, manifest_of(table, ssts, seq))
            assert con.execute("FROM t ORDER BY k").fetchall() == sorted(model.items())
            assert con.execute("SELECT count(*) FROM t WHERE k >= 10").fetchall() == [(sum(k >= 10 for k in model),)]
            found, there = multi_get(store, cache, ssts, table, hashes.of(table, every), every)
            assert {
                k: v for k, v, is_there in zip(range(31), found["v"].to_pylist(), there, strict=True) if is_there
            } == model
    cache.close()


def test_keys_are_hidden_although_a_block_between_shares_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decode, visible_rows):
        monkeypatch.setattr(module, "BLOCK_ROWS", 8)
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path / "cache", LARGE)
    of_hash = np.argsort(AS_ALWAYS.of(NUMBERED, columns(NUMBERED.key, ((k,) for k in range(64))))).tolist()
    # The older SST spans the newer one's eight blocks, and has a key of the last.
    old = write_version(store, None, NUMBERED, {(of_hash[k],): ("old",) for k in (0, 63)}, 1)
    new = write_version(store, None, NUMBERED, {(k,): None for k in of_hash[1:]}, 2)
    with duckdb.connect() as con:
        duckdb_view.register_table(con, "t", store, cache, manifest_of(NUMBERED, (*new, *old)))
        assert con.execute("FROM t").fetchall() == [(of_hash[0], "old")]
    cache.close()


def test_hidden_positions_are_computed_once_for_each_pair_of_ssts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path / "cache", LARGE)
    ssts: tuple[Sst, ...] = ()
    looked: list[tuple[str, str]] = []
    in_block = visible_rows._hidden_in_block

    def count(source, block, newer):  # type: ignore[no-untyped-def]
        looked.append((str(block.stored.num_rows), newer.object if newer else ""))
        return in_block(source, block, newer)

    monkeypatch.setattr(visible_rows, "_hidden_in_block", count)
    for seq in range(1, 4):
        ssts += write_version(store, cache, ROUTES, {("a", "x"): (seq, None, None), (str(seq), "x"): None}, seq)
        find_hidden_rows(store, cache, ssts, ROUTES)
    # Three pairs, and each SST's own tombstones.
    assert len(looked) == 6
    found = find_hidden_rows(store, cache, ssts, ROUTES)
    assert len(looked) == 6
    assert {sst.seq_max: sorted(set(positions.tolist())) for sst, positions in found.items()} == {
        1: [0, 1],
        2: [0, 1],
        3: [int(np.argmax([row is None for row in cache.open(store, ssts[2], ROUTES).stored["flights"].to_pylist()]))],
    }


@pytest.mark.parametrize("max_bytes", [100, 1000])
def test_the_cache_of_hidden_rows_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    keep(monkeypatch, max_bytes)
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path / "cache", LARGE)
    changes: dict[Key, Values | None] = {(str(i), "x"): (i, None, None) for i in range(50)}
    ssts = tuple(one for seq in (1, 2, 3) for one in write_version(store, cache, ROUTES, changes, seq))
    found = find_hidden_rows(store, cache, ssts, ROUTES)
    assert {sst.seq_max: len(set(positions.tolist())) for sst, positions in found.items()} == {1: 50, 2: 50}
    # Two pairs have 50 positions of eight bytes, and one has none: names count, too.
    assert len(visible_rows._cached) == (0 if max_bytes == 100 else 1)


def test_many_adjacent_ssts_share_bitmaps_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_view, "_BITMAP_ROWS", 50)
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path / "cache", LARGE)
    table = replace(NUMBERED, partitions=8)
    old = write_version(store, cache, table, {(k,): (str(k),) for k in range(200)}, 1)
    new = write_version(store, cache, table, {(k,): None if k % 2 else ("new",) for k in range(0, 200, 3)}, 2)
    with duckdb.connect() as con:
        duckdb_view.register_table(con, "t", store, cache, manifest_of(table, (*new, *old)))
        expected = [(k, "new" if k % 3 == 0 else str(k)) for k in range(200) if k % 3 or not k % 2]
        assert con.execute("FROM t ORDER BY k").fetchall() == expected
        assert con.execute("SELECT count(*) FROM t").fetchall() == [(len(expected),)]
    cache.close()


def test_positions_are_right_if_filters_skip_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.store.sst.writer.ROW_GROUP_ROWS", 16)
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path / "cache", LARGE)
    table = replace(NUMBERED, values=(*NUMBERED.values, Column("at", "timestamp[us]")), ttl=Ttl(1, "at"))
    # Rows lie by their hash: all of some row groups, in the middle, are expired, and DuckDB sees it by their ranges.
    in_order = np.argsort(AS_ALWAYS.of(table, columns(table.key, ((k,) for k in range(500))))).tolist()
    expired = frozenset(in_order[100:350])
    at = {k: 0 if k in expired else 10_000_000 for k in range(500)}
    old = write_version(store, None, table, {(k,): (str(k), at[k]) for k in range(500)}, 1)
    new = write_version(store, None, table, {(k,): ("new", at[k]) for k in range(0, 500, 2)}, 2)
    with duckdb.connect() as con:
        duckdb_view.register_table(con, "t", store, cache, manifest_of(table, (*new, *old), clock_ms=5_000))
        expected = [(k, str(k) if k % 2 else "new") for k in range(500) if k not in expired]
        assert con.execute("SELECT k, v FROM t ORDER BY k").fetchall() == expected
    cache.close()


def test_a_view_reads_only_the_selected_columns(tmp_path: Path) -> None:
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path / "cache", LARGE)
    old = write_version(store, cache, ROUTES, {("a", "x"): (1, 1.0, None), ("b", "x"): (1, 1.0, None)}, 1)
    new = write_version(store, cache, ROUTES, {("b", "x"): None}, 2)
    with duckdb.connect() as con:
        duckdb_view.register_table(con, "t", store, cache, manifest_of(ROUTES, (*new, *old)))
        plan = str(con.execute("EXPLAIN SELECT sum(flights) FROM t").fetchall())
        assert "JOIN" not in plan.upper()
        assert "origin" not in plan
        assert "_hash" not in plan
    cache.close()
