"""Bisect as it is typed: what it prints can be typed again, and says what the verdict says."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from slackwater.cli import main
from slackwater.pipeline.kafka import channels
from slackwater.settings import Settings
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.retention import Retention
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import horizon
from slackwater.store.versions.horizon import Boundary
from typer.testing import CliRunner, Result

from tests.support.collecting import HOUR_MS, StoreClock, aging_app, fresh
from tests.support.histories import Clock, Flight, FlightsApp, Kafka, flights

pytestmark = pytest.mark.usefixtures("isolated")

APART = "SELECT c.flights FROM carriers c, aircraft a WHERE c.flights >= 12 AND a.tail = 'N0' AND a.flights >= 9"
"""True when two tables have got somewhere; either may be the last to get there."""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def app(store: ObjectStore) -> FlightsApp:
    """Three stages that keep no step; the clock of the last one is behind the others."""
    app = FlightsApp(store, Kafka(), clock=Clock(skew_ms={"carriers": -2_500, "legs": 400}))
    for number in range(18):
        app.send(Flight("N0", "C0", 1))
        app.step("legs")
        if number % 2:
            app.step("aircraft", max_versions=3)
        if number % 3 == 0:
            app.step("carriers", max_versions=2)
    for _ in range(4):
        app.step("aircraft")
        app.step("carriers")
    return app


def slackwater(*words: str) -> Result:
    return CliRunner().invoke(main.app, words)


def done(*words: str) -> str:
    result = slackwater(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def from_json(*words: str) -> Any:
    return json.loads(done(*words, "--json"))


@pytest.mark.usefixtures("app")
def test_what_bisect_prints_over_two_tables_is_typed_again_and_gives_what_it_says() -> None:
    result = slackwater("bisect", "flights", "--where", APART)
    good, bad, clone = (shlex.split(line) for line in result.stdout.splitlines()[-3:])
    assert [good[1], bad[1], clone[1]] == ["query", "query", "clone"]
    assert good[2] == clone[2]
    assert from_json(*good[1:])["rows"] == []
    assert from_json(*bad[1:])["rows"] != []
    probes = [line.split("  ")[-1].split(": ") for line in result.stderr.splitlines() if "/" in line]
    assert len(probes) > 4
    for ref, verdict in probes:
        assert bool(from_json("query", ref, APART)["rows"]) == (verdict == "bad")
    # The log shows the line: the commit of the good moment stands right under that of the bad one.
    logged = [f"flights/{entry['stage']}@v{entry['version']}" for entry in from_json("log", "flights", "--limit", "99")]
    assert logged[logged.index(bad[2]) + 1] == good[2]


@pytest.mark.usefixtures("app")
def test_the_named_commit_is_the_first_of_the_log_at_which_the_query_returns_rows() -> None:
    verdict = from_json("bisect", "flights", "--where", APART)
    logged = [f"flights/{entry['stage']}@v{entry['version']}" for entry in from_json("log", "flights", "--limit", "99")]
    is_bad = [bool(from_json("query", ref, APART)["rows"]) for ref in reversed(logged)]
    first = is_bad.index(True)
    assert not any(is_bad[:first])
    assert all(is_bad[first:])
    assert (verdict["last_good"]["ref"], verdict["first_bad"]["ref"]) == (logged[-first], logged[-first - 1])
    for step in verdict["steps"]:
        found = from_json("query", step["ref"], APART)
        assert (found["versions"], bool(found["rows"])) == (step["cut"], step["bad"])


def test_all_keys_that_turned_bad_are_told_ten_of_them_to_people(store: ObjectStore, tmp_path: Path) -> None:
    app = FlightsApp(store, Kafka())
    app.run(flights(70))
    tails = [f"N00{n}" for n in range(3)] + [f"M{n:02}" for n in range(11)]
    app.send(*(Flight(tail, "C1", 5_000 + n) for n, tail in enumerate(tails)))
    app.step_all()
    where = ("bisect", "flights", "--where", "SELECT tail FROM aircraft WHERE delay > 1000 ORDER BY delay")
    in_order = [*tails[3:], *tails[:3]]  # the first three had delays before
    text = done(*where)
    assert "and 4 more; --json and --out FILE give all" in text
    assert [tail in text for tail in in_order] == [True] * 10 + [False] * 4
    verdict = from_json(*where)
    assert [key["key"]["tail"] for key in verdict["keys"]] == in_order
    assert verdict["keys_named"]
    text = done(*where, "--out", "keys.parquet")
    assert "and 4 more; all are in keys.parquet" in text
    written = pq.read_table(tmp_path / "keys.parquet").to_pylist()
    assert [row["tail"] for row in written] == in_order
    assert {(row["tail"], row["change"], row["after_delay"]) for row in written} == {
        (key["key"]["tail"], "changed" if key["before"] else "new", key["after"]["delay"]) for key in verdict["keys"]
    }
    for name in ("keys.csv", "keys.json"):
        assert from_json(*where, "--out", name)["file"] == name
        assert all(tail in (tmp_path / name).read_text() for tail in in_order)


def test_when_the_query_names_no_key_the_keys_that_the_commit_changed_are_called_that(store: ObjectStore) -> None:
    app = FlightsApp(store, Kafka())
    app.run(flights(70))
    app.send(Flight("planted", "C1", 5_000), *flights(14))
    app.step_all()
    words = ("bisect", "flights", "--where", "SELECT 1 FROM aircraft HAVING max(delay) > 1000")
    text = done(*words)
    assert "the query names no key of this table; keys that this commit changed:" in text
    assert "planted" in text
    verdict = from_json(*words)
    assert not verdict["keys_named"]
    assert [key["key"]["tail"] for key in verdict["keys"]] == sorted(key["key"]["tail"] for key in verdict["keys"])
    assert len(verdict["keys"]) == 8


def test_a_stage_without_a_table_has_no_keys_to_write(
    app: FlightsApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "open_channels", lambda _settings: app.kafka)
    for _ in range(2):
        app.send(*flights(6, delay=99))
        app.step("legs")
    result = slackwater(
        "bisect", "flights", "--where", "FROM inflight('by-aircraft') WHERE delay = 99", "--out", "keys.csv"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("legs v")
    assert "legs keeps no table, so no key turned bad, and keys.csv is not written" in result.stderr
    assert not (tmp_path / "keys.csv").exists()


def test_a_file_whose_name_says_no_format_is_refused_before_the_search(app: FlightsApp) -> None:
    result = slackwater("bisect", app.name, "--where", APART, "--out", "keys.txt")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--out keys.txt does not say its format" in result.stderr


def test_a_table_that_was_not_there_yet_has_no_rows_in_a_query_that_says_so(store: ObjectStore) -> None:
    app = FlightsApp(store, Kafka(), start=["legs", "aircraft"])
    app.send(*flights(7))
    app.step("legs")
    app.step("aircraft")
    app.claim("carriers")
    app.step("carriers")
    result = slackwater("query", "flights/aircraft@v2", "FROM carriers")
    assert result.exit_code == 0
    assert "carriers had no version yet at flights/aircraft@v2" in result.stderr
    assert from_json("query", "flights/aircraft@v2", "FROM carriers")["rows"] == []
    assert slackwater("query", "flights/aircraft@v2", "FROM carrierz").exit_code == 1


def at(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def thinned(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    """A history of which a moment an hour is left, then a pause, and what came after it whole."""
    app = aging_app()
    clock = app.clock
    assert isinstance(clock, StoreClock)
    for _ in range(4):
        app.run(flights(200))
        clock.wait(2 * HOUR_MS)
    collect(app.store, app.name, Retention(all_ms=3 * HOUR_MS, hourly_ms=1_000 * HOUR_MS), by="test")
    old, app.store = fresh(app.store), store
    for info in old.list(""):
        store.put(info.key, old.get(info.key))
    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    return app


def boundary_of(app: FlightsApp) -> Boundary:
    limit = horizon.newest(app.store, app.name)
    assert limit is not None
    return limit


def test_a_time_that_was_thinned_out_is_answered_with_a_note_which_moment_it_is(thinned: FlightsApp) -> None:
    limit = boundary_of(thinned)
    # In the middle of a busy hour; nothing of its commits is left but the last.
    moment = next(each for each in limit.moments if each.until_ms < each.time_ms + HOUR_MS)
    asked_ms = moment.until_ms + 32_000
    ref, shown = f"flights@{at(asked_ms)}", at(moment.time_ms)
    words: dict[str, tuple[str, ...]] = {
        "query": (ref, "FROM carriers"),
        "get": (ref, "carriers", "C1"),
        "verify": (ref,),
        "clone": (ref, "copy", "--dry-run", "--kafka", "in-memory:9092"),
    }
    expected = {"asked_ms": asked_ms, "answered_ms": moment.time_ms}
    for verb, rest in words.items():
        said = slackwater(verb, *rest)
        assert said.exit_code == 0, said.output
        assert f"note: {ref}: history was thinned out by gc there; answering with the moment {shown}, " in said.stderr
        found = json.loads(done(verb, *rest, "--json"))
        assert (found["source"] if verb == "clone" else found)["thinned_out"] == expected


def test_a_time_of_which_the_very_moment_is_left_has_no_note(thinned: FlightsApp) -> None:
    for moment in boundary_of(thinned).moments:
        for time_ms in {moment.time_ms, moment.until_ms}:
            said = slackwater("query", f"flights@{at(time_ms)}", "FROM carriers")
            assert (said.exit_code, said.stderr) == (0, "")
            assert from_json("query", f"flights@{at(time_ms)}", "FROM carriers")["thinned_out"] is None
    assert slackwater("query", "flights", "FROM carriers").stderr == ""


def test_bisect_says_where_the_history_is_thinned_out(thinned: FlightsApp) -> None:
    where = ("--where", "SELECT 1 FROM carriers HAVING sum(flights) > 780")
    said = slackwater("bisect", "flights", *where)
    assert said.exit_code == 0, said.output
    begins = from_json("bisect", "flights", *where)["begins"]
    assert begins.startswith("flights/")
    assert f"note: the history of flights before {begins} was thinned out by gc; it is not searched" in said.stderr
    already = slackwater("bisect", "flights", "--where", "SELECT 1 FROM carriers HAVING sum(flights) > 300")
    assert already.exit_code == 1
    assert f"already at {begins}: before that, the history of flights was thinned out" in already.stderr
    early = at(boundary_of(thinned).moments[0].time_ms)
    refused = slackwater("bisect", "flights", *where, "--good", f"flights@{early}")
    assert refused.exit_code == 1
    assert "thinned out" in refused.stderr
