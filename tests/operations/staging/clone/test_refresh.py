"""Refreshing a clone: it gets the newest state, and keeps its owner, expiry and other terms."""

from itertools import count

import pytest
from msgspec.structs import replace
from slackwater.common import instants
from slackwater.errors import Refused, SlackwaterError
from slackwater.operations.maintenance.removal import Removal
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.clone_plan import ClonePlan, CloneTerms
from slackwater.operations.staging.refresh import refresh
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.under_way.runners import HEARTBEATS, Heartbeat
from slackwater.store.versions import apps, keys
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import Sink
from ulid import ULID

from tests.crash.points import Killed, killed_at_each_call
from tests.support.collecting import HOUR_MS, aging_app, keys_of, store_of, wait
from tests.support.histories import FlightsApp, flights

TERMS = CloneTerms(
    topics={"flights": "corrected"},
    sinks={"alerts": "trial"},
    owner="ada@host",
    reason="try the new program",
    ttl_ms=3 * 24 * HOUR_MS,
)


_LATER_MS = count(2_000_000_000_000, HOUR_MS)
"""Times long after the last commit."""


def publish(app: FlightsApp) -> None:
    """Give the app's stage `legs` a sink."""
    head = app.heads["legs"]
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="t", now_ms=app.clock.tick("legs"))
    app.commit(replace(draft, sinks={"alerts": Sink("internal", 5, since=2, sent=5)}))


def cloned_app() -> FlightsApp:
    """Return an app with a clone. Both have committed since the clone was made."""
    app = aging_app()
    app.run(flights(20))
    publish(app)
    app.kafka.topics["corrected"] = app.kafka.topics["flights"]
    app.kafka.create("trial")
    clone(app.store, "flights", "staging", terms=TERMS, channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms)
    FlightsApp(app.store, app.kafka, "staging", clock=app.clock).run(flights(10))
    app.step_all()
    app.run(flights(30))
    wait(app)
    return app


def fresh_state(app: FlightsApp, **more: object) -> ClonePlan:
    arguments = {"by": "eve@host", "now_ms": next(_LATER_MS), "pause": store_of(app).pause} | more
    return refresh(app.store, "staging", channels=app.kafka, cache=None, **arguments)  # type: ignore[arg-type]


def check_anew(app: FlightsApp) -> None:
    info = apps.read_app(app.store, "staging")
    assert info.origin is not None
    assert info.origin.cut == {stage: head.version for stage, head in app.heads.items()}
    assert (info.origin.topics, info.origin.sinks) == (TERMS.topics, TERMS.sinks)
    assert (info.owner, info.reason, info.ttl_ms) == (TERMS.owner, TERMS.reason, TERMS.ttl_ms)
    assert info.expires_ms == info.created_ms + TERMS.ttl_ms
    assert [snapshot.name for snapshot in list_snapshots(app.store, "flights")] == [info.origin.snapshot]
    assert keys.refresh_journal("staging") not in keys_of(store_of(app))
    staging = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    assert staging.state == app.state
    app.send(*flights(4))
    for each in (app, staging):
        each.step_all()
    assert staging.state == app.state


def test_a_refreshed_clone_has_the_newest_state_and_its_old_terms() -> None:
    app = cloned_app()
    before = apps.read_app(app.store, "staging")
    groups: list[Removal] = []
    plan = fresh_state(app, remove_topics=groups.append)
    assert [removal.app for removal in groups] == ["staging"]
    assert plan.info.created_ms > before.created_ms
    check_anew(app)
    wait(app)
    fresh_state(app)
    check_anew(app)


def test_a_dry_run_checks_all_and_changes_nothing() -> None:
    app = cloned_app()
    before = {key: app.store.get(key) for key in keys_of(store_of(app))}
    plan = fresh_state(app, dry_run=True)
    assert plan.source.versions == {stage: head.version for stage, head in app.heads.items()}
    assert {key: app.store.get(key) for key in keys_of(store_of(app))} == before


