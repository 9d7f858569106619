"""How an agent connects: with a process of its own, or to a server, with a token or on its machine."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import urllib3
from mcp import Client, StdioServerParameters

from tests.support.histories import FlightsApp
from tests.support.running import SLACKWATER

from ..conftest import FAST, Ask, client_of
from ..test_access import GUARDED, made
from .conftest import agent_at, connected

APP = "flights"
BISECT = {"app": APP, "where": "SELECT carrier FROM carriers WHERE flights >= 9"}


@pytest.mark.parametrize("options", [(), ("--values",)])
def test_a_process_of_its_own(written: FlightsApp, tmp_path: Any, options: tuple[str, ...]) -> None:
    env = {**os.environ, "SLACKWATER_STORE": written.store.url, "SLACKWATER_CACHE": str(tmp_path / "cache")}
    audit = tmp_path / "audit.jsonl"
    started = StdioServerParameters(command=str(SLACKWATER), args=["mcp", "--audit", str(audit), *options], env=env)
    with connected(Client(started)) as agent:
        assert agent("apps") == {"apps": [APP], "next": "apps with app=NAME tells of one"}
        row = agent("get", app=APP, table="carriers", keys=["C1"])["rows"][0]["row"]
        assert (row["carrier"] == "C1") is bool(options)
        assert agent("bisect", **BISECT)["first_bad"]["stage"] == "carriers"
        assert agent("query", app=APP, sql="SELECT count(*) AS n FROM carriers")["rows"] == [{"n": 3}]
        assert agent.fails("query", app=APP, sql="FROM nothing")["error"] == "NotFound"
    assert len(audit.read_text().splitlines()) == 5


def test_whoever_has_no_token_is_told_so(app: FlightsApp, own: Callable[..., Ask]) -> None:
    ask = own(GUARDED, FAST, "cache", with_agents=True)
    found = urllib3.request("POST", f"{ask.url}/mcp", body=b"{}", retries=False)
    assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")
    with pytest.raises(Exception, match=r"401|Unauthorized|error"), agent_at(ask.url, "slackwater_guessed"):
        pass


def test_a_token_may_what_its_verbs_say(app: FlightsApp, own: Callable[..., Ask]) -> None:
    client = client_of(app)
    tokens = {
        name: made(client, name, verbs=verbs, tables=tables)
        for name, verbs, tables in (
            ("reads", ("read",), ("*",)),
            ("some", ("read", "sql", "bisect"), ("carriers",)),
            ("sees", ("read", "values"), ("*",)),
            ("other", ("read", "sql", "bisect"), ("*",)),
        )
    }
    ask = own(GUARDED, FAST, "cache", with_agents=True)
    with agent_at(ask.url, tokens["reads"]) as agent:
        assert not agent("log", app=APP).keys() - {"commits"}
        assert agent.fails("query", app=APP, sql="FROM carriers")["error"] == "Denied"
        assert agent.fails("bisect", **BISECT)["error"] == "Denied"
        hidden = agent("get", app=APP, table="carriers", keys=["C1"])["rows"][0]["row"]["carrier"]
    with agent_at(ask.url, tokens["sees"]) as agent:
        assert agent("get", app=APP, table="carriers", keys=["C1"])["rows"][0]["row"]["carrier"] == "C1"
    with agent_at(ask.url, tokens["some"]) as agent:
        assert [each["table"] for each in agent("apps", app=APP)["tables"]] == ["carriers"]
        assert agent.fails("query", app=APP, sql="FROM aircraft")["error"] == "NotFound"
        for tool, how in (
            ("log", {}),
            ("verify", {}),
            ("bisect", BISECT),
            ("get", {"table": "aircraft", "keys": ["N001"]}),
            ("history", {"table": "aircraft", "key": "N001"}),
            ("diff", {"before": "~1"}),
            ("replay", {"stage": "carriers", "version": 2}),
        ):
            assert agent.fails(tool, **{"app": APP, **how})["error"] == "Denied", tool
        assert agent("get", app=APP, table="carriers", keys=["C1"])["rows"][0]["row"]["carrier"] != hidden


def test_a_name_is_of_whom_it_was_told_to(app: FlightsApp, own: Callable[..., Ask]) -> None:
    client = client_of(app)
    one, two = made(client, "one", verbs=("read", "sql")), made(client, "two", verbs=("read", "sql"))
    ask = own(GUARDED, FAST, "cache", with_agents=True)
    with agent_at(ask.url, one) as agent:
        shown = agent("query", app=APP, sql="SELECT carrier FROM carriers LIMIT 1")["rows"][0]["carrier"]
        assert agent("get", app=APP, table="carriers", keys=[shown])["rows"][0]["row"]
    with agent_at(ask.url, two) as agent:
        assert agent.fails("get", app=APP, table="carriers", keys=[shown])["error"] == "NotFound"


def test_a_token_may_call_so_often(app: FlightsApp, own: Callable[..., Ask]) -> None:
    token = made(client_of(app), "slow", per_s=1)
    ask = own(GUARDED, FAST, "cache", with_agents=True)
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    sent = [urllib3.request("POST", f"{ask.url}/mcp", body=body, headers=headers, retries=False) for _ in range(5)]
    assert 429 in {each.status for each in sent}


def test_clients_of_the_protocol_before_this_one(agents_at: Any) -> None:
    with agent_at(agents_at(), mode="legacy") as agent:
        assert len(agent.tools) == 9
        assert agent("bisect", **BISECT)["certain"]


def test_without_the_option_there_are_no_agents(ask: Ask) -> None:
    assert urllib3.request("POST", f"{ask.url}/mcp", body=b"{}", retries=False).status == 404


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b'{"a":' * 5_000, b"x" * (2 << 20)],
    ids=["nothing", "cut", "list", "null", "half", "bytes", "deep", "large"],
)
def test_what_is_no_call_is_refused(agents_at: Any, body: bytes) -> None:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    found = urllib3.request("POST", f"{agents_at()}/mcp", body=body, headers=headers, retries=False)
    assert 400 <= found.status < 500
    assert urllib3.request("GET", f"{agents_at()}/healthz").status == 200


def test_a_page_of_another_host_calls_nothing(agents_at: Any) -> None:
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        assert urllib3.request("POST", f"{agents_at()}/mcp", body=b"{}", headers=headers, retries=False).status == 403
