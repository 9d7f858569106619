"""Forgetting a key: afterwards no stored object contains it, and everything else is unchanged."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.common.instants import now_ms
from slackwater.errors import Corruption, NotFound, Refused, Usage
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import ErasureResult, abandon_erasure, forget, search_keys
from slackwater.operations.key_search.key_fields import DeclaredFields
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.kafka.messages import encode_rows
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import find_snapshot, open_requests, withdraw_request
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.answers import run_statement
from slackwater.snapshot.query.columns import get
from slackwater.snapshot.take.audit_log import list_operations, record_operation
from slackwater.snapshot.take.capture import read_captured_object
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.snapshot.under_way import runners
from slackwater.snapshot.verify.verify import verify
from slackwater.store.archive import index, merge, objects
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.index import INDEXES
from slackwater.store.archive.reading import Archives
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import forgotten, history, keys

from tests.operations.erasure.everything import archive_of, occurrences, tables_of_all_versions
from tests.store.archive.small_archives import BY, TOPIC, records, write
from tests.support.collecting import aging_app, fresh, gc, keys_of, old_app, store_of, wait
from tests.support.histories import STAGES, Flight, FlightsApp, Kafka, flights, rows_of

LATER_MS = 2_000_000_000_000
KEY = "aircraft=N003"


def declared(app: FlightsApp, *more: str) -> DeclaredFields:
    """Declare the key fields of the archive that some tests write; its topic is read by no stage."""
    try:
        has_archive = index.newest(fresh(app.store), app.name, TOPIC) is not None
    except Corruption:
        has_archive = True
    return DeclaredFields({"aircraft": (f"{TOPIC}:value", f"{TOPIC}:key", *more)} if has_archive else {})


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)


def make(app: FlightsApp, cache: SstCache, *asked: str, **options: Any) -> ErasureResult:
    how = {"kafka": app.kafka, "declared": declared(app)} | options
    return forget(app.store, cache, app.name, RequestedKeys.parse(asked or (KEY,)), by="ada@host", **how)


def held(app: FlightsApp, *asked: str, deep: bool = True, fields: DeclaredFields | None = None) -> list[str]:
    asked_of, fields = RequestedKeys.parse(asked or (KEY,)), fields or declared(app)
    found = search_keys(fresh(app.store), app.name, asked_of, kafka=app.kafka, declared=fields, deep=deep)
    assert not found.unproved
    return [f"{each.what} {each.object}" for each in (*found.held, *found.elsewhere)]


def busy_app(store: ObjectStore | None = None) -> FlightsApp:
    """Return an app with batches, compactions, a deletion, and a snapshot with records in flight."""
    app = aging_app() if store is None else FlightsApp(store, Kafka())
    app.run(flights(30))
    app.compact("aircraft")
    app.run(flights(20))
    app.delete("aircraft", "N004")
    app.run(flights(10))
    return app


def test_a_forgotten_key_is_in_no_object_and_other_keys_are_unchanged_in_every_version(cache: SstCache) -> None:
    app = busy_app()
    before = tables_of_all_versions(app.store, app.name)
    holding = make(app, cache, dry_run=True).held
    assert tables_of_all_versions(app.store, app.name) == before
    assert {each.object for each in holding} == {name for name, _ in occurrences(app.store, "N003")}
    done = make(app, cache)
    assert occurrences(app.store, "N003") == []
    assert held(app) == []
    assert done.read_bytes == sum(each.bytes for each in holding)
    assert done.written_bytes <= 1.2 * done.read_bytes
    after = tables_of_all_versions(fresh(app.store), app.name)
    ((_, stage, version),) = done.versions
    assert after.pop((stage, version)) == after[stage, version - 1]
    for place, rows in before.items():
        assert after[place] == {key: row for key, row in rows.items() if key != "N003"}
    assert version == app.heads["aircraft"].version + 1
    assert [each.detail for each in list_operations(app.store, app.name) if each.verb == "forget"] == ["1 of aircraft"]
    assert verify(app.store, app.name, now_ms=LATER_MS, deep=True).consistent


def test_no_tombstone_of_the_key_remains_and_an_empty_sst_is_no_longer_referenced(cache: SstCache) -> None:
    app = busy_app()
    app.send(Flight("N900", "C9", 1))
    app.step_all()
    alone = app.heads["aircraft"].ssts[0].object
    app.delete("aircraft", "N900")
    tombstone = app.heads["aircraft"].ssts[0]
    assert tombstone.tombstones == 1
    make(app, cache, "aircraft=N900", "aircraft=N004")
    assert occurrences(app.store, "N900") == occurrences(app.store, "N004") == []
    head = history.head(fresh(app.store), app.name, "aircraft")
    assert head is not None
    assert {alone, tombstone.object}.isdisjoint(sst.object for sst in head.ssts)
    assert sum(sst.tombstones for sst in head.ssts) == 0


def test_cached_references_of_this_process_lead_to_the_rewritten_objects(cache: SstCache) -> None:
    """The cached references are manifests, open moments, and mapped SSTs."""
    app = busy_app()
    cut = resolve(app.store, "flights", now_ms=LATER_MS)
    sql = "SELECT tail FROM aircraft ORDER BY tail"

    def tails() -> list[str]:
        return [str(row["tail"]) for row in run_statement(app.store, cache, cut, sql, later={}).to_pylist()]

    assert "N003" in tails()
    make(app, cache)
    assert "N003" not in tails()
    assert (
        get(app.store, resolve(app.store, "flights/aircraft@v3", now_ms=LATER_MS), "aircraft", ["N003"]).num_rows == 0
    )
    found = key_history(app.store, cache, "flights", "aircraft", ["N003"], now_ms=LATER_MS)
    assert found.changes == ()
    others = key_history(app.store, cache, "flights", "aircraft", ["N002"], now_ms=LATER_MS).changes
    assert len(others) == 6
    ends = [resolve(app.store, f"flights/aircraft@v{version}", now_ms=LATER_MS) for version in (2, 9)]
    one, two = (StoredCut(app.store, each) for each in ends)
    (changed,) = (each for each in diff(cache, one, two) if each.table == "aircraft")
    assert "N003" not in str(changed.changes.keys.to_pylist())


def test_other_processes_re_read_after_missing_a_deleted_object(cache: SstCache, tmp_path: Path) -> None:
    """The other process resolved its moment before the forget, and has not cached the SST that the forget deletes."""
    app = busy_app()
    other, its_cache = fresh(app.store), SstCache(tmp_path / "other", 1 << 30)
    cut = resolve(other, "flights", now_ms=LATER_MS)
    make(app, cache)
    rows = run_statement(other, its_cache, cut, "SELECT tail FROM aircraft", later={})
    assert "N003" not in str(rows.to_pylist())
    third = fresh(app.store)
    old = StoredCut(third, cut)
    assert (
        diff(its_cache, old, StoredCut(third, resolve(third, "flights", now_ms=LATER_MS)))[0].changes.keys.num_rows == 0
    )


def test_a_snapshot_keeps_its_name_and_its_records_lose_the_key(cache: SstCache) -> None:
    app = aging_app()
    app.run(flights(20))
    app.send(*flights(14))
    app.step("legs")
    cut = resolve(app.store, "flights", now_ms=LATER_MS)
    kept = pin_cut(app.store, cut, "kept", reader=app.kafka)
    assert kept.channels[0].rows == 14
    assert any("/channels/" in name for name, _ in occurrences(app.store, "N003"))
    done = make(app, cache)
    assert done.snapshots == (("flights", "kept"),)
    assert occurrences(app.store, "N003") == []
    found = find_snapshot(app.store, "flights", "kept")
    assert found is not None
    assert found.edited_ms > 0
    (channel,) = (each for each in found.channels if each.channel == "by-aircraft")
    assert (channel.rows, sum(channel.counts), sum(channel.forgotten)) == (12, 12, 2)
    assert [read_captured_object(app.store, each).num_rows for each in channel.objects] == [12]
    report = verify(fresh(app.store), "flights@kept", now_ms=LATER_MS, deep=True)
    assert report.differences == ()
    # A clone of it reads the remaining rows, and its ledger has the missing ones.
    clone(app.store, "flights@kept", "staging", channels=_Kept(app.kafka), by="ada@host", now_ms=LATER_MS)
    assert verify(fresh(app.store), "staging", now_ms=LATER_MS, deep=True).differences == ()
    make(app, cache, "aircraft=N002")
    assert occurrences(app.store, "N002") == []
    assert verify(fresh(app.store), "flights@kept", now_ms=LATER_MS, deep=True).differences == ()


class _Kept:
    """Kafka to which captured records are copied."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)

    def copy(self, in_flight: Any, topic: str, app: str, kept: Any = None) -> Any:
        for rows in kept or ():
            assert "N003" not in str(rows.to_pylist())
        return self._kafka.copy(in_flight, topic, app)


