"""The list of clones: source, owner, expiry and kept bytes."""

from pathlib import Path

import pytest
from slackwater.common.durations import DAY_MS
from slackwater.errors import NotFound
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.clone_plan import CloneTerms
from slackwater.operations.staging.listing import KnownClone, list_clones
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, keys

from tests.support.histories import FlightsApp, Kafka, flights

LEASE = CloneTerms(owner="ada@host", reason="try the new program", ttl_ms=3 * DAY_MS)


def source_app(store: ObjectStore) -> FlightsApp:
    app = FlightsApp(store, Kafka())
    app.run(flights(30))
    return app


def make(
    app: FlightsApp, name: str = "staging", source: str = "flights", terms: CloneTerms = LEASE, **more: object
) -> None:
    arguments = {"channels": app.kafka, "by": "eve@host", "now_ms": app.clock.now_ms, "terms": terms} | more
    clone(app.store, source, name, **arguments)  # type: ignore[arg-type]


def only(store: ObjectStore, source: str = "") -> KnownClone:
    (found,) = list_clones(store, source)
    return found


def test_a_clone_has_an_owner_a_reason_and_an_expiry() -> None:
    app = source_app(MemoryStore())
    make(app)
    found, now_ms = only(app.store), app.clock.now_ms
    assert (found.name, found.source, found.snapshot) == ("staging", "flights", "clone-staging")
    assert (found.owner, found.reason) == ("ada@host", "try the new program")
    assert (found.created_ms, found.expires_ms) == (now_ms, now_ms + 3 * DAY_MS)
    assert [found.is_expired(now_ms + days * DAY_MS) for days in (0, 2.999, 3)] == [False, False, True]
    assert found.cut == {stage: head.version for stage, head in app.heads.items()}
    assert (found.has_run, found.state) == (False, "")
    FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    assert only(app.store).has_run


def test_a_clone_without_a_time_to_live_never_expires() -> None:
    app = source_app(MemoryStore())
    make(app, terms=CloneTerms())
    assert (only(app.store).expires_ms, only(app.store).is_expired(10**15)) == (0, False)


def test_repeating_the_call_does_not_change_the_owner() -> None:
    app = source_app(MemoryStore())
    make(app)
    make(app, terms=CloneTerms(owner="eve@host", reason="mine", ttl_ms=1))
    assert (only(app.store).owner, only(app.store).reason) == ("ada@host", "try the new program")


def test_bytes_kept_only_for_a_clone_grow_as_its_source_merges_shared_ssts() -> None:
    app = source_app(MemoryStore())
    make(app)
    shared = sum(sst.bytes for head in app.heads.values() for sst in head.ssts)
    assert (only(app.store).shared_bytes, only(app.store).kept_bytes) == (shared, 0)
    gone = sum(sst.bytes for sst in app.heads["carriers"].ssts)
    app.compact("carriers")
    assert (only(app.store).shared_bytes, only(app.store).kept_bytes) == (shared, gone)
    make(app, "other", "flights@clone-staging")
    assert [found.kept_bytes for found in list_clones(app.store)] == [0, 0], "each would be kept by the other"


def test_clones_of_one_app_can_be_listed_alone() -> None:
    app = source_app(MemoryStore())
    make(app)
    make(app, "second", "staging")
    assert [found.name for found in list_clones(app.store)] == ["second", "staging"]
    assert only(app.store, "staging").name == "second"
    assert only(app.store, "flights").name == "staging"
    with pytest.raises(NotFound, match="no app named 'flihgts'; the nearest: flights"):
        list_clones(app.store, "flihgts")


def test_a_clone_under_another_root_is_listed_in_both_roots(tmp_path: Path) -> None:
    app, other = source_app(LocalStore(tmp_path / "home")), LocalStore(tmp_path / "there")
    make(app, target_store=other)
    for store in (app.store, other):
        found = only(store)
        assert (found.name, found.root, found.source_root) == ("staging", other.url, app.store.url)
        assert found.shared_bytes > 0


def test_a_deep_clone_keeps_no_bytes_of_its_source(tmp_path: Path) -> None:
    app, other = source_app(LocalStore(tmp_path / "home")), LocalStore(tmp_path / "there")
    make(app, terms=CloneTerms(deep=True), target_store=other)
    found = only(other)
    assert (found.source_root, found.snapshot, found.shared_bytes, found.kept_bytes) == ("", "", 0, 0)
    assert list_clones(app.store) == ()


def test_a_pin_without_a_clone_and_an_unfinished_clone_are_listed_as_such() -> None:
    app = source_app(MemoryStore())
    make(app)
    app.store.delete(keys.app_info("staging"))
    assert [(found.name, found.state) for found in list_clones(app.store)] == [("staging", "gone")]
    half = source_app(MemoryStore())
    make(half)
    info = apps.read_app(half.store, "staging")
    apps.begin_clone(other := MemoryStore(), apps.CloneJournal(info, other.url, ""))
    found = {each.state: each for each in list_clones(other)}
    assert (found["being made"].name, found["being made"].has_run) == ("staging", False)
