"""Iceberg readers that are independent of slackwater read the exported tables."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from pyiceberg.table import StaticTable
from slackwater.operations.exchange.iceberg.export import IcebergExport
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.open import open_store
from slackwater.store.read import duckdb_view
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.manifest import Column, Manifest, Table, Ttl

from tests.operations.exchange.iceberg import other_duckdb
from tests.operations.exchange.iceberg.reading import rows
from tests.support.histories import FlightsApp, Kafka, flights
from tests.support.s3_servers import ACCESS_KEY, SECRET_KEY
from tests.support.state_rows import manifest_of, write_version


@pytest.mark.s3
def test_pyiceberg_reads_tables_and_ssts_from_a_bucket(s3_url: str, s3_server: str, tmp_path: Path) -> None:
    store, lake = open_store(f"{s3_url}/store"), open_store(f"{s3_url}/lake")
    access = {"s3.endpoint": s3_server, "s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
    app = FlightsApp(store, Kafka())
    app.run(flights(20))
    with closing(SstCache(tmp_path, 1 << 30)) as cache:
        export = IcebergExport(store, cache, lake, "ada@host")
        for now_ms in (1, 2):
            cut = resolve(store, "flights", now_ms=app.clock.now_ms)
            done = export.write(cut, now_ms, only=["carriers"])
            found = rows(StaticTable.from_metadata(f"{s3_url}/lake/carriers", access))
            manifest = cut.tables["carriers"]
            with duckdb.connect() as con:
                duckdb_view.register_table(con, "carriers", store, cache, manifest)
                assert found == con.sql("FROM carriers ORDER BY 1").to_arrow_table().to_pylist()
            assert done[0].rows == len(found)
            app.run(flights(20, delay=3))


# DuckDB 1.5 does not read integers as SSTs have them; 2.0 does.
LEGS = Table(
    (Column("k", "string"),),
    (Column("d", "double"), Column("s", "struct<a: int64, b: string>"), Column("l", "list<string>")),
    2,
    ttl=Ttl(1_000),
)


@pytest.mark.ci
def test_duckdb_reads_the_rows_of_a_query(tmp_path: Path) -> None:
    store, lake = open_store(str(tmp_path / "store")), open_store(str(tmp_path / "the lake"))
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        export = IcebergExport(store, cache, lake, "ada@host")
        ssts = write_version(store, cache, LEGS, {(f"k{n}",): values(n) for n in range(500)}, 1, clock_ms=9_000)
        check(export, manifest_of(LEGS, ssts, 1))
        put = {(f"k{n}",): None if n % 3 else values(-n) for n in range(200)}
        ssts += write_version(store, cache, LEGS, put, 2)
        check(export, manifest_of(LEGS, ssts, 2, clock_ms=500))
        # The second version's rows are expired.
        check(export, manifest_of(LEGS, ssts, 3, clock_ms=1_000))


def values(number: int) -> tuple[object, ...]:
    return (number / 2, {"a": number, "b": str(number)}, ["x", None, str(number)])


def check(export: IcebergExport, manifest: Manifest) -> None:
    cut = Cut("app", {"stage": manifest})
    (done,) = export.write(cut, manifest.version)
    with duckdb.connect() as con:
        duckdb_view.register_table(con, "t", export.store, export.cache, manifest)
        expected = con.sql("FROM t ORDER BY k").to_arrow_table().to_pylist()
    assert other_duckdb.ask(f"FROM iceberg_scan('{done.location}') ORDER BY k") == expected
    counted = other_duckdb.ask(f"SELECT count(*) AS n FROM iceberg_scan('{done.location}')")
    assert counted == [{"n": done.rows}] == [{"n": len(expected)}]
    assert replace(done, moved=False, written_bytes=0) == export.write(cut, manifest.version)[0]
