"""Tokens, and queries to a server, on the command line."""

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from slackwater.operations.maintenance.tokens import digest
from slackwater.pipeline.dev.jvm_server import choose_port
from slackwater.store.objects.local import LocalStore

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.serve.conftest import client_of, serving
from tests.support.histories import FlightsApp, Kafka, flights
from tests.support.running import SLACKWATER

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def app(tmp_path: Path) -> FlightsApp:
    made = FlightsApp(LocalStore(tmp_path / "store"), Kafka())
    made.run(flights(10))
    return made


def test_a_token_is_created_listed_and_removed(app: FlightsApp) -> None:
    assert done("token", "list").startswith("this store has no token")
    words = ("token", "add", "reports", "--app", "flights", "--table", "carriers", "--verb", "sql", "--days", "2")
    assert "would make token reports" in done(*words, "--dry-run")
    made = from_json(*words, "--per-second", "5")
    (kept,) = client_of(app).tokens()
    assert kept.digest == digest(made["token"])
    (listed,) = from_json("token", "list")
    assert listed == {name: made[name] for name in listed}
    assert (listed["tables"], listed["verbs"], listed["per_s"]) == (["carriers"], ["sql"], 5)
    assert made["token"] not in done("token", "list")
    assert "would remove token reports" in done("token", "rm", "reports", "--dry-run")
    assert done("token", "rm", "reports").startswith("removed token reports")
    assert from_json("token", "list") == []


def test_a_token_for_client_certificates_has_no_secret(app: FlightsApp) -> None:
    assert from_json("token", "add", "grafana", "--app", "*", "--certificate")["token"] == ""
    assert "certificate" in done("token", "list")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("token", "add", "x", "--app", "flihgts"), 1, "the nearest: flights"),
        (("token", "add", "x", "--app", "flights", "--verb", "wirte"), 2, "not a verb of a token"),
        (("token", "add", "No", "--app", "flights"), 2, "not usable"),
        (("token", "rm", "x"), 1, "no token named 'x'"),
        (("serve", "--client-ca", "slackwater.toml"), 2, "--client-ca needs TLS"),
        (("serve", "--values"), 2, "add --mcp"),
        (("serve", "--host", "0.0.0.0", "--port", "1"), 1, "slackwater token add NAME --app APP makes one"),  # noqa: S104
        (("serve", "--mcp", "--code", "flights"), 2, "APP=FILE"),
        (("mcp", "--code", "flights=nothing.py"), 1, "no Python file named 'nothing.py'"),
        (("mcp", "--code", "flights=nothing.py:rows"), 1, "no Python file named 'nothing.py'"),
        (("query", "flights", "FROM carriers", "--server", "http://127.0.0.1:1"), 1, "does not answer"),
    ],
)
def test_an_invalid_call_is_explained(app: FlightsApp, words: tuple[str, ...], code: int, said: str) -> None:
    Path("slackwater.toml").write_text("")
    refused = slackwater(*words)
    assert refused.exit_code == code
    assert said in refused.stderr


def test_verbs_query_a_server_as_they_query_a_store(app: FlightsApp, tmp_path: Path) -> None:
    sql, before = "SELECT carrier, flights FROM carriers ORDER BY 1", threading.active_count()
    with serving(app.store.url, tmp_path / "cache") as url:
        assert done("query", "flights", sql, "--server", url) == done("query", "flights", sql)
        asked = from_json("query", "flights@~1", sql, "--server", url)
        read = from_json("query", "flights@~1", sql)
        assert {name: asked[name] for name in read} == read
        assert asked["offsets"]
        assert "carriers" in done("query", "flights", "--server", url)
        out = tmp_path / "rows.csv"
        done("query", "flights", sql, "--server", url, "--out", str(out))
        assert out.read_text().splitlines()[0] == '"carrier","flights"'
        cut_off = slackwater("query", "flights", "FROM range(20000)", "--server", url, "--limit", "0")
        assert (cut_off.exit_code, "more than 10,000 rows" in cut_off.stderr) == (2, True)
    assert threading.active_count() < before + 20


def test_serving_other_machines_without_tls_prints_a_warning(app: FlightsApp, monkeypatch: pytest.MonkeyPatch) -> None:
    from_json("token", "add", "reports", "--app", "flights")
    monkeypatch.setattr("slackwater.serve.server.ServeInstance.run", lambda _instance: None)
    assert "without TLS" in slackwater("serve", "--host", "0.0.0.0").stderr  # noqa: S104
    assert "TLS" not in slackwater("serve", "--tokens").stderr


@pytest.mark.parametrize(
    ("verbose", "line", "code"), [("1", "import 'slackwater.cli.groups'", -signal.SIGINT), ("", "serving ", 130)]
)
def test_ctrl_c_during_start_exits_without_a_traceback(verbose: str, line: str, code: int, app: FlightsApp) -> None:
    words = (SLACKWATER, "serve", "--store", app.store.url, "--port", str(choose_port()))
    how: Any = {"env": os.environ | {"PYTHONVERBOSE": verbose}, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, start_new_session=True, **how) as server:
        assert server.stderr is not None
        assert any(said.startswith(line) for said in server.stderr)
        os.killpg(server.pid, signal.SIGINT)
        rest = server.stderr.read()
    # A busy machine may deliver the signal only when the verb handles it already.
    assert server.returncode in (code, 130), rest
    assert "Traceback" not in rest