def test_ssts_shared_with_clones_and_ssts_of_clones_are_rewritten(cache: SstCache, tmp_path: Path) -> None:
    app, root = FlightsApp(LocalStore(tmp_path / "one"), Kafka()), LocalStore(tmp_path / "two")
    app.run(flights(20))
    how: dict[str, Any] = {"channels": app.kafka, "by": "ada@host", "now_ms": LATER_MS}
    clone(app.store, "flights", "near", **how)
    clone(app.store, "flights", "far", target_store=root, **how)
    runs = [FlightsApp(store, app.kafka, name, clock=app.clock) for store, name in ((app.store, "near"), (root, "far"))]
    clone(app.store, "near", "nearer", **how)
    app.send(*flights(14))
    for each in (app, *runs):
        each.step_all()
    before = {each.name: tables_of_all_versions(each.store, each.name) for each in runs}
    assert occurrences(root, "N003")
    with pytest.raises(Refused, match="is a clone that still uses files of 'flights'"):
        make(runs[0], cache)
    done = make(app, cache)
    assert [name.split()[0] for name in done.apps] == ["flights", "near", "far", "nearer"]
    assert occurrences(app.store, "N003") == occurrences(root, "N003") == []
    for each in runs:
        after = tables_of_all_versions(fresh(each.store), each.name)
        for place, rows in before[each.name].items():
            assert after[place] == {key: row for key, row in rows.items() if key != "N003"}
        assert verify(fresh(each.store), each.name, now_ms=LATER_MS, deep=True).consistent


