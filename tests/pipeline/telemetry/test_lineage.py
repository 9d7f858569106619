"""OpenLineage events: their content and times, and that nothing waits for their delivery."""

import json
import queue
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace
from openlineage.client.serde import Serde
from slackwater.errors import Fenced, Refused
from slackwater.pipeline.telemetry.lineage import (
    DatasetNames,
    RunLineage,
    StageLineage,
    configured_lineage,
    is_configured,
    last_events,
)
from slackwater.store.versions.manifest import Column, Input, Manifest, Output, Sink, Table

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "openlineage-version.json").read_text(encoding="utf-8"))
WHERE = DatasetNames("s3://bucket/state", "broker-1:9093, broker-2:9093", "4.3.0")
TABLE = Table((Column("k", "string"),), (Column("v", "int64"), Column("_x", "int64")), 2)


def manifest(version: int, offset: int, stage: str = "s") -> Manifest:
    return Manifest(
        "a",
        stage,
        version,
        4,
        "w",
        1_000 * version,
        "batch",
        {"t": Input("t", (offset, 7)), "up": Input("a-up-repartition", (3,), "before", version=2)},
        {"c": Output("a-c-repartition", (9,), (9,))},
        {"alerts": Sink("a-s-alerts-sink", 5, 1, sent=4), "told": Sink("a-s-told-sink", 5, 1, kind="function")},
        table=TABLE,
    )


def event(
    kind: Any, head: Manifest, start: Manifest | None = None, where: DatasetNames = WHERE, failed: str = ""
) -> Any:
    return Serde.to_dict(StageLineage(start or head, where).create_event(kind, head, 1_500, failed))


def test_an_event_names_inputs_and_outputs_with_versions_and_offsets() -> None:
    said = event("RUNNING", manifest(3, 12), manifest(1, 5))
    assert (said["eventType"], said["eventTime"]) == ("RUNNING", "1970-01-01T00:00:01.500Z")
    assert (said["job"]["namespace"], said["job"]["name"]) == ("slackwater", "a.s")
    assert said["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    topic, channel = said["inputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://broker-1:9093", "t")
    facet = topic["facets"]["slackwater_version"]
    assert facet["offsets"] == [{"partition": 0, "start": 5, "end": 12}, {"partition": 1, "start": 7, "end": 7}]
    facet = channel["facets"]["slackwater_version"]
    assert (channel["name"], facet["upstream"], facet["upstreamVersion"]) == ("a-up-repartition", "before", 2)
    table, output, sink = said["outputs"]
    assert (table["namespace"], table["name"]) == ("s3://bucket", "state/a/s")
    assert table["facets"]["version"]["datasetVersion"] == "v3"
    assert [each["name"] for each in table["facets"]["schema"]["fields"]] == ["k", "v"]
    assert (output["name"], output["facets"]["slackwater_version"]["offsets"]) == (
        "a-c-repartition",
        [{"partition": 0, "end": 9}],
    )
    assert (sink["name"], sink["facets"]["slackwater_version"]["rows"]) == ("alerts", 4)
    for dataset in (*said["inputs"], *said["outputs"]):
        jsonschema.validate(dataset["facets"]["slackwater_version"], SCHEMA)


def test_a_table_in_a_folder_and_the_sink_of_a_clone_have_their_real_names() -> None:
    where = DatasetNames("/srv/state/", "broker:9092", "4.3.0", lambda _head: {"alerts": "staging-alerts"})
    table, _, sink = event("START", manifest(1, 0), where=where)["outputs"]
    assert (table["namespace"], table["name"]) == ("file", "/srv/state/a/s")
    assert sink["name"] == "staging-alerts"


def test_a_failure_is_reported_by_its_class() -> None:
    said = event("FAIL", manifest(1, 0), failed="Refused")
    assert said["run"]["facets"]["errorMessage"]["message"] == "Refused"


def test_the_last_event_of_each_stage_says_how_the_run_ended() -> None:
    assert last_events({"s": None, "t": None}, None) == {"s": ("COMPLETE", ""), "t": ("COMPLETE", "")}
    failed = last_events({"s": ValueError("a value"), "t": None}, Refused("stage s failed"))
    assert failed == {"s": ("FAIL", "ValueError"), "t": ("ABORT", "Refused")}
    assert last_events({"s": None, "t": None}, Refused("a sink")) == dict.fromkeys("st", ("FAIL", "Refused"))
    assert last_events({"s": None}, Fenced("taken over", version=2)) == {"s": ("ABORT", "Fenced")}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator["queue.SimpleQueue[dict[str, Any]]"]:
    """Start an OpenLineage server, and set it in the environment. Returns a queue of its requests."""
    got: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        thread = Thread(target=receiver.serve_forever)
        thread.start()
        configure(monkeypatch, f"http://127.0.0.1:{receiver.server_port}")
        yield got
        receiver.shutdown()
        thread.join()


def configure(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", url)
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__COMPRESSION", "")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')


def test_events_are_rate_limited_but_the_last_one_is_sent(server: "queue.SimpleQueue[dict[str, Any]]") -> None:
    lineage = RunLineage({"s": manifest(1, 0), "t": manifest(1, 0, "t")}, WHERE, every_s=0.05)
    first = [server.get(timeout=180) for _ in range(2)]
    assert {(each["eventType"], each["job"]["name"]) for each in first} == {("START", "a.s"), ("START", "a.t")}
    for version in range(2, 500):
        lineage.on_version(manifest(version, version))
    told = [server.get(timeout=180)]
    while told[-1]["inputs"][0]["facets"]["slackwater_version"]["stageVersion"] != 499:
        told.append(server.get(timeout=180))
    assert {(each["eventType"], each["job"]["name"]) for each in told} == {("RUNNING", "a.s")}
    assert len(told) < 20
    lineage.end(last_events({"s": None, "t": None}, None))
    last = [server.get(timeout=180) for _ in range(2)]
    assert {(each["eventType"], each["job"]["name"]) for each in last} == {("COMPLETE", "a.s"), ("COMPLETE", "a.t")}
    assert {each["run"]["runId"] for each in first} == {each["run"]["runId"] for each in last}


def test_an_unreachable_server_delays_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configure(monkeypatch, "http://127.0.0.1:9")
    lineage = RunLineage({"s": manifest(1, 0)}, WHERE, every_s=0.01)
    began = time.monotonic()
    for version in range(2, 10_000):
        lineage.on_version(replace(lineage._heads["s"], version=version))
    lineage.end(last_events({"s": None}, None))
    assert time.monotonic() - began < 30
    said = [record.message for record in caplog.records if record.name == "slackwater"]
    assert len(said) <= 1  # not one an event


def test_lineage_is_configured_by_the_openlineage_clients_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not is_configured({})
    assert configured_lineage({"s": manifest(1, 0)}, WHERE) is None
    assert is_configured({"OPENLINEAGE_URL": "http://localhost:5000"})
    assert is_configured({"OPENLINEAGE__TRANSPORT__TYPE": "console"})
    assert not is_configured({"OPENLINEAGE_URL": "http://localhost:5000", "OPENLINEAGE_DISABLED": "true"})
    (tmp_path / "openlineage.yml").write_text("transport: {type: console}\n")
    assert is_configured({})
