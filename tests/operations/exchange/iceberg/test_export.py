"""An app's tables as Iceberg tables: files, pins, other writers, and killed exports."""

from contextlib import suppress
from dataclasses import replace

import duckdb
import msgspec
import pytest
from slackwater.errors import NotFound, Refused, Unavailable
from slackwater.operations.exchange.iceberg.export import IcebergExport, WrittenTable
from slackwater.operations.exchange.iceberg.table import IcebergTable
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.snapshots import delete_snapshot
from slackwater.store.read import duckdb_view
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.apps import ensure_app
from slackwater.store.versions.keys import HOT
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table

from tests.crash.points import killed_at_each_call
from tests.operations.exchange.iceberg.reading import opened, rows
from tests.support.collecting import HOUR_MS, AgingStore, aging_app, gc, keys_of, store_of, wait
from tests.support.histories import FlightsApp, flights
from tests.support.state_rows import manifest_of, write_version


@pytest.fixture
def app() -> FlightsApp:
    app = aging_app()
    app.run(flights(40))
    return app


class Lake:
    """An Iceberg root to which an app is exported."""

    def __init__(self, app: FlightsApp, cache: SstCache, keep_ms: int = HOUR_MS) -> None:
        self.app, self.cache, self.store = app, cache, AgingStore()
        self.export = IcebergExport(app.store, cache, self.store, "ada@host", keep_ms)

    def cut(self, ref: str = "flights") -> Cut:
        return resolve(self.app.store, ref, now_ms=self.app.clock.now_ms)

    def write(self, ref: str = "flights", *only: str) -> dict[str, WrittenTable]:
        self.store.clock_ms = self.app.clock.now_ms
        done = self.export.write(self.cut(ref), self.app.clock.now_ms, only=only)
        return {each.name: each for each in done}

    def rows(self, name: str, snapshot: int | None = None) -> list[dict[str, object]]:
        return rows(opened(self.app.store, self.store, name), snapshot)

    def queried(self, name: str, ref: str = "flights") -> list[dict[str, object]]:
        manifest = self.cut(ref).tables[name]
        with duckdb.connect() as con:
            duckdb_view.register_table(con, "t", self.app.store, self.cache, manifest)
            return list(con.sql("FROM t ORDER BY 1").to_arrow_table().to_pylist())

    def pins(self) -> list[str]:
        return self.export.pins("flights")