def test_a_running_batch_leaves_nothing_of_the_key_and_a_later_one_starts_from_empty_state(cache: SstCache) -> None:
    """The batch was computed from the old row; no version names its SST, which is deleted."""
    app = busy_app()
    app.send(*flights(7))
    app.step("legs")
    head = app.heads["aircraft"]
    late: list[str] = []
    # The runner commits between the scan and the version: its SSTs are searched as well.
    store_of(app).once("put_if_absent", "forgotten/", lambda: late.append(app.step("aircraft").ssts[0].object))
    done = make(app, cache)
    assert late
    assert occurrences(app.store, "N003") == []
    ((_, _, version),) = done.versions
    assert version == head.version + 2
    app.claim("aircraft")
    app.send(Flight("N003", "C0", 5))
    app.step_all()
    assert rows_of(app.store, app.heads["aircraft"])["N003"] == (1, 5, 25)


def test_unreferenced_objects_with_the_key_are_deleted_too(cache: SstCache) -> None:
    app = busy_app()
    (held_by,) = {sst.object for sst in app.heads["aircraft"].ssts if sst.level} & {
        name for name, _ in occurrences(app.store, "N003")
    }
    litter = keys.sst("flights", "aircraft", "01JD0000000000000000000000")
    app.store.put(litter, app.store.get(held_by))
    wait(app, 60_000)
    make(app, cache)
    assert occurrences(app.store, "N003") == []


