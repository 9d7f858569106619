"""Recovery drills: they change nothing, and report whether the app could continue."""

from slackwater.client.show.failover import drill_page, drill_result
from slackwater.client.show.render import html, markdown
from slackwater.operations.disaster_recovery.drill import DrillResult, drill
from slackwater.operations.maintenance.removal import Removal
from slackwater.store.versions import apps, history

from tests.operations.disaster_recovery.recover.test_recover import SAME
from tests.operations.disaster_recovery.replicate.test_replicate import copy, running
from tests.operations.failover import failover_kafka
from tests.support.collecting import AgingStore, keys_of
from tests.support.histories import FlightsApp


def practise(app: FlightsApp, target: AgingStore, *, keep: bool = False, reachable: bool = True) -> DrillResult:
    def remove(removal: Removal) -> None:
        for topic in removal.topics:
            app.kafka.topics.pop(topic, None)

    primary = (lambda _root: app.store) if reachable else None
    how = {"primary": primary, "terms": SAME, "by": "ada", "keep": keep, "remove_topics": remove, "pause": target.pause}
    return drill(target, app.name, failover_kafka(app), **how)  # type: ignore[arg-type]


def test_a_drill_compares_tables_re_reads_input_and_leaves_nothing() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    before, topics = keys_of(target, f"{app.name}/"), set(app.kafka.topics)
    found = practise(app, target)
    assert found.passed
    assert {each.checksums for each in found.tables} == {"equal"}
    assert found.recovered.consistent
    log = keys_of(target, f"{app.name}/log/")
    assert keys_of(target, f"{app.name}/") - log == before - log
    assert set(app.kafka.topics) == topics
    assert apps.find_app(target, f"{app.name}-drill") is None
    text = repr(drill_result(found))
    assert "can be recovered" in text
    assert "equal" in text
    assert "can be recovered" in html.render(drill_page(found))
    assert "every byte read again" in markdown.render(drill_page(found))


def test_a_kept_clone_is_reported_and_a_damaged_replica_fails_the_drill() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    found = practise(app, target, keep=True, reachable=False)
    assert found.kept
    assert {each.checksums for each in found.tables} == {"not compared"}
    assert history.list_stages(target, found.clone)
    for topic in [name for name in app.kafka.topics if name.startswith(f"{found.clone}-")]:
        del app.kafka.topics[topic]
    other = AgingStore()
    copy(app, other)
    sst = app.heads["carriers"].ssts[0].object
    other.put(sst, app.store.get(sst)[:-1] + b"x")
    found = practise(app, other, keep=True)
    assert not found.passed
    assert drill_result(found).failed
