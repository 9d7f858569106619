"""An app that leaves as a folder, and comes back as another: nothing is lost on the way, and nothing is ours alone."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Gone, NotFound, Refused, Usage
from slackwater.keep.clone.clone import clone
from slackwater.keep.clone.plan import ClonePlan, Terms
from slackwater.keep.transfer.document import Export
from slackwater.keep.transfer.export import FolderWritten, export_folder
from slackwater.keep.transfer.imported import Folder, import_app
from slackwater.keep.verify.verify import verify
from slackwater.moments.cut.in_flight import in_flight
from slackwater.moments.cut.resolve import resolve
from slackwater.moments.cut.stored import REQUESTS, Request
from slackwater.moments.diff.key_history import key_history
from slackwater.moments.query.sql import connect, run_query
from slackwater.moments.take.audit_log import list_operations
from slackwater.moments.take.capture import ChannelReader
from slackwater.moments.take.snapshots import pin
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import literal
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.versions import apps, history, keys
from slackwater.store.versions.manifest import AppInfo
from ulid import ULID

from tests.keep.rejected.rejecting import reject
from tests.models.profiles import scaled
from tests.support.histories import STAGES, FlightsApp, Kafka, flights, rows_of

NOW_MS = 2_000_000_000_000


@pytest.fixture
def app() -> FlightsApp:
    return running(MemoryStore())


def running(store: ObjectStore) -> FlightsApp:
    """An app with deleted keys, merged SSTs, and records in flight on both of its channels."""
    app = FlightsApp(store, Kafka())
    app.run(flights(40))
    app.compact("aircraft")
    app.delete("carriers", "C1")
    app.send(*flights(10))
    app.step("legs")
    app.step("aircraft")
    app.send(*flights(6))
    app.step("legs")
    return app


def leave(
    app: FlightsApp, cache: SstCache, path: Path, ref: str = "flights", reader: ChannelReader | None = None
) -> FolderWritten:
    cut = resolve(app.store, ref, now_ms=NOW_MS)
    how = {"by": "ada@host", "now_ms": app.clock.now_ms}
    return export_folder(app.store, cache, cut, ref, path, lambda: reader or app.kafka, **how)  # type: ignore[arg-type]


def come(
    app: FlightsApp, path: Path, name: str = "copy", store: ObjectStore | None = None, **more: object
) -> ClonePlan:
    arguments = {"kafka": app.kafka, "by": "ada@host", "now_ms": app.clock.now_ms} | more
    return import_app(store or app.store, path, name, **arguments)  # type: ignore[arg-type]


def started(app: FlightsApp, store: ObjectStore, name: str = "copy") -> FlightsApp:
    return FlightsApp(store, app.kafka, name, clock=app.clock)


def assert_whole(store: ObjectStore, name: str = "copy") -> None:
    report = verify(store, name, now_ms=NOW_MS, deep=True, reader=None)
    assert [difference.message for difference in report.differences] == []


def test_an_app_of_a_folder_goes_on_as_its_source_does_and_needs_nothing_of_it(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    written = leave(app, cache, tmp_path / "out")
    assert written.export == Folder.open(tmp_path / "out").export
    other = MemoryStore()
    plan = come(app, tmp_path / "out", store=other)
    assert {(each.channel, each.rows) for each in plan.in_flight} == {("by-aircraft", 6), ("by-carrier", 10)}
    assert_whole(other)
    first = {stage: history.read(other, "copy", stage, app.heads[stage].version) for stage in STAGES}
    assert {each.kind for each in first.values()} == {"import"}
    for stage in ("aircraft", "carriers"):
        assert rows_of(other, first[stage]) == app.state[stage]
    copy = started(app, other)
    app.send(*flights(8, delay=3))
    for each in (app, copy):
        each.step_all()
    assert copy.state == app.state
    assert {s: copy.heads[s].inputs for s in ("legs",)} == {s: app.heads[s].inputs for s in ("legs",)}
    assert_whole(other)
    assert not [info.key for info in other.list("") if b"memory" in other.get(info.key) and "/log/" not in info.key]


def test_it_is_what_a_clone_is(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    clone(app.store, "flights", "cloned", channels=app.kafka, by="ada@host", now_ms=NOW_MS, terms=Terms())
    leave(app, cache, tmp_path / "out")
    come(app, tmp_path / "out")
    for stage in STAGES:
        version = app.heads[stage].version
        one, two = (history.read(app.store, name, stage, version) for name in ("cloned", "copy"))
        for field in (
            "table",
            "clock_ms",
            "seq",
            "event_time",
            "backfills",
            "rewinds",
            "stopped",
            "silent",
            "migration",
        ):
            assert getattr(one, field) == getattr(two, field), field
        read, sent = (
            [
                [(each.version, each.consumed, each.upstream, each.lost) for each in at.inputs.values()]
                for at in (one, two)
            ],
            [[(name, each.sent, each.rows) for name, each in at.outputs.items()] for at in (one, two)],
        )
        assert (read[0], sent[0]) == (read[1], sent[1])
    assert [each.verb for each in list_operations(app.store, "copy")] == ["import"]


def test_its_files_have_the_rows_of_a_query_and_open_without_us(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    reject(app, "carriers", [3, 4], tmp_path / "rejecting")
    out = tmp_path / "it's out"
    export = leave(app, cache, out).export
    assert sorted(export.tables) == ["aircraft", "carriers", "carriers_rejected"]
    cut = resolve(app.store, "flights", now_ms=NOW_MS)
    with closing(connect(app.store, cache, cut)) as con:
        for name, table in export.tables.items():
            expected = run_query(con, f"FROM {name} ORDER BY ALL")
            found = duckdb.sql(f"FROM {literal(f'{out}/tables/{name}/*.parquet')} ORDER BY ALL")
            assert found.to_arrow_table().to_pylist() == expected.to_pylist()
            schema = pq.read_schema(out / table.parts[0].file.path)
            assert table.columns == {field.name: from_arrow(field.type) for field in schema}
            assert table.rows == expected.num_rows
    assert export.tables["carriers"].key == ("carrier",)
    on_the_way = pq.read_table(out / "in-flight/by-carrier/part-00000.parquet")
    assert on_the_way.column_names == ["tail", "carrier", "delay", "_partition", "_offset", "_row"]
    other = MemoryStore()
    come(app, out, store=other)
    at = resolve(other, "copy", now_ms=NOW_MS)
    with closing(connect(other, cache, at)) as con, closing(connect(app.store, cache, cut)) as before:
        for name in export.tables:
            sql = f"FROM {name} ORDER BY ALL"
            assert run_query(con, sql) == run_query(before, sql)


def test_records_in_flight_that_a_snapshot_keeps_are_not_asked_of_kafka(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    pin(app.store, resolve(app.store, "flights", now_ms=NOW_MS), "good", reader=app.kafka)
    app.run(flights(10))

    class Away:
        def read(self, _state: object) -> Iterator[pa.Table]:
            raise Gone("nobody is to ask")

    leave(app, cache, tmp_path / "out", "flights@good", Away())
    come(app, tmp_path / "out")
    assert_whole(app.store)
    copy = started(app, app.store)
    for each in (app, copy):
        each.step_all()
    assert copy.state == app.state
    app.send(*flights(5))
    app.step("legs")
    with pytest.raises(Gone, match="nobody is to ask"):
        leave(app, cache, tmp_path / "late", "flights", Away())
    assert not (tmp_path / "late").exists()


def test_records_in_flight_become_messages_that_the_next_stage_reads(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    leave(app, cache, tmp_path / "out")
    kafka = KafkaChannels(MemoryKafka("memory://transfer"))
    kafka.kafka.create_topics({"flights": 2})
    for partition, messages in enumerate(app.kafka.topics["flights"]):
        kafka.kafka.send("flights", [Record(b"{}", partition) for _ in messages], patience_s=1)
    other = MemoryStore()
    come(app, tmp_path / "out", store=other, kafka=kafka)
    cut, before = (resolve(store, name, now_ms=NOW_MS) for store, name in ((other, "copy"), (app.store, "flights")))
    found, expected = (
        {
            state.channel: sorted(
                (row["tail"], row["carrier"], row["delay"], row["_partition"])
                for rows in reader.read(state)
                for row in rows.to_pylist()
            )
            for state in in_flight(store, at)
        }
        for store, at, reader in ((other, cut, kafka), (app.store, before, app.kafka))
    )
    assert found == expected
    assert {name: len(rows) for name, rows in found.items()} == {"by-aircraft": 6, "by-carrier": 10}
    report = verify(other, "copy", now_ms=NOW_MS, deep=True, reader=kafka)
    assert [difference.message for difference in report.differences] == []
    assert kafka.kafka.groups["slackwater-copy-legs"]  # type: ignore[attr-defined]


def test_a_table_without_rows_is_a_file_without_rows(cache: SstCache, tmp_path: Path) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    leave(app, cache, tmp_path / "out")
    assert duckdb.sql(
        f"SELECT count(*), count(carrier) FROM '{tmp_path}/out/tables/carriers/*.parquet'"
    ).fetchall() == [(0, 0)]
    come(app, tmp_path / "out")
    copy = started(app, app.store)
    app.send(*flights(5))
    for each in (app, copy):
        each.step_all()
    assert copy.state == app.state


def test_a_snapshot_that_is_not_complete_is_no_moment(app: FlightsApp) -> None:
    REQUESTS.put(app.store, Request(str(ULID()), "half", 1, "ada@host"), "flights")
    with pytest.raises(NotFound) as missing:
        resolve(app.store, "flights@half", now_ms=NOW_MS)
    assert "'half' is asked for and not complete yet" in missing.value.hint


def test_what_cannot_be_written_is_refused_and_leaves_nothing(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for path, words in (
        (tmp_path / "mine", "is there already"),
        (tmp_path / "none" / "out", "no folder"),
    ):
        with pytest.raises(Refused, match=words):
            leave(app, cache, path)
    store = LocalStore(tmp_path / "store")
    local = running(store)
    with pytest.raises(Refused, match="lies inside the store root"):
        leave(local, cache, tmp_path / "store" / "out")
    assert not (tmp_path / "store" / "out").exists()


def test_a_full_disk_is_said_and_leaves_nothing(
    app: FlightsApp, cache: SstCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write_table = 0, pq.write_table

    def full(*args: object, **how: object) -> None:
        nonlocal written
        written += 1
        if written == 3:
            raise OSError(28, "No space left on device")
        write_table(*args, **how)

    monkeypatch.setattr(pq, "write_table", full)
    before = {each.name for each in tmp_path.iterdir()}
    with pytest.raises(Refused, match="out cannot be written: No space left on device"):
        leave(app, cache, tmp_path / "out")
    assert {each.name for each in tmp_path.iterdir()} == before


def test_a_name_that_is_taken_topics_that_are_and_offsets_that_are_gone_are_refused(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    leave(app, cache, out)
    with pytest.raises(Refused, match="app 'flights' exists already"):
        come(app, out, "flights")
    for name in ("../up", "", "a/b", "A"):
        with pytest.raises(Usage, match=r"app name .* is not usable"):
            come(app, out, name)
    with pytest.raises(NotFound, match="no topic read by flights named 'flight'"):
        come(app, out, topics={"flight": "x"})
    app.kafka.create("other-by-carrier-repartition")
    with pytest.raises(Refused, match="topic 'other-by-carrier-repartition' exists already in Kafka"):
        come(app, out, "other")
    apps.create_app(app.store, AppInfo("taken", 1))
    with pytest.raises(Refused, match="app 'taken' exists already"):
        come(app, out, "taken")
    app.kafka.earliest["flights"] = app.kafka.ends("flights") or ()
    app.kafka.send("flights", flights(4))
    app.kafka.earliest["flights"] = app.kafka.ends("flights") or ()
    with pytest.raises(Refused, match="topic 'flights' holds"):
        come(app, out)
    assert apps.list_apps(app.store) == ("flights", "taken")


def test_a_topic_that_mirrormaker_made_is_refused_and_what_knows_its_offsets_is_named(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    leave(app, cache, out := tmp_path / "out")
    app.kafka.topics["primary.flights"] = [list(each) for each in app.kafka.topics["flights"]]
    # By its name alone it is none.
    assert not come(app, out, topics={"flights": "primary.flights"}, dry_run=True).done
    app.kafka.create("mm2-offset-syncs.primary.internal", 1)
    before = {info.key for info in app.store.list("")}
    with pytest.raises(Refused, match="what MirrorMaker made of flights of the cluster primary") as refused:
        come(app, out, topics={"flights": "primary.flights"})
    assert "slackwater recover flights --from ROOT --mirror primary" in refused.value.hint
    assert {info.key for info in app.store.list("")} == before


def test_typed_again_it_is_done_and_another_folder_does_not_go_on_with_it(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    leave(app, cache, tmp_path / "one")
    app.run(flights(10))
    leave(app, cache, tmp_path / "two")
    looked = come(app, tmp_path / "one", dry_run=True)
    assert (looked.done, looked.resumed) == (False, False)
    assert apps.list_apps(app.store) == ("flights",)
    come(app, tmp_path / "one")
    assert come(app, tmp_path / "one").done
    with pytest.raises(Refused, match="app 'copy' exists already"):
        come(app, tmp_path / "two")
    with pytest.raises(Refused, match="app 'copy' exists already"):
        come(app, tmp_path / "one", topics={"flights": "flights-2"})


def test_an_app_of_a_folder_leaves_and_comes_back_once_more(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    leave(app, cache, tmp_path / "one")
    come(app, tmp_path / "one")
    copy = started(app, app.store)
    copy.name = "copy"
    leave(copy, cache, tmp_path / "two", "copy")
    other = MemoryStore()
    come(app, tmp_path / "two", "again", other)
    assert_whole(other, "again")
    again = started(app, other, "again")
    for each in (app, again):
        each.step_all()
    assert again.state == app.state


def test_the_history_of_a_key_says_that_it_came_with_the_folder(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    leave(app, cache, tmp_path / "out")
    come(app, tmp_path / "out")
    (change,) = key_history(app.store, cache, "copy", "aircraft", ("N001",), limit=9, now_ms=NOW_MS).changes
    assert change.inherited == "import"


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 9)),
    st.tuples(st.just("step"), st.sampled_from(STAGES)),
    st.tuples(st.just("compact"), st.sampled_from(("aircraft", "carriers"))),
    st.tuples(st.just("rescale"), st.sampled_from(("aircraft", "carriers"))),
)


@scaled(40)
@given(steps=st.lists(STEPS, min_size=3, max_size=25))
def test_whatever_an_app_has_done_it_leaves_and_comes_back_as_it_was(
    steps: list[tuple[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    app, folder = FlightsApp(MemoryStore(), Kafka()), tmp_path_factory.mktemp("law")
    cache = SstCache(folder / "sst", 1 << 20)
    for number, (what, value) in enumerate(steps):
        match what, value:
            case "send", int(count):
                app.send(*flights(count, delay=number))
            case "step", str(stage):
                app.step(stage, max_versions=2)
            case "compact", str(stage):
                app.compact(stage)
            case "rescale", str(stage):
                app.rescale(stage, 1 + number % 4)
    leave(app, cache, folder / "out")
    come(app, folder / "out")
    assert_whole(app.store)
    copy = started(app, app.store)
    assert copy.state == app.state
    for _ in range(3):
        for each in (app, copy):
            each.step_all()
    assert copy.state == app.state
    assert_whole(app.store)


def test_a_folder_says_what_its_document_promises(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    export: Export = leave(app, cache, tmp_path / "out").export
    assert export.stages["legs"].inputs["flights"].offsets == app.heads["legs"].inputs["flights"].offsets
    assert (export.app, export.ref, export.by) == ("flights", "flights", "ada@host")
    listed = {str(each.relative_to(tmp_path / "out")) for each in (tmp_path / "out").rglob("*.*")}
    assert listed == {each.path for each in export.files} | {"export.json"}


def test_who_imports_the_same_at_the_same_time_finds_it_done(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    leave(app, cache, tmp_path / "out")
    other, begun = MemoryStore(), MemoryStore()
    come(app, tmp_path / "out", store=begun)
    info = apps.read_app(begun, "copy")
    note = apps.Cloning(info, "", "", deep=True)
    apps.begin_clone(other, note)
    apps.create_app(other, info, cloned=True)
    other.delete(keys.cloning("copy"))
    apps.create_app(other, info, cloned=True)  # as whoever comes a moment later
    other.delete(keys.app_info("copy"))
    with pytest.raises(Refused, match="was given up by somebody else"):
        apps.create_app(other, info, cloned=True)