def test_unindexed_archive_objects_are_reported_and_replaced_ones_deleted(cache: SstCache) -> None:
    app = busy_app()
    archive_of(app.store, "flights", Extent(0, 0, 4), {2: b"N003"})
    archive_of(app.store, "flights", Extent(0, 4, 8), {6: b"N003"})
    head = index.newest(app.store, "flights", TOPIC)
    assert head is not None
    merge.merge(app.store, head, head.objects, by=BY, now_ms=1)
    rows = records(0, range(8, 9)).set_column(5, "key", pa.array([b"N003"], pa.binary()))
    litter = write(app.store, head, [rows], (Extent(0, 8, 9),), 1).object
    holding = {each.object for each in make(app, cache, dry_run=True).held if each.what == "input archive"}
    assert holding == {name for name, _ in occurrences(app.store, "N003") if "/input/" in name}
    assert len(holding) == 4
    done = make(app, cache)
    assert [name for name, _ in occurrences(app.store, "N003")] == [litter]
    assert [each.object for each in done.unnamed] == [litter]
    assert held(app, deep=False) == [f"input archive {litter}"]


def test_archived_messages_between_stages_lose_only_the_rows_of_the_key(cache: SstCache) -> None:
    """The messages are compressed, so their bytes may not show the key."""
    app = busy_app()
    tails = [f"N{number:03}" for number in range(2_000)]
    sent = pa.table({"tail": tails, "delay": list(range(2_000))})
    only = pa.table({"tail": ["N003"] * 5, "delay": [1] * 5})
    values = {0: b"{}", 1: encode_rows(sent.to_batches()[0]), 2: b"", 3: encode_rows(only.to_batches()[0]), 4: b"{}"}
    archive_of(app.store, "flights", Extent(0, 0, 5), values)
    fields = declared(app, f"{TOPIC}:$.tail")
    before = held(app, deep=False, fields=fields)
    assert sum("input archive" in each for each in before) == 1
    make(app, cache, declared=fields)
    assert held(app, fields=fields) == []
    there = index.newest(app.store, "flights", TOPIC)
    assert there is not None
    (rows,) = objects.ArchivedRecords(app.store, there.objects[0]).all_rows()
    assert rows["offset"].to_pylist() == [0, 1, 2, 4]
    with pa.ipc.open_stream(rows["value"][1].as_py()) as stream:
        assert stream.read_all() == sent.filter(pa.array([tail != "N003" for tail in tails]))


def test_a_process_with_a_cached_archive_index_reads_the_rewritten_objects(cache: SstCache) -> None:
    app = busy_app()
    for first in (0, 4, 8):
        archive_of(app.store, "flights", Extent(0, first, first + 4), {2: b"N003", 3: b"N003", 4: b"N003"})
    known = Archives(lambda: app.store, "flights").for_topic(TOPIC)
    make(app, cache)
    read = [offset for rows in known.rows(0, 1, 12) for offset in rows["offset"].to_pylist()]
    assert read == [1, 5, 6, 7, 8, 9, 10, 11]
    there = index.newest(app.store, "flights", TOPIC)
    assert there is not None
    app.store.delete(there.objects[-1].object)
    with pytest.raises(Corruption, match="the object is missing"):
        list(Archives(lambda: app.store, "flights").for_topic(TOPIC).rows(0, 0, 12))


def test_a_damaged_archive_object_stops_the_forget_until_it_is_released(cache: SstCache) -> None:
    app = busy_app()
    archive_of(app.store, "flights", Extent(0, 0, 4), {2: b"N003"})
    head = index.newest(app.store, "flights", TOPIC)
    assert head is not None
    (one,) = head.objects
    app.store.put(one.object, b"\0" * one.bytes)
    with pytest.raises(Corruption, match="is damaged"):
        make(app, cache)
    abandon_erasure(app.store, "flights", by="ada@host")
    wait(app, 60_000)
    gc(app, Retention(input_ms=1))
    assert one.object in keys_of(store_of(app))  # for an hour
    archive_of(app.store, "flights", Extent(0, 4, 8), {6: b"N003"})
    make(app, cache)
    assert one.object not in keys_of(store_of(app))
    assert occurrences(app.store, "N003") == []


