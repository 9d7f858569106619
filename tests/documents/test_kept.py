"""What earlier versions wrote stays readable, answers as it did, and can be gone on from. See `keep.py`."""

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from slackwater.snapshot.clone.clone import clone
from slackwater.snapshot.cut.requests import open_requests
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.retention import Retention
from slackwater.snapshot.maintain.removal import remove_app
from slackwater.snapshot.maintain.stage_compactor import StageCompactor
from slackwater.snapshot.migrate.declared import Declared, DeclaredStage
from slackwater.snapshot.migrate.migrate import find_plan, migrate
from slackwater.snapshot.query.get import get
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.status.roster import beats
from slackwater.snapshot.take.taking import try_complete
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.due_rows import due_rows
from slackwater.store.read.multi_get import multi_get, point_get
from slackwater.store.read.read_stats import Reads
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions import history, horizon, published
from slackwater.store.versions.aside import rejected_of
from slackwater.store.versions.manifest import Column, Former, Manifest, Table

from tests.documents.answering import KEPT, ask, comparable, lasts
from tests.support.histories import STAGES, FlightsApp, Kafka, Message, flights, rows_of

LATER_MS = 2_000_000_000_000
VERSIONS = sorted(folder.name for folder in KEPT.iterdir())
ANSWERS = {version: json.loads((KEPT / version / "answers.json").read_text(encoding="utf-8")) for version in VERSIONS}
ASKED = [
    pytest.param(version, then, id=f"{version}: {' '.join(then['words'])}")
    for version, answers in ANSWERS.items()
    for then in answers
]
SINCE_FORMAT_2 = [version for version in VERSIONS if (KEPT / version / "store" / "lossy").exists()]
SINCE_FORMAT_3 = [version for version in VERSIONS if (KEPT / version / "store" / "begun").exists()]
SINCE_FORMAT_4 = [version for version in VERSIONS if (KEPT / version / "store" / "shop").exists()]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=VERSIONS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a version wrote, to be changed."""
    return shutil.copytree(KEPT / request.param, tmp_path / "kept") / "store"


@pytest.fixture
def store(root: Path) -> ObjectStore:
    return open_store(str(root))


def kafka_of(root: Path) -> Kafka:
    kafka = Kafka()
    held = (root.parent / "kafka.json").read_bytes()
    kafka.topics = msgspec.json.decode(held, type=dict[str, list[list[Message]]])
    # Attempts of before must not come again.
    while kafka.attempt() != "attempt-1000":
        pass
    return kafka


def rows(store: ObjectStore, cache: SstCache, ref: str) -> dict[str, list[dict[str, Any]]]:
    cut = resolve(store, ref, now_ms=LATER_MS)
    with closing(connect(store, cache, cut)) as con:
        return {table: run_query(con, f"SELECT * FROM {table} ORDER BY ALL").to_pylist() for table in cut.tables}


@pytest.mark.parametrize(("version", "then"), ASKED)
def test_every_verb_answers_as_it_did(version: str, then: dict[str, Any], shared_cache: Path) -> None:
    found = ask(KEPT / version / "store", then["words"], shared_cache)
    assert found["exit"] == then["exit"]
    assert lasts(*(comparable(then["words"], each["answer"]) for each in (then, found))) == []


@pytest.mark.parametrize(("app", "table"), [("flights", "aircraft"), ("flights", "carriers"), ("types", "rows")])
def test_look_ups_find_what_a_query_finds(store: ObjectStore, tmp_path: Path, app: str, table: str) -> None:
    cut = resolve(store, app, now_ms=LATER_MS)
    manifest = cut.tables[table]
    declared = manifest.table
    assert declared is not None
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache, closing(connect(store, cache, cut)) as con:
        found = run_query(con, f"FROM {table}")
        asked = found.select([column.name for column in declared.key])
        hashes = hash_keys(asked, asked.column_names)
        visible = [column.name for column in declared.values if not column.name.startswith("_")]
        expected = found.select(visible).to_pylist()
        values, present = multi_get(store, cache, manifest.ssts, declared, hashes, asked)
        assert present.all()
        assert values.select(visible).to_pylist() == expected
        point = point_get(store, manifest.ssts, declared, hashes, asked)
        assert point.values.select(visible).to_pylist() == expected


def test_an_app_goes_on_from_what_an_earlier_version_wrote(root: Path, store: ObjectStore, tmp_path: Path) -> None:
    kafka = kafka_of(root)
    (asked,) = open_requests(store, "flights")
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        before = {each.name: rows(store, cache, f"flights@{each.name}") for each in list_snapshots(store, "flights")}
        app = FlightsApp(store, kafka)
        app.clock.now_ms = app.heads["legs"].time_ms
        app.run(flights(30))
        assert try_complete(store, "flights", asked) is not None
        app.rescale("aircraft", 5)
        app.run(flights(10))
        app.compact("aircraft")
        for stage in STAGES:
            assert rows_of(store, app.heads[stage]) == app.state[stage]
        assert {name: rows(store, cache, f"flights@{name}") for name in before} == before
    for ref in ("flights", "flights@under-way", "staging"):
        assert verify(store, ref, now_ms=LATER_MS, deep=True).differences == ()


@pytest.mark.parametrize("moment", ["at-noon", "before-deploy"])
def test_a_snapshot_of_an_earlier_version_is_cloned(
    root: Path, store: ObjectStore, tmp_path: Path, moment: str
) -> None:
    kafka = kafka_of(root)
    clone(store, f"flights@{moment}", "again", topics={}, channels=kafka, by="test")
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        assert rows(store, cache, "again") == rows(store, cache, f"flights@{moment}")
    copy = FlightsApp(store, kafka, "again")
    copy.step_all()
    assert sum(num for num, _, _ in copy.state["aircraft"].values()) > 0
    assert verify(store, "again", now_ms=LATER_MS, deep=True).differences == ()


def test_collecting_what_an_earlier_version_wrote_keeps_its_snapshots(
    root: Path, store: ObjectStore, tmp_path: Path
) -> None:
    for path in root.rglob("*.*"):
        os.utime(path, (1, 1))
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        moments = [f"flights@{each.name}" for each in list_snapshots(store, "flights")]
        before = {ref: rows(store, cache, ref) for ref in (*moments, "flights", "staging")}
        for app in ("flights", "staging"):
            assert collect(store, app, Retention(versions=1), by="test").objects
    with closing(SstCache(tmp_path / "cold", 1 << 30)) as cache:
        assert {ref: rows(open_store(str(root)), cache, ref) for ref in before} == before
    for ref in before:
        assert verify(store, ref, now_ms=LATER_MS, deep=True).differences == ()


@pytest.mark.parametrize("root", SINCE_FORMAT_2, indirect=True)
def test_what_came_with_format_2_is_there_and_is_read(root: Path, store: ObjectStore) -> None:
    for stage, name, rows_lost in (("legs", "flights", False), ("aircraft", "by-aircraft", True)):
        versions = list(history.after(store, "lossy", stage, 0))
        (at,) = [number for number, version in enumerate(versions) if version.lost]
        assert bool(sum(versions[at].lost[name].rows)) is rows_lost
        assert versions[at + 1].kind == "batch"
        assert versions[-1].inputs[name].lost == versions[at].inputs[name].lost != ()
    assert [each.kind for each in history.after(store, "lossy", "carriers", 0)][-1] == "retire"
    thinned = horizon.newest(store, "flights")
    assert thinned is not None
    assert any(moment.until_ms for moment in thinned.moments)
    (alive,) = beats(store, "types", 0)
    assert alive.stages == {"rows": 1}
    gone = remove_app(store, "gone", by="test", now_ms=LATER_MS)
    assert (gone.already, gone.removal.stages) == (True, ("aircraft", "carriers", "legs"))


@pytest.mark.parametrize("root", SINCE_FORMAT_2, indirect=True)
def test_an_app_goes_on_behind_what_it_lost_and_brings_a_retired_stage_back(root: Path, store: ObjectStore) -> None:
    app = FlightsApp(store, kafka_of(root), "lossy")
    app.clock.now_ms = LATER_MS - 100_000
    app.run(flights(20))
    for stage in STAGES:
        assert rows_of(store, app.heads[stage]) == app.state[stage]
    assert resolve(store, "lossy", now_ms=LATER_MS).versions.keys() == set(STAGES)
    for ref in ("lossy", "lossy@after-losses"):
        assert verify(store, ref, now_ms=LATER_MS, deep=True).differences == ()


@pytest.mark.parametrize("root", SINCE_FORMAT_2, indirect=True)
def test_collecting_beside_a_retired_stage_and_losses_keeps_the_snapshot(
    root: Path, store: ObjectStore, tmp_path: Path
) -> None:
    for path in root.rglob("*.*"):
        os.utime(path, (1, 1))
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        before = {ref: rows(store, cache, ref) for ref in ("lossy", "lossy@after-losses")}
        retired = rows(store, cache, "lossy/carriers")["carriers"]
        assert collect(store, "lossy", Retention(versions=1), by="test").objects
    with closing(SstCache(tmp_path / "cold", 1 << 30)) as cache:
        assert {ref: rows(open_store(str(root)), cache, ref) for ref in before} == before
        assert rows(open_store(str(root)), cache, "lossy/carriers")["carriers"] == retired
    for ref in (*before, "lossy/carriers"):
        assert verify(store, ref, now_ms=LATER_MS, deep=True).differences == ()


def test_it_migrates_and_its_earlier_moments_stay_as_they_were(store: ObjectStore, tmp_path: Path) -> None:
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        moments = ("flights@at-noon", "flights@before-deploy", "staging")
        before, now = {ref: rows(store, cache, ref) for ref in moments}, rows(store, cache, "flights")
        heads = resolve(store, "flights", now_ms=LATER_MS).stages
        stages = {
            name: DeclaredStage(
                name,
                _reads(head),
                {topic: each.schema for topic, each in head.outputs.items()},
                head.table and replace(head.table, values=_with_minutes(head.table)),
            )
            for name, head in heads.items()
        }
        found = find_plan(store, Declared("flights", stages), {"delay": "minutes"})
        done = migrate(store, found, {}, by="ada@host", now_ms=LATER_MS)
        assert {ref: rows(store, cache, ref) for ref in (*moments, f"flights@{done.snapshot}")} == {
            **before,
            f"flights@{done.snapshot}": now,
        }
        for table, was in now.items():
            told = [{"minutes" if name == "delay" else name: value for name, value in row.items()} for row in was]
            assert rows(store, cache, "flights")[table] == [row | {"late": 7} for row in told]
        assert verify(store, "flights", now_ms=LATER_MS, deep=True).differences == ()


@pytest.mark.parametrize("root", SINCE_FORMAT_3, indirect=True)
@pytest.mark.parametrize("app", ["changed", "begun"])
def test_a_table_that_was_migrated_or_began_with_rows_is_migrated_merged_and_collected(
    root: Path, store: ObjectStore, tmp_path: Path, app: str
) -> None:
    for path in root.rglob("*.*"):
        os.utime(path, (1, 1))
    head = history.head(store, app, "totals")
    assert head is not None
    assert head.table is not None
    assert {"changed": "migration", "begun": "init"}[app] in {e.kind for e in history.after(store, app, "totals", 0)}
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        pinned = {f"{app}@{each.name}" for each in list_snapshots(store, app)}
        before, now = {ref: rows(store, cache, ref) for ref in pinned}, rows(store, cache, app)["totals"]
        table = replace(head.table, values=(*head.table.values, Column("more", "int64", default="7")))
        found = find_plan(store, Declared(app, {"totals": DeclaredStage("totals", _reads(head), {}, table)}), {})
        done = migrate(store, found, {}, by="ada@host", now_ms=LATER_MS)
        migrated = history.read(store, app, "totals", done.versions["totals"])
        compactor = StageCompactor(
            store, cache, migrated, by="ada@host", threads=1, now_ms=lambda: LATER_MS + 1, stop=Event()
        )
        assert list(compactor.until_done(full=True))
        assert rows(store, cache, app)["totals"] == [row | {"more": 7} for row in now]
        assert collect(store, app, Retention(versions=1), by="test").objects
    with closing(SstCache(tmp_path / "cold", 1 << 30)) as cache:
        assert {ref: rows(store, cache, ref) for ref in pinned} == before
    for ref in (app, *pinned):
        assert verify(store, ref, now_ms=LATER_MS + 2, deep=True).differences == ()


@pytest.mark.parametrize("root", SINCE_FORMAT_4, indirect=True)
def test_what_came_with_format_4_is_there_and_is_read(store: ObjectStore, tmp_path: Path) -> None:
    carts, visits, totals = (history.head(store, "shop", stage) for stage in ("carts", "visits", "totals"))
    assert carts is not None
    assert visits is not None
    assert visits.table is not None
    assert totals is not None
    assert (carts.called, visits.formerly) == ("visits", (Former("carts", carts.version),))
    assert rejected_of(visits) == (0, 2, 1)
    times = visits.event_time
    assert times is not None
    assert (times.late_total, times.due_ms == times.watermark_ms, times.owed) == (1, True, False)
    # What was published under the old name, and what waits under the new one.
    before = history.read(store, "shop", "carts", carts.version - 1)
    assert published.behind(before.sinks["left"], published.newest(store, before, "left")) == 0
    assert published.behind(visits.sinks["left"], published.newest(store, visits, "left")) == 1
    (done,) = totals.backfills
    assert history.read(store, "shop", "totals", done.version).kind == "backfill"
    # Rows of before and after the rename fall due, those that have not yet.
    assert times.due_ms is not None
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        due = due_rows(
            store,
            cache,
            visits.ssts,
            visits.table,
            span=(times.due_ms + 1, LATER_MS),
            hashes=(-(1 << 63), (1 << 63) - 1),
            clock_ms=0,
            reads=Reads(),
        )
    assert sorted(due.keys["visitor"].to_pylist()) == ["ada", "eve", "joe"]
    assert times.next_due_ms == min(due.values["_due_at"].to_pylist())


@pytest.mark.parametrize("root", SINCE_FORMAT_4, indirect=True)
def test_an_app_of_format_4_goes_on_and_is_migrated_cloned_merged_and_collected(
    root: Path, store: ObjectStore, tmp_path: Path
) -> None:
    for path in root.rglob("*.*"):
        os.utime(path, (1, 1))
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        (pinned,) = (f"shop@{each.name}" for each in list_snapshots(store, "shop"))
        before, now = rows(store, cache, pinned), rows(store, cache, "shop")
        assert get(store, resolve(store, pinned, now_ms=LATER_MS), "visits", ["eve"]).num_rows == 1
        clone(store, pinned, "again", topics={}, channels=kafka_with_events(root), by="test")
        assert rows(store, cache, "again") == before
        stages = {}
        for name in ("visits", "totals"):
            head = history.head(store, "shop", name)
            assert head is not None
            assert head.table is not None
            # Nothing falls due any more, and what is new is not known of rows from before.
            values = [each for each in head.table.values if each.name != "_due_at"]
            state = "update" if name == "visits" else f"{head.table.state[:-1]}, more=count())"
            table = replace(head.table, values=(*values, Column("more", "int64")), state=state)
            stages[name] = DeclaredStage(name, _reads(head), {}, table)
        done = migrate(store, find_plan(store, Declared("shop", stages), {}), {}, by="ada@host", now_ms=LATER_MS)
        for name, version in done.versions.items():
            head = history.read(store, "shop", name, version)
            compactor = StageCompactor(
                store, cache, head, by="ada@host", threads=1, now_ms=lambda: LATER_MS + 1, stop=Event()
            )
            assert list(compactor.until_done(full=True))
        more = {name: [row | {"more": None} for row in now[name]] for name in stages}
        assert rows(store, cache, "shop") == {**now, **more}
        assert collect(store, "shop", Retention(versions=1), by="test").objects
    with closing(SstCache(tmp_path / "cold", 1 << 30)) as cache:
        assert rows(store, cache, pinned) == before
        assert rows(store, cache, "again") == before
    for ref in ("shop", pinned, "again"):
        assert verify(store, ref, now_ms=LATER_MS + 2, deep=True).differences == ()


def kafka_with_events(root: Path) -> Kafka:
    kafka = kafka_of(root)
    kafka.topics["events"] = [[Message(())] * 8, [Message(())] * 4]
    return kafka


def _reads(head: Manifest) -> dict[str, str]:
    return {topic: each.upstream for topic, each in head.inputs.items()}


def _with_minutes(table: Table) -> tuple[Column, ...]:
    renamed = (Column("minutes" if each.name == "delay" else each.name, each.type) for each in table.values)
    return (*renamed, Column("late", "int64", default="7"))
