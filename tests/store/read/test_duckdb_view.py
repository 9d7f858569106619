from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from msgspec.structs import replace
from slackwater.errors import Corruption, Usage
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import register_table
from slackwater.store.sst.arrow_types import to_arrow
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table, Ttl

from tests.support.state_rows import ROUTES, Hashes, Key, Values, manifest_of, write_version

LARGE = 1 << 40


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    # No extension is fetched, whatever a query needs.
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        yield connection


@pytest.fixture(params=[LARGE, 0], ids=["mapped", "files"])
def cache(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SstCache]:
    """Yield a cache that maps written SSTs, and one without space, with which DuckDB reads Parquet files."""
    cache = SstCache(tmp_path / "cache", request.param)
    yield cache
    cache.close()


def rows_of(con: duckdb.DuckDBPyConnection, sql: str = "SELECT * FROM t ORDER BY ALL") -> list[tuple[object, ...]]:
    return con.execute(sql).fetchall()


def test_only_the_newest_row_of_each_key_is_visible_and_deleted_rows_are_not(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    history: list[Mapping[Key, Values | None]] = [
        {("a", "x"): (1, 1.0, None), ("b", "x"): (1, 1.0, None), ("c", "x"): (1, 1.0, None)},
        {("b", "x"): (2, 2.0, None), ("c", "x"): None, ("d", "x"): (2, 2.0, None)},
        {("c", "x"): (3, 3.0, None), ("d", "x"): None, ("b", "x"): (3, 3.0, None)},
    ]
    expected = [
        [("a", "x", 1, 1.0), ("b", "x", 1, 1.0), ("c", "x", 1, 1.0)],
        [("a", "x", 1, 1.0), ("b", "x", 2, 2.0), ("d", "x", 2, 2.0)],
        [("a", "x", 1, 1.0), ("b", "x", 3, 3.0), ("c", "x", 3, 3.0)],
    ]
    ssts: tuple[Sst, ...] = ()
    for seq, (changes, rows) in enumerate(zip(history, expected, strict=True), start=1):
        ssts = (*write_version(store, cache, ROUTES, changes, seq), *ssts)
        # Registered again and again: the later one takes the name.
        register_table(con, "t", store, cache, manifest_of(ROUTES, ssts, seq))
        assert rows_of(con) == rows


def test_internal_columns_are_hidden(con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache) -> None:
    ssts = write_version(store, cache, ROUTES, {("a", "x"): (1, 1.0, None)}, 4)
    register_table(con, "t", store, cache, manifest_of(ROUTES, ssts))
    assert con.sql("FROM t").columns == ["origin", "dest", "flights", "delay"]


def test_without_runs_the_table_is_empty_and_has_the_same_columns(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    ssts = write_version(store, cache, ROUTES, {("a", "x"): (1, 1.0, None)}, 1)
    register_table(con, "t", store, cache, manifest_of(ROUTES, ssts))
    described = rows_of(con, "DESCRIBE t")
    register_table(con, "t", store, cache, manifest_of(ROUTES, ()))
    assert rows_of(con, "DESCRIBE t") == described
    assert rows_of(con) == []
    register_table(con, "t", store, cache, manifest_of(ROUTES, ssts))
    assert len(rows_of(con)) == 1


def test_one_run_per_partition_is_a_plain_scan(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    table = replace(ROUTES, partitions=4)
    ssts = write_version(store, cache, table, {(str(i), "x"): (i, None, None) for i in range(100)}, 1)
    assert len(ssts) == 4
    register_table(con, "t", store, cache, manifest_of(table, ssts))
    assert "JOIN" not in str(rows_of(con, "EXPLAIN FROM t")).upper()
    assert rows_of(con, "SELECT count(*), sum(flights) FROM t") == [(100, 4950)]


def test_keys_with_the_same_hash_do_not_hide_each_other(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    one = Hashes(1)
    old = write_version(store, cache, ROUTES, {("a", None): (1, 0.0, None), (None, "x"): (1, 0.0, None)}, 1, one)
    mid = write_version(store, cache, ROUTES, {("b", None): (2, 0.0, None), ("a", None): (2, 0.0, None)}, 2, one)
    new = write_version(store, cache, ROUTES, {("c", None): None, ("b", None): None}, 3, one)
    register_table(con, "t", store, cache, manifest_of(ROUTES, (*new, *mid, *old)))
    assert rows_of(con) == [("a", None, 2, 0.0), (None, "x", 1, 0.0)]


def test_null_and_nan_keys_are_hidden_like_others(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    table = Table((Column("s", "string"), Column("x", "double")), (Column("v", "int64"),), 1)
    keys: list[Key] = [(s, x) for s in (None, "", "a") for x in (None, float("nan"), 0.0)]
    old = write_version(store, cache, table, dict.fromkeys(keys, (1,)), 1)
    new = write_version(store, cache, table, {(s, -x if x == 0 else x): (2,) for s, x in keys}, 2)  # type: ignore[operator]
    register_table(con, "t", store, cache, manifest_of(table, (*new, *old)))
    assert rows_of(con, "SELECT count(*), min(v), max(v) FROM t") == [(9, 2, 2)]


def test_values_of_every_type_are_the_same_in_duckdb(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    values = {
        "string": "日本",
        "binary": b"\x00\xff",
        "bool": True,
        "int8": -128,
        "int16": -32768,
        "int32": -(2**31),
        "int64": -(2**63),
        "float": 1.5,
        "double": 0.1,
        "date32[day]": date(1582, 10, 4),
        "timestamp[us]": datetime(2013, 1, 31, 23, 59, 59, 999999),  # noqa: DTZ001  it has no zone
        "timestamp[us, tz=UTC]": datetime(2013, 1, 31, 23, 59, 59, 999999, UTC),
        "decimal128(10, 2)": Decimal("-0.01"),
        "decimal128(38, 10)": Decimal("9999999999999999999999999999.9999999999"),
    }
    table = Table((Column("k", "string"),), tuple(Column(f"v{i}", name) for i, name in enumerate(values)), 1)
    ssts = write_version(store, cache, table, {("a",): tuple(values.values())}, 1)
    register_table(con, "t", store, cache, manifest_of(table, ssts))
    con.execute("SET TimeZone = 'UTC'")
    found = con.sql("SELECT * EXCLUDE (k) FROM t").to_arrow_table()
    assert found.schema.types == [to_arrow(name) for name in values]
    assert list(found.to_pylist()[0].values()) == list(values.values())


def test_mapped_ssts_and_files_are_combined_in_a_table(
    con: duckdb.DuckDBPyConnection, store: CountingStore, tmp_path: Path
) -> None:
    """Some SSTs are from before the table had a TTL, and some rows are hidden or expired."""
    before = replace(ROUTES, ttl=None)
    table = replace(ROUTES, ttl=Ttl(100))
    keys: list[Key] = [(letter, "x") for letter in "abcdef"]
    with closing(SstCache(tmp_path / "cache", LARGE)) as cache:
        ssts: tuple[Sst, ...] = ()
        for seq, is_mapped in enumerate((True, False, True, False), start=1):
            changes = {key: (seq, float(seq), None) for key in keys[seq - 1 : seq + 2]}
            keeps = cache if is_mapped else None
            declared = before if seq < 3 else table
            ssts = (*write_version(store, keeps, declared, changes, seq, clock_ms=seq), *ssts)
        for clock_ms, gone in ((0, ""), (103, "c"), (104, "cdef")):
            files = register_table(con, "t", store, cache, manifest_of(table, ssts, clock_ms=clock_ms))
            assert len(files) == 2
            shown = [(origin, flights) for origin, _, flights, _ in rows_of(con)]
            newest = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 4, "f": 4}
            assert shown == [(key, seq) for key, seq in newest.items() if key not in gone]


def test_a_cursor_sees_all_rows_or_is_refused(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    old = write_version(store, cache, ROUTES, {("a", "x"): (1, 1.0, None), ("b", "x"): (1, 1.0, None)}, 1)
    new = write_version(store, cache, ROUTES, {("b", "x"): (2, 2.0, None)}, 2)
    register_table(con, "t", store, cache, manifest_of(ROUTES, (*new, *old)))
    if cache.max_bytes:
        assert rows_of(con.cursor()) == rows_of(con)
    else:
        with pytest.raises(duckdb.Error, match="use the connection itself"):
            rows_of(con.cursor())


@pytest.mark.parametrize("name", ["select", 'a"b', "semi;colon", "Ünï", "a b"])
def test_tables_and_columns_may_have_any_name(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache, name: str
) -> None:
    table = Table((Column(name, "string"),), (Column(f"{name} 2", "int64"),), 1)
    old = write_version(store, cache, table, {("a",): (1,)}, 1)
    new = write_version(store, cache, table, {("a",): (2,)}, 2)
    register_table(con, name, store, cache, manifest_of(table, (*new, *old)))
    quoted = name.replace('"', '""')
    assert rows_of(con, f'SELECT "{quoted} 2" FROM "{quoted}" WHERE "{quoted}" = \'a\'') == [(2,)]


@pytest.mark.parametrize("folder", ["plain", "o'clock", "a=b", "st*r", "wh[a]t", "q?", "two words"])
def test_the_store_may_be_in_a_folder_of_any_name(
    con: duckdb.DuckDBPyConnection, cache: SstCache, tmp_path: Path, folder: str
) -> None:
    local = open_store(str(tmp_path / folder))
    decoy = open_store(str(tmp_path / "what"))
    ssts = write_version(local, cache, ROUTES, {("a", "x"): (1, None, None)}, 1)
    decoy.put(ssts[0].object, b"not Parquet")
    register_table(con, "t", local, cache, manifest_of(ROUTES, ssts))
    assert rows_of(con) == [("a", "x", 1, None)]


def test_the_view_needs_only_the_returned_files(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    old = write_version(store, None, ROUTES, {("a", "x"): (1, None, None)}, 1)
    new = write_version(store, None, ROUTES, {("b", "x"): None}, 2)
    files = register_table(con, "t", store, cache, manifest_of(ROUTES, (*new, *old)))
    con.execute("SET allowed_paths = $paths", {"paths": sorted(map(str, files))})
    con.execute("SET enable_external_access = false")
    asked = store.counts
    assert rows_of(con) == [("a", "x", 1, None)]
    assert store.counts == asked


def test_a_damaged_sst_is_reported_before_any_query(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    ssts = write_version(store, None, ROUTES, {("a", "x"): (1, None, None)}, 1)
    store.put(ssts[0].object, bytes(ssts[0].bytes))
    with pytest.raises(Corruption, match=ssts[0].object):
        register_table(con, "t", store, cache, manifest_of(ROUTES, ssts))


def test_a_stage_without_state_has_no_table(
    con: duckdb.DuckDBPyConnection, store: CountingStore, cache: SstCache
) -> None:
    with pytest.raises(Usage, match="'stage' keeps no state"):
        register_table(con, "t", store, cache, replace(manifest_of(ROUTES, ()), table=None))