def test_with_a_damaged_archive_index_all_else_is_forgotten_but_completion_is_not_claimed(cache: SstCache) -> None:
    app = busy_app()
    archive_of(app.store, "flights", Extent(0, 0, 4), {2: b"N003"})
    head = index.newest(app.store, "flights", TOPIC)
    assert head is not None
    key = INDEXES.key(head)
    whole = app.store.get(key)
    app.store.put(key, whole[:-9])
    for call in (lambda: make(app, cache, dry_run=True), lambda: make(app, cache), lambda: held(app, deep=False)):
        with pytest.raises(Corruption, match=f"the content of the input archive of {TOPIC} of .* is unknown") as error:
            call()
        assert error.value.object_key == key
    # No version's SSTs have the key; the same call continues once the index is back.
    assert {name for name, _ in occurrences(app.store, "N003")} == {head.objects[0].object}
    app.store.put(key, whole)
    make(app, cache)
    assert occurrences(app.store, "N003") == []
    assert held(app) == []


def test_forget_waits_until_records_already_read_are_archived(cache: SstCache) -> None:
    app = busy_app()
    heads = app.heads["legs"].inputs["flights"].offsets
    index.change(
        app.store, index.empty_index("flights", "flights"), index.begin_update([0] * len(heads)), by=BY, now_ms=1
    )
    first = index.newest(app.store, "flights", "flights")
    assert first is not None

    def appended() -> None:
        extents = tuple(Extent(partition, 0, end) for partition, end in enumerate(heads))
        rows = [records(each.partition, range(each.end), topic="flights") for each in extents]
        rows[0] = rows[0].set_column(6, "value", pa.array([b'{"tail": "N003"}'] * rows[0].num_rows, pa.binary()))
        one = write(app.store, first, rows, extents, 1)
        index.change(app.store, first, index.append_update((one,), extents), by=BY, now_ms=1)

    # No runner runs it, so the call does not wait, and reports the remaining work.
    paused: list[int] = []
    done = make(app, cache, "aircraft=N002", pause=lambda: paused.append(1))
    assert (paused, [each.name for each in done.out_of_reach if each.what == "archive"]) == (
        [],
        [f"{sum(heads)} offsets of flights that flights has read but not archived yet"],
    )
    store_of(app).clock_ms = now_ms()
    runners.HEARTBEATS.put(app.store, runners.Heartbeat("01JD0000000000000000000000", "host:1", {"legs": 1}), "flights")
    done = make(app, cache, pause=appended)
    assert occurrences(app.store, "N003") == []
    assert [each for each in done.out_of_reach if each.what == "archive"] == []
    # The wait for a runner that does not continue ends after a limited time.
    app.send(*flights(3))
    app.step("legs")
    make(app, cache, "aircraft=N001", pause=lambda: paused.append(1))
    assert 0 < len(paused) < 100


def test_unread_records_between_stages_are_reported_and_bring_the_key_back(cache: SstCache) -> None:
    app = busy_app()
    app.send(Flight("N003", "C0", 5), Flight("N001", "C0", 5))
    app.step("legs")
    assert [dict(each.fields) for each in make(app, cache, dry_run=True).unread] == [{"tail": 1}]
    (unread,) = make(app, cache).unread
    assert (unread.what, unread.table, dict(unread.fields)) == ("records not read yet", "by-aircraft", {"tail": 1})
    assert held(app) == [f"records not read yet {app.heads['legs'].outputs['by-aircraft'].topic}"]
    # Without Kafka nobody can tell.
    asked = RequestedKeys.parse((KEY,))
    (unproved,) = search_keys(fresh(app.store), app.name, asked, kafka=None, declared=declared(app)).unproved
    assert (unproved.records, unproved.why) == (2, "no Kafka configured")
    app.claim("aircraft")
    app.step("aircraft")
    assert len(held(app, deep=False)) > 0
    make(app, cache)
    assert held(app) == [f"records not read yet {app.heads['aircraft'].outputs['by-carrier'].topic}"]
    app.step("carriers")
    assert held(app) == []