def test_a_killed_refresh_is_continued_by_the_same_call_and_leaves_no_other_pin() -> None:
    for app, _ in killed_at_each_call("clone refresh", cloned_app, fresh_state, store_of):
        # Whoever looks finds the old one, the new one, or none.
        if (found := apps.find_app(app.store, "staging")) is not None:
            assert found.owner == TERMS.owner
        fresh_state(app)
        check_anew(app)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("no clone", "is not a clone"),
        ("deep", "is a deep clone"),
        ("runs", "legs of staging run on host:1"),
        ("cloned", "is a clone that still uses files of staging"),
        ("offsets", "topic 'corrected' holds"),
    ],
)
def test_a_clone_that_cannot_be_refreshed_is_unchanged(spoil: str, words: str) -> None:
    app, now_ms = cloned_app(), next(_LATER_MS)
    match spoil:
        case "no clone":
            app.store.delete(keys.app_info("staging"))
            apps.create_app(app.store, replace(apps.read_app(app.store, "flights"), name="staging"))
        case "deep":
            info = apps.read_app(app.store, "staging")
            app.store.delete(keys.app_info("staging"))
            assert info.origin is not None
            origin = replace(info.origin, root="", snapshot="")
            apps.create_app(app.store, replace(info, origin=origin))
        case "runs":
            store_of(app).clock_ms = instants.now_ms()
            HEARTBEATS.put(app.store, Heartbeat(str(ULID()), "host:1", {"legs": 1}), "staging")
        case "cloned":
            clone(app.store, "staging", "second", channels=app.kafka, by="t", now_ms=app.clock.now_ms)
        case "offsets":
            app.kafka.topics["corrected"] = [[], []]
    before = {key: app.store.get(key) for key in keys_of(store_of(app))}
    with pytest.raises(Refused, match=words):
        fresh_state(app, now_ms=now_ms)
    assert {key: app.store.get(key) for key in keys_of(store_of(app)) if "gc.json" not in key} == before


def test_a_refresh_uses_the_app_that_has_the_sources_name_when_the_refresh_starts() -> None:
    app = cloned_app()
    clone(app.store, "flights", "next", channels=app.kafka, by="t")
    following = FlightsApp(app.store, app.kafka, "next", clock=app.clock)
    publish(following)
    following.run(flights(12))
    wait(app)
    with store_of(app).requests() as made:
        fresh_state(app, dry_run=True)
    with pytest.raises(Killed), store_of(app).death_after(len(made) + 3):
        fresh_state(app)
    assert keys.refresh_journal("staging") in keys_of(store_of(app))
    apps.PROMOTION_OUTCOMES.add(
        app.store, apps.PromotionOutcome("flights", 1, "next", "flights", "t", app.clock.now_ms)
    )
    assert fresh_state(app).source.app == "flights"
    wait(app)
    # `fresh_state` says another time than the app's clock: that it was made before the promotion.
    info = apps.read_app(app.store, "staging")
    app.store.delete(keys.app_info("staging"))
    apps.create_app(app.store, replace(info, created_ms=1))
    plan = fresh_state(app)
    assert plan.source.app == "next"
    assert plan.info.origin is not None
    assert plan.info.origin.app == "next"
    assert FlightsApp(app.store, app.kafka, "staging", clock=app.clock).state == following.state
    assert [snapshot.name for snapshot in list_snapshots(app.store, "flights")] == ["clone-next"]
    # And back: it follows the name, by which its source was called when it was made.
    wait(app)
    apps.PROMOTION_OUTCOMES.add(
        app.store, apps.PromotionOutcome("flights", 2, "flights", "next", "t", plan.info.created_ms + 1, back=True)
    )
    assert fresh_state(app, dry_run=True).source.app == "flights"


def test_refreshing_an_unknown_app_is_an_error() -> None:
    with pytest.raises(SlackwaterError, match="no app named 'staging'"):
        fresh_state(aging_app())