def test_tables_have_the_rows_of_a_query_at_each_moment(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    for ref in ("flights", "flights@~3", "flights"):
        done = lake.write(ref)
        assert done.keys() == {"aircraft", "carriers"}
        for name, each in done.items():
            found = lake.rows(name)
            assert found == lake.queried(name, ref)
            assert each.rows == len(found)
            assert each.version == lake.cut(ref).tables[name].version
            assert not any(column.startswith("_") for row in found for column in row)
        app.run(flights(30, delay=3))


def test_the_data_files_are_the_ssts_so_that_no_row_is_copied(app: FlightsApp, cache: SstCache) -> None:
    app.run(flights(60, delay=7))
    lake = Lake(app, cache)
    done = lake.write()
    for name in done:
        table = opened(app.store, lake.store, name)
        manifest = lake.cut().tables[name]
        paths = {task.file.file_path for task in table.scan().plan_files()}
        assert paths <= {f"{app.store.url}/{sst.object}" for sst in manifest.ssts}
        assert all(key.endswith((".avro", ".json", ".text", "-deletes.parquet")) for key in keys_of(lake.store))
        assert table.properties["gc.enabled"] == "false"


def test_an_unchanged_table_gets_no_snapshot(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    before = lake.write()
    written = keys_of(lake.store)
    assert lake.write() == {name: replace(each, moved=False, written_bytes=0) for name, each in before.items()}
    assert keys_of(lake.store) == written
    assert len(lake.pins()) == 1
    # Of the two, only one moves.
    app.send(*flights(3))
    app.step("legs")
    app.step("aircraft")
    wait(app, 60_000)
    after = lake.write()
    assert {name: each.moved for name, each in after.items()} == {"aircraft": True, "carriers": False}
    assert after["carriers"].snapshot == before["carriers"].snapshot


def test_ssts_of_an_iceberg_snapshot_stay_pinned_until_the_snapshot_expires(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache, keep_ms=2 * HOUR_MS)
    first = lake.write()
    expected = lake.rows("carriers")
    (pin,) = lake.pins()
    app.run(flights(80, delay=9))
    for stage in ("aircraft", "carriers"):
        app.compact(stage)
    wait(app, 3 * HOUR_MS)
    app.run(flights(10))
    gc(app, Retention(versions=1))
    # Nothing else keeps the versions of that time.
    assert lake.rows("carriers") == expected
    second = lake.write()
    assert lake.rows("carriers", first["carriers"].snapshot) == expected
    assert pin in lake.pins()
    wait(app, 3 * HOUR_MS)
    app.run(flights(10))
    lake.write()
    # The first snapshot was replaced three hours ago, the second is replaced now.
    found = {each.snapshot_id for each in opened(app.store, lake.store, "carriers").metadata.snapshots}
    assert first["carriers"].snapshot not in found
    assert second["carriers"].snapshot in found
    assert pin not in lake.pins()
    gone = gc(app, Retention(versions=1))
    assert gone.objects
    assert lake.rows("carriers") == lake.queried("carriers")
    assert lake.rows("carriers", second["carriers"].snapshot)


def test_an_unchanged_table_does_not_pin_old_versions_of_other_tables(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    lake.write()
    (old,) = lake.pins()
    for _ in range(3):
        wait(app, 2 * HOUR_MS)
        app.send(*flights(3))
        app.step("legs")
        app.step("aircraft")
        assert not lake.write()["carriers"].moved
    assert old not in lake.pins()
    assert lake.rows("carriers") == lake.queried("carriers")
    named = {pin for name in ("aircraft", "carriers") for pin in lake_pins(lake, name)}
    assert named <= set(lake.pins())


def lake_pins(lake: Lake, name: str) -> list[str]:
    head = IcebergTable(lake.store, name).head()
    assert head is not None
    return list(head.pins.values())


def test_a_pin_that_somebody_removed_is_restored(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    lake.write()
    (pin,) = lake.pins()
    delete_snapshot(app.store, "flights", pin)
    wait(app, 1_000)
    assert not any(each.moved for each in lake.write().values())
    (again,) = lake.pins()
    assert lake_pins(lake, "carriers") == [again]


def test_snapshots_carry_the_app_and_version_they_show(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    done = lake.write()
    (taken,) = list_snapshots(app.store, "flights")
    assert taken.by == f"ada@host, export --iceberg {lake.store.url}"
    snapshot = opened(app.store, lake.store, "carriers").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.additional_properties["slackwater.version"] == str(done["carriers"].version)
    assert int(snapshot.summary.additional_properties["total-records"]) == done["carriers"].rows


def test_old_unreferenced_files_are_deleted(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    lake.write()
    first = keys_of(lake.store)
    lake.store.put("carriers/data/left-by-a-writer-that-died.parquet", b"x")
    for _ in range(3):
        wait(app, 2 * HOUR_MS)
        app.run(flights(10))
        lake.write()
    found = keys_of(lake.store)
    assert "carriers/data/left-by-a-writer-that-died.parquet" not in found
    # Only the name of the hint is left of the first snapshot.
    assert found & first == {"carriers/metadata/version-hint.text", "aircraft/metadata/version-hint.text"}
    assert lake.rows("carriers") == lake.queried("carriers")


def test_the_later_of_two_concurrent_exports_builds_on_the_other(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    lake.write()
    app.run(flights(20, delay=4))
    other = IcebergExport(app.store, cache, lake.store, "bob@host")
    lake.store.once(
        "put_if_absent", "carriers/metadata/", lambda: other.write(lake.cut("flights@~2"), 1, only=["carriers"])
    )
    lake.write()
    assert lake.rows("carriers") == lake.queried("carriers")
    assert set(lake_pins(lake, "carriers")) <= set(lake.pins())
    numbers = [key for key in keys_of(lake.store) if key.startswith("carriers/metadata/v") and key.endswith(".json")]
    assert len(numbers) == 3


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_a_killed_export_is_finished_by_the_same_call_and_no_reader_sees_half(cache: SstCache, again: bool) -> None:
    names = ("aircraft", "carriers")

    def build() -> Lake:
        app = aging_app()
        app.run(flights(30))
        lake = Lake(app, cache)
        if again:
            lake.write()
        app.run(flights(20, delay=1))
        return lake

    verb = "export --iceberg" + ", again" * again
    before = {name: build().rows(name) for name in names} if again else {}
    for lake, _ in killed_at_each_call(verb, build, Lake.write, lambda lake: (store_of(lake.app), lake.store)):
        for name, rows_before in before.items():
            assert lake.rows(name) in (rows_before, lake.queried(name))
        wait(lake.app, 1_000)
        lake.write()
        for name in names:
            assert lake.rows(name) == lake.queried(name)
            assert set(lake_pins(lake, name)) <= set(lake.pins())
        wait(lake.app, 3 * HOUR_MS)
        lake.app.run(flights(10))
        lake.write()
        assert {pin for name in names for pin in lake_pins(lake, name)} == set(lake.pins())


def test_after_any_failure_no_pin_stays_without_a_table(cache: SstCache) -> None:
    app = aging_app()
    app.run(flights(20))
    for target in (False, True):
        point = 0
        while True:
            lake = Lake(app, cache)
            broken = lake.store if target else store_of(app)
            lake.write("flights@~3")
            app.run(flights(5))
            count = 0

            def before(verb: str, key: str, point: int = point) -> None:
                nonlocal count
                count += 1
                if count == point + 1:
                    raise Unavailable(f"{verb} {key}")

            broken.before = before
            failed = True
            with suppress(Unavailable):
                lake.write()
                failed = False
            broken.before = lambda verb, key: None
            named = {pin for name in ("aircraft", "carriers") for pin in lake_pins(lake, name)}
            assert set(lake.pins()) == named, f"request {point}"
            if not failed:
                break
            point += 1
        assert point > 5


def test_an_export_of_selected_tables(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    assert lake.write("flights", "carriers").keys() == {"carriers"}
    assert {key.partition("/")[0] for key in keys_of(lake.store)} == {"carriers"}
    with pytest.raises(NotFound, match="carriers"):
        lake.write("flights", "carrier")


def test_a_foreign_table_in_the_target_folder_is_refused(app: FlightsApp, cache: SstCache) -> None:
    lake = Lake(app, cache)
    lake.write()
    other = aging_app("other", store=store_of(app))
    other.run(flights(10))
    export = IcebergExport(app.store, cache, lake.store, "ada@host")
    with pytest.raises(
        Refused, match=r"already another Iceberg table .app flights, table aircraft, in memory:"
    ) as caught:
        export.write(resolve(app.store, "other", now_ms=other.clock.now_ms), 1)
    assert caught.value.hint == "export to another folder"
    lake.store.put("carriers/metadata/v99.metadata.json", b"{}")
    with pytest.raises(Refused, match=r"v99\.metadata\.json cannot be parsed"):
        lake.write()


def test_the_folder_of_an_app_is_refused(cache: SstCache) -> None:
    app = aging_app()
    app.run(flights(10))
    ensure_app(app.store, AppInfo("carriers", 1))
    before = keys_of(store_of(app))
    with pytest.raises(Refused, match="carriers is the folder of app 'carriers'"):
        IcebergExport(app.store, cache, app.store, "ada@host").write(
            resolve(app.store, "flights", now_ms=app.clock.now_ms), 1
        )
    assert keys_of(store_of(app)) == before


KINDS = ["string", "binary", "bool", "int8", "int16", "int32", "int64", "float", "double", "date32"]
KINDS += ["timestamp[us]", "timestamp[us, tz=UTC]", "decimal128(20, 3)", "list<int16>", "map<string, list<int64>>"]
KINDS += ["struct<a: int8, `b c`: struct<d: timestamp[us, tz=UTC]>>"]


def test_every_column_type_has_an_iceberg_type(cache: SstCache) -> None:
    store, target = AgingStore(), AgingStore()
    table = Table((Column("k", "string"),), tuple(Column(f"c{n}", kind) for n, kind in enumerate(KINDS)), 1)
    ssts = write_version(store, cache, table, {("a",): (None,) * len(KINDS), ("b",): None}, 1)
    export(store, target, cache, manifest_of(table, ssts))
    shown = [str(field.field_type) for field in opened(store, target, "stage").schema().columns[1:]]
    assert shown[:13] == [
        *("string", "binary", "boolean", "int", "int", "int", "long", "float", "double", "date"),
        *("timestamp", "timestamptz", "decimal(20, 3)"),
    ]
    assert rows(opened(store, target, "stage")) == [{"k": "a"} | {f"c{n}": None for n in range(len(KINDS))}]


def export(store: AgingStore, target: AgingStore, cache: SstCache, manifest: Manifest) -> WrittenTable:
    (done,) = IcebergExport(store, cache, target, "test").write(Cut("app", {"stage": manifest}), 1)
    return done


def test_columns_whose_names_collide_in_iceberg_are_refused(cache: SstCache) -> None:
    store, target = AgingStore(), AgingStore()
    table = Table((Column("k", "string"),), (Column("a.b", "int64"), Column("a", "struct<b: int64>")), 1)
    ssts = write_version(store, cache, table, {("a",): (1, {"b": 2})}, 1)
    with pytest.raises(Refused, match="table 'stage' cannot be an Iceberg table") as caught:
        export(store, target, cache, manifest_of(table, ssts))
    assert caught.value.hint == "rename one of its columns by a migration"
    assert not keys_of(target)


def test_ssts_in_a_hot_place_are_copied_because_they_move(cache: SstCache) -> None:
    store, target = AgingStore(), AgingStore()
    table = Table((Column("k", "string"),), (Column("n", "int32"),), 1)
    (sst,) = write_version(store, cache, table, {("a",): (1,), ("b",): (2,)}, 1)
    hot = msgspec.structs.replace(sst, object=sst.object.replace(".parquet", f"{HOT}.parquet"))
    store.put(hot.object, store.get(sst.object))
    store.delete(sst.object)
    assert export(store, target, cache, manifest_of(table, (hot,), 1)).copied == 1
    store.delete(hot.object)
    assert [row["n"] for row in rows(opened(store, target, "stage"))] == [1, 2]


def test_ssts_from_before_a_migration_are_copied_only_if_iceberg_cannot_express_the_change(cache: SstCache) -> None:
    store, target = AgingStore(), AgingStore()
    born = Table((Column("k", "string"),), (Column("n", "int32"), Column("d", "decimal128(5, 2)")), 1)
    ssts = write_version(store, cache, born, {("a",): (1, None), ("b",): (2, None)}, 1)
    assert export(store, target, cache, manifest_of(born, ssts, 1)).copied == 0
    key = (Column("k", "string", id=1),)
    # Columns are renamed and widened, and one column is added, which is null.
    wider = (Column("number", "int64", id=2), Column("d", "decimal128(9, 2)", id=3), Column("x", "string", id=4))
    migrated = msgspec.structs.replace(born, key=key, values=wider, schema=1, next_id=5)
    assert export(store, target, cache, manifest_of(migrated, ssts, 2)).copied == 0
    assert [row["number"] for row in rows(opened(store, target, "stage"))] == [1, 2]
    # One more with a default.
    values = (*wider[:2], Column("x", "string", id=5, default="was"))
    again = msgspec.structs.replace(migrated, values=values, schema=2, next_id=6)
    done = export(store, target, cache, manifest_of(again, ssts, 3))
    assert done.copied == 1
    assert [(row["number"], row["x"]) for row in rows(opened(store, target, "stage"))] == [(1, "was"), (2, "was")]
    data = {key for key in keys_of(target) if key.startswith("stage/data/")}
    # The copy exists already, so it is not copied again.
    more = write_version(store, cache, again, {("a",): (5, None, "is")}, 4)
    export(store, target, cache, manifest_of(again, (*ssts, *more), 4))
    assert [(row["number"], row["x"]) for row in rows(opened(store, target, "stage"))] == [(5, "is"), (2, "was")]
    new = {key for key in keys_of(target) if key.startswith("stage/data/")} - data
    assert [key.endswith("-deletes.parquet") for key in new] == [True]
