"""A table at several versions at once equals the tables at each of these versions."""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Usage
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read import duckdb_view
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Manifest, Ttl

from tests.models.profiles import scaled
from tests.support.state_rows import ROUTES, Hashes, Key, Values, manifest_of, write_version

KEYS: list[Key] = [(name, "x") for name in "abcdef"]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 9)), min_size=1)
STEPS = st.lists(st.one_of(CHANGES, st.sampled_from(["merge", "back", "nothing"])), min_size=1, max_size=10)
SHOWN = ("origin", "dest", "flights", "delay")


@pytest.fixture(scope="module")
def cache() -> Iterator[SstCache]:
    with tempfile.TemporaryDirectory() as folder, closing(SstCache(Path(folder), 1 << 30)) as cache:
        yield cache


@given(STEPS, st.sampled_from([None, 0, 2]), st.integers(1, 3), st.integers(1, 3), st.data())
@scaled(12)
def test_each_row_occurs_once_for_each_version_that_shows_it(
    cache: SstCache, steps: list[object], ttl_from: int | None, partitions: int, modulus: int, data: st.DataObject
) -> None:
    store, hashes = MemoryStore(), Hashes(modulus * 2)
    manifests: list[Manifest] = []
    ssts: tuple[Sst, ...] = ()
    seq = 0
    for version, step in enumerate(steps, 1):
        table = replace(ROUTES, partitions=partitions)
        if ttl_from is not None and version > ttl_from:
            table = replace(table, ttl=Ttl(3))
        if isinstance(step, dict):
            seq = version
            changes = {key: None if put is None else (put, float(put), None) for key, put in step.items()}
            ssts = (*write_version(store, None, table, changes, seq, hashes, clock_ms=version), *ssts)
        elif step == "merge" and ssts:
            # Nothing older is left.
            rows: dict[Key, Values | None] = {(*row[:2],): (*row[2:], None) for row in at(store, cache, manifests[-1])}
            ssts = write_version(store, None, table, rows, seq, hashes, clock_ms=version) if rows else ()
        elif step == "back" and manifests:
            ssts = data.draw(st.sampled_from(manifests)).ssts
        manifests.append(manifest_of(table, ssts, version, clock_ms=version))
    shown = [each for each in manifests if data.draw(st.booleans())] or manifests
    if not any(each.ssts for each in shown):
        return
    with duckdb.connect() as con:
        duckdb_view.register_versions(con, "many", store, cache, shown)
        found = con.sql("FROM many ORDER BY ALL").fetchall()
        assert con.sql("FROM many").columns == [*SHOWN, "_version", "_committed_at"]
        sql = "SELECT _version, epoch_ms(_committed_at) FROM many GROUP BY ALL"
        assert all(version == time_ms for version, time_ms in con.sql(sql).fetchall())
    expected = [(*row, each.version) for each in shown for row in at(store, cache, each)]
    assert sorted(row[:5] for row in found) == sorted(expected)


def at(store: MemoryStore, cache: SstCache, manifest: Manifest) -> list[tuple[object, ...]]:
    with duckdb.connect() as con:
        duckdb_view.register_table(con, "one", store, cache, manifest)
        return con.sql("FROM one").fetchall()


def test_a_file_shared_by_versions_is_scanned_once(cache: SstCache) -> None:
    store, ssts = MemoryStore(), ()
    manifests = []
    for version in range(1, 20):
        changes: dict[Key, Values | None] = {KEYS[version % 6]: (version, None, None)}
        ssts = (*write_version(store, None, ROUTES, changes, version), *ssts)
        manifests.append(manifest_of(ROUTES, ssts, version))
    with duckdb.connect() as con:
        duckdb_view.register_versions(con, "many", store, cache, manifests)
        ((_, plan),) = con.sql("EXPLAIN FROM many").fetchall()
    assert plan.upper().count("READ_PARQUET") == 1


def test_a_stage_without_a_table_has_no_versions_in_sql(cache: SstCache) -> None:
    manifest = replace(manifest_of(ROUTES, ()), table=None)
    with duckdb.connect() as con, pytest.raises(Usage, match="keeps no state"):
        duckdb_view.register_versions(con, "many", MemoryStore(), cache, [manifest])
