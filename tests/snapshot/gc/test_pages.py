"""A collection with pages deletes the same objects as one without, and reads few manifests."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Refused
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.operations.repair.rewind import rewind
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.line import Line
from slackwater.snapshot.cut.refs import parse_ref
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots, pack_snapshots
from slackwater.snapshot.gc import census
from slackwater.snapshot.gc.collect import collect, explain
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.timeline import timeline
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history, keys
from slackwater.store.versions.pages.page import build_page
from slackwater.store.versions.pages.stored import list_pages, put_page, read_parts

from tests.models.profiles import SECONDS, scaled
from tests.operations.failover import failover_app, failover_kafka
from tests.snapshot.gc.paging import change_pages, collect_with_and_without, replace_by_foreign_page, write_page
from tests.snapshot.wide import first_version, many_apps, pin_versions, repeat_version
from tests.support.collecting import FEW, HOUR_MS, check_whole, fresh, old_app, store_of, wait
from tests.support.histories import STAGES, FlightsApp, flights

CACHE = SstCache(Path("/nonexistent"), 0)
OPERATIONS = [
    "batches",
    "batches",
    "compact",
    "restart",
    "rescale",
    "forget",
    "rewind",
    "pin",
    "unpin",
    "pages",
    "pages",
]
VERSIONS, SNAPSHOTS = 1_500, 100


def change_app(data: st.DataObject, app: FlightsApp, number: int) -> None:
    """Apply one operation to an app with a history."""
    match data.draw(st.sampled_from(OPERATIONS), "operation"):
        case "batches":
            app.run(flights(data.draw(st.integers(1, 30), "flights")))
        case "compact":
            app.compact(data.draw(st.sampled_from(["aircraft", "carriers"]), "stage"))
        case "restart":
            app.claim(data.draw(st.sampled_from(STAGES), "stage"))
        case "rescale":
            app.rescale("aircraft", data.draw(st.integers(1, 5), "partitions"))
        case "forget":
            requested = RequestedKeys.parse((f"aircraft={data.draw(st.sampled_from(['N001', 'N002']), 'tail')}",))
            kafka = failover_kafka(app)
            with suppress(Refused):  # no object has the key any more
                forget(app.store, CACHE, app.name, requested, by="test", kafka=kafka, pause=lambda: None)
            for stage in STAGES:
                app.claim(stage)
        case "rewind":
            back = data.draw(st.integers(1, 4), "back")
            version = max(app.heads["carriers"].version - back, history.first_version(app.store, app.name, "carriers"))
            target, now_ms = parse_ref(f"flights/carriers@v{version}", now_ms=0), app.clock.tick("legs")
            rewind(app.store, app.name, target, app.kafka, by="test", now_ms=now_ms, cache=CACHE)
            for stage in STAGES:
                app.claim(stage)
        case "pin":
            pin_cut(app.store, resolve(app.store, app.name, now_ms=app.clock.now_ms), f"s{number}", reader=app.kafka)
        case "unpin":
            for snapshot in list_snapshots(app.store, app.name)[:1]:
                delete_snapshot(app.store, app.name, snapshot.name)
        case _:
            change_pages(data, store_of(app), app.name, data.draw(st.sampled_from(STAGES), "stage"))


@pytest.mark.timeout(SECONDS)
@scaled(40, in_ci=150)
@given(st.data())
def test_a_collection_with_pages_deletes_the_same_as_without(data: st.DataObject) -> None:
    app = failover_app()
    app.run(flights(20))
    for number in range(data.draw(st.integers(4, 16), "operations")):
        change_app(data, app, number)
        if data.draw(st.booleans(), "time goes by"):
            wait(app)
            app.run(flights(10))
        if number % 4 == 3:
            retention = Retention(versions=data.draw(st.integers(1, 20), "versions"))
            collect_with_and_without(store_of(app), app.name, retention, margin_ms=HOUR_MS)
            check_whole(app)


@pytest.mark.parametrize("damage", ["foreign", "damaged", "missing", "sparse", "none"])
def test_a_damaged_page_causes_no_deletion(damage: str) -> None:
    app = old_app()
    store = store_of(app)
    for stage in STAGES:
        write_page(store, app.name, stage)
        (ref,) = list_pages(store, app.name, stage)
        if damage == "foreign":
            replace_by_foreign_page(store, ref.key)
        elif damage == "damaged":
            store.put(ref.key, store.get(ref.key)[:-3])
        elif damage == "missing":
            store.delete(ref.key)
        elif damage == "sparse":
            versions = [
                version for version in range(ref.first, ref.last + 1) if version % 3 != 0 or version == ref.last
            ]
            put_page(store, build_page(read_parts(store, app.name, stage, version) for version in versions))
    collected = collect_with_and_without(store, app.name, FEW)
    assert sum(stage.versions for stage in collected.stages) > 0
    check_whole(app)


@pytest.fixture(scope="module")
def long_history() -> MemoryStore:
    """Return a long history with pinned versions, after a collection."""
    store = MemoryStore()
    many_apps(store, 1)
    head = repeat_version(store, first_version("app-0000"), VERSIONS)
    pin_versions(store, replace(head, time_ms=1), SNAPSHOTS)
    collect(store, "app-0000", Retention(), by="test")
    pack_snapshots(store, "app-0000", head.time_ms + HOUR_MS)
    return store


def test_a_second_collection_reads_pages_and_the_newest_manifests(long_history: MemoryStore) -> None:
    store = CountingStore(long_history)
    kept = collect(store, "app-0000", Retention(), by="test", dry_run=True)
    assert kept.stages[0].kept_versions == VERSIONS
    pages = list_pages(long_history, "app-0000", "stage")
    assert [page.last - page.first + 1 for page in pages] == [512, 512, *[64] * 7]
    # Of each page itself and a manifest that proves it; the versions without a page; and a few notes.
    assert store.take_stats().gets <= 2 * len(pages) + VERSIONS % 64 + 12
    named = first_version("app-0000").ssts[0].object
    long_history.put(named, b"")
    reasons = explain(store, "app-0000", named, Retention()).reasons
    assert f"stage@v1 to v{VERSIONS} name it: no retention rule is set: everything is kept" in reasons


def test_a_page_that_a_runner_writes_meanwhile_stays() -> None:
    app = old_app()
    store = store_of(app)

    def go_on() -> None:
        app.run(flights(20))
        write_page(store, app.name, "legs", app.heads["legs"].version)

    store.once("put_if_absent", "boundaries/", go_on)
    collect(store, app.name, FEW, by="test")
    assert [ref.first for ref in list_pages(store, app.name, "legs")] == [app.heads["legs"].version]


def test_searches_by_time_and_timelines_read_pages(long_history: MemoryStore) -> None:
    head = history.head(long_history, "app-0000", "stage")
    assert head is not None
    first_ms = head.time_ms - 1_000 * (VERSIONS - 1)
    store = CountingStore(long_history)
    line = Line(store, Cut("app-0000", {"stage": head}))
    for version in (77, 1_000, VERSIONS - 20):
        assert line._up_to_time(first_ms + 1_000 * version - 1)["stage"].version == version
    assert store.take_stats().gets <= 20
    store = CountingStore(long_history)
    from_ms, to_ms = first_ms + 99_000, first_ms + 1_299_000
    shown = timeline(store, "app-0000", points=100, from_ms=from_ms, to_ms=to_ms)
    assert (shown.commits, shown.points[0].version, shown.points[-1].version) == (1_201, 100, 1_300)
    assert shown == timeline(without_pages(long_history), "app-0000", points=100, from_ms=from_ms, to_ms=to_ms)
    # A hundred snapshots, each page with a manifest that proves it, and a few of the newest versions.
    assert store.take_stats().gets <= SNAPSHOTS + 2 * 9 + 24


def without_pages(store: MemoryStore) -> MemoryStore:
    plain = MemoryStore()
    for info in store.list(""):
        if census.object_kind_of(info.key) is not census.PAGE:
            plain.put(info.key, store.get(info.key))
    return plain


def test_packed_snapshots_are_listed_with_few_requests(long_history: MemoryStore) -> None:
    store = CountingStore(long_history)
    assert [each.name for each in list_snapshots(store, "app-0000")] == [f"s{n:05}" for n in range(1, SNAPSHOTS + 1)]
    assert store.requests <= 3


def test_a_snapshot_replaced_after_packing_is_read_again() -> None:
    app = old_app()
    for number in range(16):
        pin_cut(app.store, resolve(app.store, "flights/legs@v4", now_ms=0), f"s{number:02}")
    wait(app)
    pack_snapshots(app.store, "flights", store_of(app).clock_ms)
    before = list_snapshots(fresh(app.store), "flights")
    delete_snapshot(app.store, "flights", "s07")
    again = pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "s07")
    delete_snapshot(app.store, "flights", "s03")
    after = {snapshot.name: snapshot for snapshot in list_snapshots(fresh(app.store), "flights")}
    assert after == {each.name: each for each in before if each.name not in ("s03", "s07")} | {"s07": again}
    app.store.put(keys.snapshot_pack("flights"), b"damaged")
    assert {each.name: each for each in list_snapshots(fresh(app.store), "flights")} == after
