"""How agents connect: to a local process, or to a server with a token or from the same machine."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import urllib3
from mcp import Client, StdioServerParameters
from slackwater.errors import Forbidden
from slackwater.serve.agents.naming import SECRETS, DaySecret, ValueNaming
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.wrapper import StoreWrapper

from tests.support.histories import FlightsApp
from tests.support.running import SLACKWATER

from ..conftest import FAST, Ask, client_of
from ..test_access import GUARDED, made
from .conftest import Agent, agent_at, connected

APP = "flights"
BISECT = {"app": APP, "where": "SELECT carrier FROM carriers QUALIFY count(*) OVER () > 2"}


def names(agent: Agent) -> set[str]:
    """Return the pseudonyms that the agent sees for a table's keys."""
    return {each["key"]["carrier"] for each in agent("diff", app=APP, before="~9", table="carriers")["rows"]}


def process(written: FlightsApp, folder: Path, *options: str) -> AbstractContextManager[Agent]:
    env = {**os.environ, "SLACKWATER_STORE": written.store.url, "SLACKWATER_CACHE": str(folder / "cache")}
    return connected(Client(StdioServerParameters(command=str(SLACKWATER), args=["mcp", *options], env=env)))


def test_an_agent_can_use_a_local_process(written: FlightsApp, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with process(written, tmp_path, "--audit", str(audit)) as agent:
        assert agent("apps") == {"apps": [APP], "next": "call apps with app=NAME for details"}
        assert "C1" not in names(agent)
        assert agent("bisect", **BISECT)["first_bad"]["stage"] == "carriers"
        assert agent("query", app=APP, sql="SELECT count(*) AS n FROM carriers")["rows"] == [{"n": 3}]
        assert agent.fails("query", app=APP, sql="FROM nothing")["error"] == "NotFound"
    assert len(audit.read_text().splitlines()) == 5


def test_a_local_process_can_show_values(written: FlightsApp, tmp_path: Path) -> None:
    with process(written, tmp_path, "--values") as agent:
        assert agent("get", app=APP, table="carriers", keys=["C1"])["rows"][0]["row"]["carrier"] == "C1"


def test_an_agent_without_a_token_is_refused(app: FlightsApp, own: Callable[..., Ask]) -> None:
    ask = own(GUARDED, FAST, "cache", with_agents=True)
    found = urllib3.request("POST", f"{ask.url}/mcp", body=b"{}", retries=False)
    assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")
    with pytest.raises(Exception, match=r"401|Unauthorized|error"), agent_at(ask.url, "slackwater_guessed"):
        pass


def test_a_token_allows_exactly_what_its_verbs_say(app: FlightsApp, own: Callable[..., Ask]) -> None:
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
        hidden = names(agent)
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
        assert names(agent).isdisjoint(hidden)


def test_a_pseudonym_is_valid_only_for_the_token_that_received_it(app: FlightsApp, own: Callable[..., Ask]) -> None:
    client = client_of(app)
    one, two = made(client, "one", verbs=("read", "sql")), made(client, "two", verbs=("read", "sql"))
    ask = own(GUARDED, FAST, "cache", with_agents=True)
    with agent_at(ask.url, one) as agent:
        shown = agent("query", app=APP, sql="SELECT carrier FROM carriers LIMIT 1")["rows"][0]["carrier"]
        assert agent("get", app=APP, table="carriers", keys=[shown])["rows"][0]["row"]
    with agent_at(ask.url, two) as agent:
        assert agent.fails("get", app=APP, table="carriers", keys=[shown])["error"] == "NotFound"


def test_all_instances_use_the_same_pseudonyms_which_change_daily(
    app: FlightsApp, own: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(ask: Ask) -> set[str]:
        with agent_at(ask.url) as agent:
            return names(agent)

    one, two = (own(options=FAST, cache=each, with_agents=True) for each in ("one", "two"))
    first = shown(one)
    assert shown(two) == first
    (secret,) = SECRETS.all(app.store)
    monkeypatch.setattr("slackwater.serve.agents.naming._today", lambda: "2999-01-01")
    assert shown(two) != first
    assert shown(one) == shown(two)
    (later,) = SECRETS.all(app.store)
    assert (later.day, later.secret == secret.secret) == ("2999-01-01", False)
    with agent_at(one.url) as agent:  # the placeholder that was shown the day before still stands for its value
        rows = agent("get", app=APP, table="carriers", keys=[*first])["rows"]
        assert {each["row"]["carrier"] for each in rows} == shown(one)


def test_pseudonyms_work_without_write_access_to_the_store() -> None:
    class ReadOnly(StoreWrapper):
        def put_if_absent(self, key: str, data: bytes) -> None:
            raise Forbidden(f"may not write {key}")

    one, two = ValueNaming(ReadOnly(MemoryStore())), ValueNaming(ReadOnly(MemoryStore()))
    for each in (one, two):
        assert each.names_for("") is None
        each.load_day_secret()
    found, other = one.names_for("a"), two.names_for("a")
    assert found is not None
    assert other is not None
    assert found is one.names_for("a")
    assert found.secret != other.secret
    assert found.secret != getattr(one.names_for("b"), "secret", None)


def test_without_delete_access_an_instance_adopts_the_pseudonyms_of_others() -> None:
    class LateAndMayNotDelete(StoreWrapper):
        def put_if_absent(self, key: str, data: bytes) -> None:
            first.load_day_secret()
            SECRETS.put(inner, DaySecret("2026-01-01", "0" * 64))
            super().put_if_absent(key, data)

        def delete(self, key: str) -> None:
            raise Forbidden(f"may not delete {key}")

    inner = MemoryStore()
    first, late = ValueNaming(inner), ValueNaming(LateAndMayNotDelete(inner))
    late.load_day_secret()
    assert getattr(first.names_for("a"), "secret", 1) == getattr(late.names_for("a"), "secret", 2)


def test_a_tokens_calls_are_rate_limited(app: FlightsApp, own: Callable[..., Ask]) -> None:
    token = made(client_of(app), "slow", per_s=1)
    ask = own(GUARDED, FAST, "cache", with_agents=True)
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    sent = [urllib3.request("POST", f"{ask.url}/mcp", body=body, headers=headers, retries=False) for _ in range(5)]
    assert 429 in {each.status for each in sent}


def test_clients_of_the_previous_protocol_version_work(agents_at: Any) -> None:
    with agent_at(agents_at(), mode="legacy") as agent:
        assert len(agent.tools) == 13
        assert agent("bisect", **BISECT)["certain"]


def test_without_the_option_there_are_no_agents(ask: Ask) -> None:
    assert urllib3.request("POST", f"{ask.url}/mcp", body=b"{}", retries=False).status == 404


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b'{"a":' * 5_000, b"x" * (2 << 20)],
    ids=["nothing", "cut", "list", "null", "half", "bytes", "deep", "large"],
)
def test_malformed_calls_are_refused(agents_at: Any, body: bytes) -> None:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    found = urllib3.request("POST", f"{agents_at()}/mcp", body=body, headers=headers, retries=False)
    assert 400 <= found.status < 500
    assert urllib3.request("GET", f"{agents_at()}/healthz").status == 200


def test_a_web_page_of_another_host_can_call_nothing(agents_at: Any) -> None:
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        assert urllib3.request("POST", f"{agents_at()}/mcp", body=b"{}", headers=headers, retries=False).status == 403