def test_archives_of_channels_lose_the_rows_of_the_key(cache: SstCache) -> None:
    app = busy_app()
    topic = app.heads["legs"].outputs["by-aircraft"].topic
    sent = pa.table({"tail": ["N003", "N004"], "carrier": ["N003", "N003"], "delay": [1, 2]})
    archive = index.empty_index("flights", topic)
    rows = records(0, range(2), topic=topic)
    values = pa.array([encode_rows(sent.to_batches()[0]), b""], pa.binary())
    one = write(app.store, archive, [rows.set_column(6, "value", values)], (Extent(0, 0, 2),), 1)
    index.change(app.store, archive, index.append_update((one,), (Extent(0, 0, 2),)), by=BY, now_ms=1)
    assert dict(next(each for each in make(app, cache, dry_run=True).held if each.what == "input archive").fields) == {
        "tail": 1
    }
    make(app, cache)
    there = index.newest(app.store, "flights", topic)
    assert there is not None
    (left,) = objects.ArchivedRecords(app.store, there.objects[0]).all_rows()
    with pa.ipc.open_stream(left["value"][0].as_py()) as stream:
        assert stream.read_all() == sent.slice(1)


def test_an_archive_without_a_reading_stage_is_reported_as_unproved(cache: SstCache) -> None:
    app = busy_app()
    archive_of(app.store, "flights", Extent(0, 0, 4), {2: b"N003"})
    make(app, cache, declared=DeclaredFields())
    found = search_keys(fresh(app.store), app.name, RequestedKeys.parse((KEY,)), kafka=app.kafka)
    (unproved,) = found.unproved
    assert (unproved.table, unproved.records) == (TOPIC, 4)
    assert "no stage reads the topic any more" in unproved.why


def test_logged_edits_that_name_the_key_are_masked(cache: SstCache) -> None:
    app = busy_app()
    record_operation(
        app.store, "flights", "edit", "aircraft v3: DELETE FROM aircraft WHERE tail = 'N003'", "ada", message="N003!"
    )
    record_operation(app.store, "flights", "edit", "aircraft v4: DELETE FROM aircraft WHERE tail = 'N0033'", "ada")
    make(app, cache)
    said = [(each.detail, each.message) for each in list_operations(app.store, "flights") if each.verb == "edit"]
    assert said == [
        ("aircraft v4: DELETE FROM aircraft WHERE tail = 'N0033'", ""),
        ("aircraft v3: DELETE FROM aircraft WHERE tail = '(forgotten)'", "(forgotten)!"),
    ]


def test_an_impossible_forget_is_refused_and_nothing_is_changed(cache: SstCache) -> None:
    app = busy_app()
    there = {info.key for info in app.store.list("")}
    with pytest.raises(Refused, match="no object of flights under"):
        make(app, cache, "aircraft=N999")
    with pytest.raises(NotFound, match="plane"):
        make(app, cache, "plane=N003")
    with pytest.raises(Usage, match="lacks its table, or the '='"):
        make(app, cache, "N003")
    with pytest.raises(Usage, match="no key to forget was given"):
        forget(app.store, cache, "flights", RequestedKeys.parse([]), by="ada")
    asked = request_snapshot(app.store, "flights", "under-way", "ada")
    with pytest.raises(Refused, match="snapshot 'under-way' of flights is under way"):
        make(app, cache)
    withdraw_request(app.store, "flights", asked)
    assert {info.key for info in app.store.list("")} - there <= {keys.request_signal("flights")}
    assert forgotten.find_journal(app.store, "flights") is None


