"""Pins, clones, batches, stalled writers, reads and other collections during a collection."""

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.errors import Corruption, Fenced, NotFound, Refused
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.resolve import report_if_collected, resolve
from slackwater.snapshot.cut.stored import find_snapshot, list_snapshots
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.sql import connect
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import codec, history, horizon, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import Manifest

from tests.support.collecting import check_whole, fresh, gc, keys_of, old_app, store_of
from tests.support.histories import FlightsApp, flights


def test_a_snapshot_pinned_while_a_collection_looks_is_kept() -> None:
    app = old_app()
    cut = resolve(app.store, "flights/legs@v4", now_ms=0)
    store_of(app).once("put_if_absent", "boundaries/", lambda: pin_cut(app.store, cut, "just-now"))
    gc(app)
    assert resolve(app.store, "flights@just-now", now_ms=0).versions == cut.versions
    check_whole(app)


def test_a_pin_of_versions_proposed_for_deletion_is_refused() -> None:
    app = old_app()
    cut = resolve(app.store, "flights/legs@v4", now_ms=0)
    # The collection goes on, to its end, between the look of the pin and its write.
    store_of(app).once("put_if_absent", "snapshots/", lambda: gc(app))
    with pytest.raises(NotFound, match="was collected before it could be pinned"):
        pin_cut(app.store, cut, "too-late")
    assert find_snapshot(app.store, "flights", "too-late") is None
    check_whole(app)


def test_a_pin_between_the_proposal_and_the_second_look_is_refused() -> None:
    app = old_app()
    store, cut = store_of(app), resolve(app.store, "flights/legs@v4", now_ms=0)
    refused = []

    def try_to_pin() -> None:
        with pytest.raises(NotFound) as caught:
            pin_cut(store, cut, "too-late")
        refused.append(caught)

    store.once("put_if_absent", "boundaries/", lambda: store.once("list", "snapshots/", try_to_pin))
    gc(app)
    assert refused
    assert not list_snapshots(store, "flights")
    check_whole(app)


def test_versions_of_a_removed_snapshot_may_be_pinned_again_during_a_collection() -> None:
    """The proposal still keeps these versions. The second pin sees only the proposal."""
    app = old_app()
    store, cut = store_of(app), resolve(app.store, "flights/legs@v4", now_ms=0)
    pin_cut(store, cut, "first")

    def remove_and_pin() -> None:
        delete_snapshot(store, "flights", "first")
        store.once("put_if_absent", "boundaries/", lambda: pin_cut(store, cut, "second"))

    store.once("put_if_absent", "boundaries/", lambda: store.once("list", "snapshots/", remove_and_pin))
    gc(app)
    assert [each.name for each in list_snapshots(store, "flights")] == ["second"]
    for _ in range(2):
        assert resolve(fresh(store), "flights@second", now_ms=0).versions == cut.versions
        check_whole(app)
        gc(app)


def test_a_clone_of_versions_collected_meanwhile_is_refused_and_leaves_nothing() -> None:
    app = old_app()
    store_of(app).once("put_if_absent", "snapshots/", lambda: gc(app))
    with pytest.raises(NotFound):
        clone(app.store, "flights/legs@v4", "staging", topics={}, channels=app.kafka, by="test", now_ms=0)
    assert not keys_of(store_of(app), "staging/")
    assert not list_snapshots(app.store, "flights")


@pytest.mark.parametrize("moment", ["list:snapshots/", "put_if_absent:boundaries/", "get:manifests/"])
def test_the_second_of_two_concurrent_collections_is_refused_and_nothing_is_lost(moment: str) -> None:
    app = old_app()
    verb, part = moment.split(":")
    store_of(app).once(verb, part, lambda: gc(app, Retention(versions=2)))
    with pytest.raises(Refused, match="another garbage collection of flights runs"):
        gc(app)
    check_whole(app)
    gc(app)
    check_whole(app)


@pytest.mark.parametrize("moment", ["list:manifests/", "put_if_absent:boundaries/", "delete:manifests/", "delete:sst/"])
def test_the_app_commits_during_a_collection(moment: str) -> None:
    app = old_app()
    verb, part = moment.split(":")

    def go_on() -> None:
        app.run(flights(20))
        app.compact("carriers")

    store_of(app).once(verb, part, go_on)
    gc(app)
    check_whole(app)


def test_a_stalled_writer_cannot_create_a_collected_version_again() -> None:
    app = old_app()
    stalled = successor(app.version("legs", 4), kind="batch", epoch=1, writer="stalled", by="old:1", now_ms=0)
    gc(app)
    with pytest.raises(Fenced, match="its history now begins at v"):
        commit(app.store, stalled)
    assert keys.manifest("flights", "legs", 5) not in keys_of(store_of(app))


def test_a_version_written_by_a_stalled_writer_that_died_is_collected_and_never_read() -> None:
    app = old_app()
    gc(app)
    zombie = replace(app.heads["legs"], version=5, time_ms=1)
    _write(app, zombie)
    assert 5 not in history.list_versions(app.store, "flights", "legs")
    assert history.head(app.store, "flights", "legs") == app.heads["legs"]
    assert gc(app).objects == 1
    check_whole(app)


def _write(app: FlightsApp, manifest: Manifest) -> None:
    app.store.put(keys.manifest(manifest.app, manifest.stage, manifest.version), codec.encode(manifest))


def test_a_writer_paused_for_less_than_half_a_minute_need_not_check_again() -> None:
    now = 0.0
    freshness = horizon.Freshness(lambda: now)
    freshness.record_free("app", "stage", 5, freshness.now())
    now = 29.0
    assert freshness.is_fresh("app", "stage", 5)
    assert not freshness.is_fresh("app", "stage", 6)
    now = 1800.0
    assert not freshness.is_fresh("app", "stage", 5)


def test_a_read_reports_that_its_version_was_collected_meanwhile(tmp_path: Path) -> None:
    app = old_app()
    cut = resolve(app.store, "flights/carriers@v3", now_ms=app.clock.now_ms)
    store_of(app).once("get", "/sst/", lambda: gc(app))
    with (
        closing(SstCache(tmp_path, 1 << 30)) as cache,
        pytest.raises(
            NotFound, match=r"carriers@v3 was garbage-collected while it was read: retention does not keep it"
        ) as error,
        report_if_collected(app.store, cut),
        connect(app.store, cache, cut),
    ):
        pass
    assert "--instant" in error.value.hint


def test_damage_to_a_kept_version_is_reported_as_damage(tmp_path: Path) -> None:
    app = old_app()
    gc(app)
    cut = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    app.store.delete(cut.stages["aircraft"].ssts[0].object)
    with (
        closing(SstCache(tmp_path, 1 << 30)) as cache,
        pytest.raises(Corruption, match="the object is missing"),
        report_if_collected(app.store, cut),
        connect(app.store, cache, cut),
    ):
        pass
