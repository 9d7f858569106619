"""`slackwater status` on the command line."""

import json
import re
import signal

import pytest
from msgspec.structs import replace
from slackwater.common import instants
from slackwater.snapshot.under_way import runners
from slackwater.store.versions import keys, published
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import Sink
from slackwater.store.versions.published import PublishedPosition
from ulid import ULID

from tests.cli.verbs.calling import done, from_json, process, slackwater
from tests.support.histories import START_MS, FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")


def test_status_of_an_empty_store_says_how_to_start() -> None:
    assert "slackwater run FILE" in done("status")


@pytest.mark.usefixtures("app")
def test_status_shows_every_stage_upstream_first() -> None:
    lines = done("status").splitlines()
    assert lines[0].startswith(f"flights  created {instants.format_iso(START_MS)} (")
    assert lines[1].split()[:4] == ["stage", "runs", "version", "epoch"]
    assert [line.split()[:2] for line in lines[2:]] == [["legs", "no"], ["aircraft", "no"], ["carriers", "no"]]
    assert re.search(r"by-aircraft 1 version, \d+ rows$", lines[3])


def test_status_shows_which_stages_are_running(app: FlightsApp) -> None:
    """Check that a heartbeat counts only for its own epoch, since a fenced runner runs nothing."""
    writer = str(ULID())
    runners.HEARTBEATS.put(app.store, runners.Heartbeat(writer, "host:1", {"legs": 1, "carriers": 2}), "flights")
    (found,) = from_json("status")
    assert {stage["stage"]: stage["runner"] for stage in found["stages"]} == {
        "legs": "host:1",
        "aircraft": "",
        "carriers": "",
    }
    runners.HEARTBEATS.remove(app.store, writer, "flights")
    assert {stage["runner"] for (found,) in [from_json("status")] for stage in found["stages"]} == {""}


def test_status_shows_the_reason_of_a_wait_from_the_runners_heartbeat(app: FlightsApp) -> None:
    assert "waits for" not in done("status")
    waits = {"legs": "new records of flights", "carriers": "its turn on the cores"}
    beat = runners.Heartbeat(str(ULID()), "host:1", {"legs": 1, "aircraft": 1, "carriers": 2}, waits=waits)
    runners.HEARTBEATS.put(app.store, beat, "flights")
    lines = done("status").splitlines()
    assert lines[1].endswith("waits for")
    assert lines[2].endswith("new records of flights")
    # The heartbeat of a runner that was replaced says nothing about the stage.
    assert not any("its turn on the cores" in line for line in lines)
    (found,) = from_json("status")
    said = {stage["stage"]: stage["waits_for"] for stage in found["stages"]}
    assert said == {"legs": "new records of flights", "aircraft": "", "carriers": ""}


def test_status_shows_the_rows_of_the_last_batch_and_none_for_a_claim(app: FlightsApp) -> None:
    app.claim("aircraft")
    lines = done("status").splitlines()
    assert "rows in last batch" in lines[1]
    at = lines[1].index("rows in last batch") + len("rows in last batch") - 1
    legs, aircraft = lines[2], lines[3]
    assert legs[at].isdigit()
    assert aircraft[at] == "-"


def test_status_works_with_a_damaged_heartbeat(app: FlightsApp) -> None:
    app.store.put("flights/runners/w1.json", b"{")
    result = slackwater("status")
    assert result.exit_code == 1
    assert "running stages are unknown" in result.stderr
    assert "legs      ?" in result.stdout


def test_status_counts_keys_and_lag(app: FlightsApp) -> None:
    app.compact("carriers")
    (found,) = from_json("status", "flights")
    by_stage = {stage["stage"]: stage for stage in found["stages"]}
    assert (by_stage["carriers"]["keys"], by_stage["carriers"]["keys_exact"]) == (3, True)
    assert by_stage["aircraft"]["keys"] > 7
    assert by_stage["aircraft"]["keys_exact"] is False
    assert by_stage["legs"]["keys"] is None
    assert by_stage["legs"]["version"] == 7
    (read,) = by_stage["aircraft"]["inputs"]
    assert (read["upstream"], read["lag"], read["versions"]) == ("legs", 4, 1)
    (topic,) = by_stage["legs"]["inputs"]
    assert (topic["ends"], topic["lag"], topic["records"], topic["versions"]) == (None, None, None, None)


@pytest.mark.usefixtures("app")
def test_status_works_without_kafka_and_explains_what_is_missing() -> None:
    result = slackwater("status", "--kafka", "127.0.0.1:1")
    assert result.exit_code == 0
    assert "lag of users' topics is unknown" in result.stderr
    assert "flights ?" in result.stdout


@pytest.mark.usefixtures("app")
def test_ctrl_c_ends_a_watch_with_130_and_no_traceback() -> None:
    with process("status", "--watch", "--every", "0.1", "--json") as watch:
        assert watch.stdout is not None
        for _ in range(2):
            assert json.loads(watch.stdout.readline())[0]["app"] == "flights"
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=180)
        assert (watch.returncode, errors) == (130, "")


def test_status_shows_the_progress_of_sinks(app: FlightsApp) -> None:
    head = app.heads["carriers"]
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test", now_ms=head.time_ms + 1)
    sinks = {"alerts": Sink("internal", 9, since=draft.version, rows=7, sent=7)}
    head = app.commit(replace(draft, sinks=sinks))
    assert re.search(r"^carriers +alerts +- +0 versions, 7 rows$", done("status"), re.MULTILINE)
    published.write_position(app.store, head, "alerts", PublishedPosition(head.version, 9, 7), None)
    assert re.search(rf"^carriers +alerts +v{head.version} +0$", done("status"), re.MULTILINE)
    app.store.put(keys.json_object(keys.published_positions("flights", "carriers", "alerts"), head.version), b"{")
    result = slackwater("status")
    assert result.exit_code == 1
    assert "progress of its sinks is unknown" in result.stderr
    assert "carriers  no" in result.stdout
