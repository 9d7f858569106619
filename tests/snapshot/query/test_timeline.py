"""The timeline shows the commits of an app as points: all of them if they fit, otherwise a sample.

Its cost depends on the number of points.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.client import Client
from slackwater.settings import Settings
from slackwater.snapshot.query.timeline import _sample_versions, timeline
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, keys
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import Program

from tests.snapshot.wide import Rounds, first_version, many_apps, pin_versions, repeat_version
from tests.support.histories import STAGES, FlightsApp, Kafka, flights


def test_all_commits_are_shown_in_order_if_they_fit() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(30))
    found = timeline(app.store, "flights")
    assert found.is_whole
    assert [each.time_ms for each in found.points] == sorted(each.time_ms for each in found.points)
    assert {(each.stage, each.version) for each in found.points} == {
        (stage, version) for stage in STAGES for version in range(1, app.heads[stage].version + 1)
    }


def long(store: MemoryStore, versions: int, deploy_at: int) -> FlightsApp:
    """Return an app of one stage with many versions, which are written without delays."""
    app = FlightsApp(store, Kafka())
    head = app.heads["legs"]
    for version in range(2, versions + 1):
        program = Program("flights.py", ("0" if version < deploy_at else "1") * 32)
        head = replace(head, version=version, time_ms=head.time_ms + 1_000, kind="batch", program=program)
        store.put(keys.manifest("flights", "legs", version), codec.encode(head))
    return app


def test_many_commits_cost_as_much_as_the_points_and_a_deploy_between_points_is_found() -> None:
    store = MemoryStore()
    long(store, 3_000, 1_777)
    counted = CountingStore(store)
    found = timeline(counted, "flights", points=50)
    assert found.commits == 3_002
    assert not found.is_whole
    assert len(found.points) <= 60
    assert counted.requests < 150
    versions = [each.version for each in found.points if each.stage == "legs"]
    assert (versions[0], versions[-1]) == (1, 3_000)
    (deploy,) = (each for each in found.marks if each.kind == "deploy")
    assert (deploy.stage, deploy.version) == ("legs", 1_777)
    before = counted.requests
    timeline(counted, "flights", points=50)
    assert counted.requests - before < 30


def test_a_time_range_shows_only_its_commits() -> None:
    store = MemoryStore()
    app = long(store, 500, 900)
    at = {version: app.heads["legs"].time_ms + (version - 1) * 1_000 for version in (100, 120)}
    found = timeline(store, "flights", from_ms=at[100], to_ms=at[120])
    assert [each.version for each in found.points if each.stage == "legs"] == list(range(100, 121))
    assert found.is_whole


def test_operations_and_snapshots_are_marks(tmp_path) -> None:  # type: ignore[no-untyped-def]
    app = FlightsApp(LocalStore(tmp_path / "store"), Kafka())
    app.run(flights(30))
    with Client(Settings(store=app.store.url, cache=str(tmp_path / "cache"), cache_max_bytes=1 << 30)) as client:
        of = client.app("flights")
        of.snapshot("before", instant=True)
        of.edit("aircraft", "DELETE FROM aircraft WHERE tail = 'N003'")
        marks = of.timeline().marks
    assert [(each.kind, each.stage) for each in marks] == [("snapshot", ""), ("operation", "aircraft")]
    assert marks[0].label == "before"
    assert marks[1].label.startswith("edit ")


@given(st.integers(1, 10_000), st.integers(0, 100_000), st.integers(2, 500))
def test_the_sample_has_the_requested_size_and_both_ends(first: int, more: int, count: int) -> None:
    span = range(first, first + more + 1)
    chosen = _sample_versions(span, count)
    assert (chosen[0], chosen[-1]) == (span[0], span[-1])
    assert len(chosen) <= count + 2
    longer = _sample_versions(range(first, first + more + 2), count)
    if len(span) > count and len(longer) <= count + 2:
        assert len({*chosen[:-1]} - {*longer}) <= len(chosen) // 2 + 1  # the same, or each second one


def test_a_deploy_of_all_stages_is_a_single_mark() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(10))
    for number in range(2):
        for stage in STAGES:
            head = app.heads[stage]
            draft = successor(
                head, kind="claim", epoch=head.epoch + 1, writer="w", by="w", now_ms=app.clock.tick(stage)
            )
            app.commit(replace(draft, program=Program("flights.py", str(number) * 32)))
        app.clock.now_ms += 60_000
    assert [each.kind for each in timeline(app.store, "flights").marks] == ["deploy"]


def test_a_hundred_snapshots_are_read_concurrently() -> None:
    memory, rounds = MemoryStore(), Rounds()
    many_apps(memory, 1)
    head = repeat_version(memory, first_version("app-0000"), 300)
    pin_versions(memory, head, 96)
    found = timeline(CountingStore(memory, rounds), "app-0000", points=20)
    assert len(found.marks) == 96
    # The stages and their versions one after the other; then six times 16 snapshots, each with its version.
    assert rounds.count <= 40
