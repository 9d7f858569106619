"""Times that garbage collection has thinned out: the moment that is used instead, and the printed note."""

import json
from copy import copy
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slackwater.pipeline.kafka import channels
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import horizon
from slackwater.store.versions.horizon import Boundary

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.support.collecting import HOUR_MS, StoreClock, aging_app, fresh
from tests.support.histories import FlightsApp, flights

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def at(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture(scope="module")
def thinned_once() -> FlightsApp:
    """Return a history with one moment per hour, followed by a pause, and then by every version."""
    app = aging_app(step_ms=240_000)
    clock = app.clock
    assert isinstance(clock, StoreClock)
    for _ in range(4):
        app.run(flights(50))  # for an hour: fifteen commits
        clock.wait(2 * HOUR_MS)
    collect(app.store, app.name, Retention(all_ms=3 * HOUR_MS, hourly_ms=1_000 * HOUR_MS), by="test")
    return app


@pytest.fixture
def thinned(thinned_once: FlightsApp, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    """Return the app in the store of the command line."""
    old, app = fresh(thinned_once.store), copy(thinned_once)
    app.store = store
    for info in old.list(""):
        store.put(info.key, old.get(info.key))
    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    return app


def boundary_of(app: FlightsApp) -> Boundary:
    limit = horizon.newest(app.store, app.name)
    assert limit is not None
    return limit


def test_a_query_at_a_thinned_out_time_notes_the_moment_used_instead(thinned: FlightsApp) -> None:
    limit = boundary_of(thinned)
    # In the middle of a busy hour, of whose commits only the last remains.
    moment = next(each for each in limit.moments if each.until_ms < each.time_ms + HOUR_MS)
    asked_ms = moment.until_ms + 32_000
    ref, shown = f"flights@{at(asked_ms)}", at(moment.time_ms)
    words: dict[str, tuple[str, ...]] = {
        "query": (ref, "FROM carriers"),
        "get": (f"flights/carriers@{at(asked_ms)}", "C1"),
        "verify": (ref,),
        "clone": (ref, "copy", "--dry-run", "--kafka", "in-memory:9092"),
    }
    expected = {"asked_ms": asked_ms, "answered_ms": moment.time_ms}
    for verb, rest in words.items():
        said = slackwater(verb, *rest)
        assert said.exit_code == 0, said.output
        note = f"note: gc has thinned out the history at {rest[0]}; using the nearest kept moment, {shown}, "
        assert note in said.stderr
        found = json.loads(done(verb, *rest, "--json"))
        assert (found["source"] if verb == "clone" else found)["thinned_out"] == expected


def test_a_query_at_a_time_that_is_kept_has_no_note(thinned: FlightsApp) -> None:
    for moment in boundary_of(thinned).moments:
        for time_ms in {moment.time_ms, moment.until_ms}:
            said = slackwater("query", f"flights@{at(time_ms)}", "FROM carriers")
            assert (said.exit_code, said.stderr) == (0, "")
            assert from_json("query", f"flights@{at(time_ms)}", "FROM carriers")["thinned_out"] is None
    assert slackwater("query", "flights", "FROM carriers").stderr == ""


def test_bisect_notes_where_the_history_is_thinned_out(thinned: FlightsApp) -> None:
    where = ("--where", "SELECT 1 FROM carriers HAVING sum(flights) > 195")
    said = slackwater("bisect", "flights", *where)
    assert said.exit_code == 0, said.output
    begins = from_json("bisect", "flights", *where)["begins"]
    assert begins.startswith("flights/")
    told = f"note: gc has thinned out the history of flights before {begins}; only the kept moments are searched"
    assert told in said.stderr
    early = slackwater("bisect", "flights", "--where", "SELECT 1 FROM carriers HAVING sum(flights) > 75")
    assert early.exit_code == 2
    assert early.stdout.startswith("the first bad commit of flights is one of carriers@v")
    assert "gc has removed the versions between the last good and the first bad one" in early.stdout
    good, bad = (line.split()[2] for line in early.stdout.splitlines() if line.startswith("  slackwater query"))
    for ref, expected in ((good, 0), (bad, 1)):
        rows = from_json("query", ref, "SELECT 1 FROM carriers HAVING sum(flights) > 75")["rows"]
        assert len(rows) == expected
    always = slackwater("bisect", "flights", "--where", "SELECT 1 FROM carriers HAVING sum(flights) > 0")
    assert always.exit_code == 1
    assert "the oldest remaining moment of flights" in always.stderr
    first = at(boundary_of(thinned).moments[0].time_ms)
    found = from_json("bisect", "flights", *where, "--good", f"flights@{first}")
    assert (found["candidates"], found["begins"]) == ([], begins)


def test_the_log_shows_thinned_out_versions(thinned: FlightsApp) -> None:
    entries = from_json("log", "flights", "--stage", "carriers", "--limit", "0")
    left = [entry["version"] for entry in entries]
    gone = [
        version
        for entry in entries
        if entry["thinned"]
        for version in range(entry["thinned"][0], entry["thinned"][1] + 1)
    ]
    assert sorted(left + gone) == list(range(1, thinned.heads["carriers"].version + 1))
    text = done("log", "flights", "--stage", "carriers", "--limit", "0")
    assert text.count("thinned out by gc") == sum(entry["thinned"] is not None for entry in entries) > 1