def test_other_forgets_snapshots_and_gc_wait_until_a_forget_is_done(cache: SstCache) -> None:
    app = old_app()

    class Broke(Exception):
        pass

    def breaks() -> None:
        raise Broke

    store_of(app).once("put_if_absent", "forgotten/", breaks)
    with pytest.raises(Broke):
        make(app, cache)
    with pytest.raises(Refused, match="ada@host has been forgetting keys of flights since"):
        make(app, cache, "aircraft=N002")
    with pytest.raises(Refused, match="so garbage collection could delete them"):
        gc(app)
    with pytest.raises(Refused, match="a snapshot taken now could keep these keys"):
        request_snapshot(app.store, "flights", "later", "ada")
    assert open_requests(app.store, "flights") == ()
    assert keys.forget_journal("flights") not in dict(occurrences(app.store, "N003"))
    make(app, cache)
    assert occurrences(app.store, "N003") == []
    gc(app)
    assert occurrences(app.store, "N002")
    wait(app, 60_000)  # the interrupted call has left objects that no version names
    make(app, cache, "aircraft=N002")
    assert occurrences(app.store, "N002") == []
    with pytest.raises(Refused, match="nothing to give up"):
        abandon_erasure(app.store, "flights", by="ada")
    store_of(app).once("put_if_absent", "forgotten/", breaks)
    with pytest.raises(Broke):
        make(app, cache, "aircraft=N001")
    abandon_erasure(app.store, "flights", by="bob")
    make(app, cache, "aircraft=N000")


def test_finishing_anothers_forget_keeps_the_journal_of_the_next_forget(cache: SstCache) -> None:
    app = old_app()

    class Broke(Exception):
        pass

    def breaks() -> None:
        raise Broke

    def others_come_first() -> None:
        make(app, cache)
        store_of(app).once("put_if_absent", "forgotten/", breaks)
        with pytest.raises(Broke):
            make(app, cache, "aircraft=N002")

    store_of(app).once("delete", "/sst/", others_come_first)
    with pytest.raises(Refused, match="another process ended this forget"):
        make(app, cache)
    assert forgotten.find_journal(app.store, app.name) is not None
    make(app, cache, "aircraft=N002")
    assert occurrences(app.store, "N002") == occurrences(app.store, "N003") == []


def test_gc_keeps_rewritten_objects_that_stand_for_referenced_ones(cache: SstCache) -> None:
    app = old_app()
    make(app, cache)
    for each in STAGES:
        app.claim(each)
    wait(app)
    app.run(flights(10))
    make(app, cache, "aircraft=N002")
    wait(app)
    gc(app)
    assert len(list(app.store.list("flights/forgotten/"))) == 1
    for stage in STAGES:
        for version in history.list_versions(fresh(app.store), "flights", stage):
            rows_of(app.store, history.read(fresh(app.store), "flights", stage, version))


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from("bcd")), min_size=1, max_size=6),
    st.lists(st.integers(0, 6), min_size=1, max_size=2, unique=True),
    st.booleans(),
)
def test_after_a_forget_every_version_snapshot_and_clone_reads_as_before_without_the_keys(
    steps: list[tuple[int, str]], gone: list[int], cloned: bool
) -> None:
    app, cache = aging_app(), SstCache(Path("/nonexistent"), 0)
    app.run(flights(8))
    for number, step in steps:
        if step == "b":
            app.run([Flight(f"N{number:03}", f"C{number % 3}", number)])
        elif step == "c":
            app.compact("aircraft")
        elif f"N{number:03}" in app.state["aircraft"]:
            app.delete("aircraft", f"N{number:03}")
    apps = [app]
    pin_cut(app.store, resolve(app.store, "flights", now_ms=LATER_MS), "good")
    if cloned:
        clone(app.store, "flights@good", "staging", channels=app.kafka, by="ada", now_ms=LATER_MS)
        apps.append(FlightsApp(app.store, app.kafka, "staging", clock=app.clock))
        apps[1].run(flights(3))
    names = {f"N{number:03}" for number in gone}
    before = {each.name: tables_of_all_versions(each.store, each.name) for each in apps}
    try:
        forget(app.store, cache, "flights", RequestedKeys.from_values({"aircraft": sorted(names)}), by="ada")
    except Refused:
        assert not any(occurrences(app.store, name) for name in names)
    for each in apps:
        after = tables_of_all_versions(fresh(app.store), each.name)
        for place, rows in before[each.name].items():
            assert after[place] == {key: row for key, row in rows.items() if key not in names}
    assert [occurrences(app.store, name) for name in names] == [[] for _ in names]
    assert verify(fresh(app.store), "flights@good", now_ms=LATER_MS, deep=True).consistent
