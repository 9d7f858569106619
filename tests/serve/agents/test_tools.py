"""Each tool on a prepared history: bounded answers, without values for agents that must not see them."""

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slackwater.serve.agents import tools as _tools  # noqa: F401  declares the tools
from slackwater.serve.agents.declared import TOOLS
from slackwater.serve.audit import AUDIT
from slackwater.snapshot.query.hidden import PSEUDONYM_PATTERN
from slackwater.store.objects.local import LocalStore

from tests.support.histories import Flight, FlightsApp

from ..conftest import FAST, HERE, serving
from .conftest import Agent, agent_at
from .planted import written as archived

APP = "flights"
HIDDEN = ("quokka", "wombat", "numbat", "7654321", "8765432")
"""Parts of the hidden values: tails, carriers and numbers."""
OWN = "numbat"
"""Carrier that is requested by its pseudonym."""
MANY = "SELECT carrier FROM carriers QUALIFY count(*) OVER () > 1"
"""Query that shows, without values, when there was more than one carrier."""
WALK: tuple[tuple[str, dict[str, Any]], ...] = (
    ("apps", {}),
    ("apps", {"app": APP}),
    ("log", {"app": APP, "limit": 3}),
    ("query", {"app": APP, "sql": "SELECT carrier, flights, count(*) AS n FROM carriers GROUP BY ALL"}),
    ("get", {"app": APP, "table": "carriers", "keys": [OWN], "columns": ["carrier", "delay"]}),
    ("diff", {"app": APP, "before": "~3"}),
    ("history", {"app": APP, "table": "carriers", "key": OWN}),
    ("bisect", {"app": APP, "where": MANY}),
    ("reconcile", {"app": APP, "table": "carriers", "theirs": f"{APP}/carriers@~2"}),
    ("why_not", {"app": APP, "table": "carriers", "key": OWN}),
    ("verify", {"app": APP, "deep": True}),
)


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app whose values are easy to recognise in any output."""
    folder = tmp_path_factory.mktemp("hiding")
    flights = [Flight(f"quokka{n % 5}", ("wombat", OWN)[n % 2], 3) for n in range(40)]
    flights[25] = Flight("quokka9", OWN, 7_654_321)
    return archived(LocalStore(folder / "store"), flights, a_batch=10)


@pytest.fixture(scope="module")
def blind(hiding: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Return an agent of that app that must not see values."""
    with serving(hiding.store.url, tmp_path_factory.mktemp("c"), with_agents=True) as url, agent_at(url) as agent:
        yield agent


def test_the_documentation_has_the_number_of_tools() -> None:
    page = Path(__file__).parents[3] / "docs" / "agents.md"
    assert f" {len(TOOLS)} read-only tools " in page.read_text()


def test_tools_are_few_read_only_and_described(masked: Agent) -> None:
    tools = masked.tools
    of_causes = ["bisect", "replay", "why", "impact", "reconcile", "why_not"]
    assert [*tools] == [*TOOLS] == ["apps", "log", "query", "get", "diff", "history", *of_causes, "verify"]
    for each in tools.values():
        assert each.annotations.read_only_hint
        assert not each.annotations.destructive_hint
        assert len(each.description) > 100
        assert each.input_schema["type"] == "object"
        assert each.input_schema["additionalProperties"] is False
        assert all(one.get("description") for one in each.input_schema["properties"].values())
    assert tools["get"].input_schema["required"] == ["app", "table", "keys"]
    assert "apps" in (masked.session.instructions or "")


@pytest.mark.parametrize(("tool", "arguments"), WALK, ids=[f"{tool} {len(how)}" for tool, how in WALK])
def test_each_tool_answers_without_showing_a_value(blind: Agent, tool: str, arguments: dict[str, Any]) -> None:
    name = blind("query", app=APP, sql="SELECT carrier FROM carriers")["rows"][0]["carrier"]
    given = {what: name if value == OWN else [name] if value == [OWN] else value for what, value in arguments.items()}
    found = blind(tool, **given)
    assert not blind.failed, found
    assert found
    assert [each for each in HIDDEN if each in blind.answers[-1]] == []


def test_values_are_shown_to_agents_that_may_see_them(seeing: Agent, written: FlightsApp) -> None:
    rows = seeing("query", app=APP, sql="SELECT carrier, flights FROM carriers ORDER BY 1")["rows"]
    expected = [{"carrier": each, "flights": written.state["carriers"][each][0]} for each in ("C0", "C1", "C2")]
    assert rows == expected
    (got,) = seeing("get", app=APP, table="carriers", keys=["C1"])["rows"]
    assert got["row"]["flights"] == written.state["carriers"]["C1"][0]
    assert seeing("history", app=APP, table="carriers", key="C1", limit=1)["changes"][0]["after"] == {
        name: got["row"][name] for name in ("flights", "delay")
    }


def test_stages_topics_counts_and_literals_are_shown_to_all(masked: Agent, written: FlightsApp) -> None:
    verdict = masked("bisect", app=APP, where="SELECT carrier FROM carriers QUALIFY count(*) OVER () > 2")
    assert verdict["first_bad"]["stage"] == "carriers"
    assert {each["topic"] for each in verdict["input"]} == {"flights"}
    assert masked("apps", app=APP)["versions"] == {stage: head.version for stage, head in written.heads.items()}
    counted = masked("query", app=APP, sql="SELECT carrier, count(*) AS n, 7 + 1 AS m FROM carriers GROUP BY 1")
    assert [(each["n"], each["m"]) for each in counted["rows"]] == [(1, 8)] * 3
    versions = masked("query", app=APP, sql="SELECT DISTINCT _version FROM versions('carriers')")
    assert {each["_version"] for each in versions["rows"]} <= {*range(written.heads["carriers"].version + 1)}


def test_equal_values_have_one_pseudonym_which_can_be_used_as_the_key(blind: Agent) -> None:
    names = [each["carrier"] for each in blind("query", app=APP, sql="SELECT carrier FROM carriers")["rows"]]
    assert len(set(names)) == 2
    assert all(re.fullmatch(PSEUDONYM_PATTERN, each) for each in names)
    assert blind("query", app=APP, sql="SELECT carrier FROM carriers AT '~1'")["rows"][0]["carrier"] in names
    (got,) = blind("get", app=APP, table="carriers", keys=names[:1])["rows"]
    assert got["row"]["carrier"] == names[0]
    assert blind("history", app=APP, table="carriers", key=names[0])["changes"]
    verdict = blind("bisect", app=APP, where=MANY)
    assert {each["key"]["carrier"] for each in verdict["keys"]} == {*names}
    assert verdict["keys_are_those_that_turned_bad"]
    again = blind("query", app=APP, sql=f"SELECT count(*) AS n FROM carriers WHERE carrier = '{names[1]}'")
    assert again["rows"] == [{"n": 1}]
    # A key of a record is that of a table, and numbers of whatever type are one.
    tails = "SELECT count(DISTINCT a.tail) AS n FROM aircraft a JOIN input('flights') i ON i.key = a.tail"
    assert blind("query", app=APP, sql=tails)["rows"] == [{"n": 6}]
    flights = "SELECT count(*) AS n FROM carriers a JOIN carriers b ON a.flights = b.flights"
    assert blind("query", app=APP, sql=flights)["rows"][0]["n"] >= 2
    assert [each for each in HIDDEN if any(each in one for one in blind.answers)] == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range((SELECT delay FROM aircraft LIMIT 1))",
        "SELECT ascii(carrier) FROM carriers",
        "SELECT length(carrier) FROM carriers",
        "SELECT count(*) FROM carriers WHERE carrier LIKE 'w%'",
        "SELECT count(*) FROM carriers WHERE carrier = 'wombat'",
        "SELECT count(*) FROM carriers WHERE carrier IN ('wombat', 'numbat')",
        "SELECT count(*) FROM carriers WHERE carrier < 'o'",
        "SELECT count(*) FROM aircraft WHERE delay > 7000000",
        "SELECT sum(flights) FROM carriers",
        "SELECT delay + 1 FROM aircraft",
        "SELECT count(*) FROM range(100) t(i), carriers WHERE flights = i",
        "SELECT count(*) FROM input('flights') WHERE decode(value) LIKE '%wombat%'",
        "SELECT count(*) FROM versions('carriers') WHERE flights > 3",
        "SELECT count(*) FROM carriers AT '~1' WHERE flights > 3",
        "SELECT json_serialize_plan('FROM carriers')",
    ],
)
def test_hidden_values_can_neither_be_compared_nor_computed_with(blind: Agent, sql: str) -> None:
    found = blind.fails("query", app=APP, sql=sql)
    assert found["error"] in ("Usage", "SlackwaterError"), found
    assert "json" in sql or found["hint"].startswith("values are hidden"), found


def test_errors_name_only_visible_tables(blind: Agent) -> None:
    found = blind.fails("query", app=APP, sql="FROM carrier")
    assert found["message"] == "no table named 'carrier'; the nearest: carriers, aircraft"


def test_a_key_cannot_be_guessed(blind: Agent) -> None:
    for tool, how in (("get", {"keys": [OWN]}), ("history", {"key": OWN})):
        found = blind.fails(tool, app=APP, table="carriers", **how)
        assert "the key must be its pseudonym" in found["message"]


def test_progress_is_reported_on_request(masked: Agent, written: FlightsApp) -> None:
    told: list[str] = []

    async def on_progress(_done: float, _of: float | None, what: str | None) -> None:
        told.append(what or "")

    async def searched() -> None:
        arguments = {"app": APP, "where": "SELECT carrier FROM carriers QUALIFY count(*) OVER () > 2"}
        await masked.session.call_tool("bisect", arguments, progress_callback=on_progress)

    masked.portal.call(searched)
    assert f"flights/carriers@v{written.heads['carriers'].version}: bad" in told


def test_an_invented_pseudonym_matches_nothing(blind: Agent) -> None:
    name = "00000000-0123-4567-89ab-0123456789ab"
    assert blind.fails("get", app=APP, table="carriers", keys=[name])["error"] == "NotFound"
    assert blind("query", app=APP, sql=f"FROM carriers WHERE carrier = '{name}'")["rows"] == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT carrier::INT FROM carriers",
        "SELECT error(carrier) FROM carriers",
        "SELECT error(tail || delay) FROM aircraft",
        "SELECT carrier::DATE FROM carriers",
        "SELECT strptime(carrier, '%Y') FROM carriers",
        "SELECT decode(value)::INT FROM input('flights')",
        "SELECT delay::TINYINT FROM aircraft",
        "SELECT regexp_matches(tail, carrier || '(') FROM aircraft, carriers",
        "SELECT list_value(carrier)[1]::DATE FROM carriers",
        "PIVOT carriers ON carrier USING sum(flights)",
        "SELECT * FROM (pivot_wider carriers ON carrier USING sum(flights))",
    ],
)
def test_an_error_contains_no_value(blind: Agent, sql: str) -> None:
    blind.fails("query", app=APP, sql=sql)
    blind("bisect", app=APP, where=sql)  # which may look at no row that fails
    assert [each for each in HIDDEN if any(each in answer for answer in blind.answers[-2:])] == []


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT carrier AS "offset", delay AS partition FROM carriers',
        'SELECT "offset" FROM (SELECT carrier AS "offset" FROM carriers)',
        'SELECT "offset" FROM input(\'flights\') AS t(a, b, c, d, e, "offset", g, h)',
        "SELECT t.partition FROM input('flights') AS t(a, b, c, d, e, partition)",
        'SELECT "offset" FROM (SELECT value AS "offset" FROM input(\'flights\'))',
        "SELECT * FROM carriers AT '~1' AS t(\"offset\", partition)",
        'WITH input AS (SELECT carrier AS "offset" FROM carriers) SELECT "offset" FROM input',
        "SELECT count(*), carrier AS count FROM carriers GROUP BY ALL",
        "SELECT carrier AS n, count(*) AS n FROM carriers GROUP BY ALL",
        "SELECT count(*) AS n UNION ALL SELECT delay FROM aircraft",
        "SELECT min(carrier), max(tail), list(tail), string_agg(tail) FROM aircraft, carriers",
        "SUMMARIZE aircraft",
        "FROM (PIVOT aircraft ON tail USING first(delay))",
        "SHOW ALL TABLES",
        "SELECT json_extract(carrier, '$.x') FROM carriers",
        "SELECT stats(carrier), stats(flights) FROM carriers",
        "SELECT carrier::VARCHAR || flights::VARCHAR FROM carriers",
        "SELECT _version AS v, delay AS _version FROM versions('aircraft')",
        "SELECT {a: carrier, b: [delay]} FROM carriers",
        "SELECT MAP([carrier], [delay]) FROM carriers",
        "SELECT encode(carrier), hash(carrier) FROM carriers",
    ],
)
def test_known_tricks_reveal_no_value(blind: Agent, sql: str) -> None:
    found = blind("query", app=APP, sql=sql)
    assert [each for each in HIDDEN if each in blind.answers[-1]] == [], found


def test_an_answer_is_limited_in_size_and_says_what_was_omitted(hiding: FlightsApp, tmp_path: Path) -> None:
    small = replace(FAST, answer_bytes=2_000)
    at = serving(hiding.store.url, tmp_path / "cache", HERE, small, with_agents=True, shows_values=True)
    with at as url, agent_at(url) as agent:
        found = agent("query", app=APP, sql="SELECT range AS n FROM range(400)", limit=400)
        assert 0 < len(found["rows"]) < 400
        assert f"{len(found['rows'])} of 400" in found["cut_off"]
        found = agent("query", app=APP, sql="SELECT repeat('x', 5000) AS x", limit=1)
        assert agent.failed or found["rows"] == []
        wide = "SELECT " + ", ".join(f"1 AS c{n}" for n in range(500))
        assert agent.fails("query", app=APP, sql=wide)["error"] == "TooMuch"
        assert max(map(len, agent.answers)) < 3_000


def test_rows_beyond_the_limit_are_omitted_with_a_note(masked: Agent) -> None:
    found = masked("query", app=APP, sql="FROM range(100)", limit=2)
    assert len(found["rows"]) == 2
    assert "more than 2 rows" in found["cut_off"]


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("query", {"app": APP, "sql": "FROM '/etc/passwd'"}, "NotFound"),
        ("query", {"app": APP, "sql": "FROM read_text('/etc/passwd')"}, "Usage"),
        ("query", {"app": APP, "sql": "COPY carriers TO '/tmp/x'"}, "Usage"),
        ("query", {"app": APP, "sql": ""}, "Usage"),
        ("query", {"app": APP, "sql": 7}, "Usage"),
        ("query", {"app": APP}, "Usage"),
        ("query", {"app": APP, "sql": "FROM carriers", "limit": 10**9}, "Usage"),
        ("query", {"app": APP, "sql": "FROM carriers", "ref": "../../x"}, "Usage"),
        ("query", {"app": APP, "sql": "SELECT nothing FROM carriers"}, "NotFound"),
        ("query", {"app": "../etc", "sql": "FROM carriers"}, "Usage"),
        ("query", {"app": "nobodys", "sql": "FROM carriers"}, "NotFound"),
        ("log", {"app": APP, "limt": 3}, "Usage"),
        ("log", {"app": APP, "limit": 0}, "Usage"),
        ("log", {"app": APP, "stage": "nothing"}, "NotFound"),
        ("get", {"app": APP, "table": "carriers", "keys": []}, "Usage"),
        ("get", {"app": APP, "table": "carriers", "keys": "C1"}, "Usage"),
        ("get", {"app": APP, "table": "carriers", "keys": [{"a": [None] * 50}]}, "Usage"),
        ("get", {"app": APP, "table": "carriers", "keys": ["x" * 20_000]}, "Usage"),
        ("get", {"app": APP, "table": "carriers", "keys": ["C1"]}, "Usage"),
        ("get", {"app": APP, "table": "nothing", "keys": ["C1"]}, "NotFound"),
        ("diff", {"app": APP, "before": "\x00"}, "Usage"),
        ("diff", {"app": APP, "before": "none-such"}, "NotFound"),
        ("history", {"app": APP, "table": "carriers"}, "Usage"),
        ("bisect", {"app": APP}, "Usage"),
        ("bisect", {"app": APP, "where": "DROP TABLE carriers"}, "Usage"),
        ("bisect", {"app": APP, "where": "SELECT carrier FROM carriers WHERE false"}, "Refused"),
        ("replay", {"app": APP, "stage": "carriers", "version": 3}, "Refused"),
        ("replay", {"app": APP, "stage": "carriers", "version": -1}, "Usage"),
        ("why", {"app": APP, "table": "carriers", "key": "C1"}, "Usage"),
        ("why", {"app": APP, "table": "nothing", "key": "C1"}, "NotFound"),
        ("impact", {"app": APP, "record": "flights[0]@1"}, "Refused"),
        ("impact", {"app": APP, "record": "flights 1"}, "Usage"),
        ("reconcile", {"app": APP, "table": "carriers", "theirs": "carriers.parquet"}, "Usage"),
        ("reconcile", {"app": APP, "table": "carriers", "theirs": "etc/passwd"}, "NotFound"),
        ("reconcile", {"app": APP, "table": "carriers", "theirs": f"{APP}/none"}, "NotFound"),
        ("why_not", {"app": APP, "table": "carriers", "key": "C1"}, "Usage"),
        ("why_not", {"app": APP, "table": "carriers", "key": "C1", "where": "true"}, "Usage"),
        ("verify", {"app": APP, "ref": "none-such"}, "NotFound"),
        ("verify", {"app": APP, "deep": "perhaps"}, "Usage"),
        ("forget", {"app": APP}, "NotFound"),
        ("", {}, "NotFound"),
    ],
)
def test_an_impossible_question_gets_an_error_with_an_explanation(
    masked: Agent, written: FlightsApp, tool: str, arguments: dict[str, Any], error: str
) -> None:
    found = masked.fails(tool, **arguments)
    assert found["error"] == error, found
    assert written.store.url not in masked.answers[-1]
    assert "root:" not in masked.answers[-1]


def test_an_audit_line_has_no_values(masked: Agent, caplog: pytest.LogCaptureFixture) -> None:
    names = [each["carrier"] for each in masked("query", app=APP, sql="SELECT carrier FROM carriers")["rows"]]
    with caplog.at_level(logging.INFO, AUDIT.name):
        masked("get", app=APP, table="carriers", keys=names[:2])
        masked("query", app=APP, sql="SELECT 'C1' FROM carriers WHERE 17 > 3")
        masked("bisect", app=APP, where="SELECT 'C9', carrier FROM carriers QUALIFY count(*) OVER () > 2")
        lines = [each.getMessage() for each in caplog.records if each.name == AUDIT.name]
    found = [msgspec.json.decode(each) for each in lines]
    assert [each["what"] for each in found] == ["mcp get", "mcp query", "mcp bisect"]
    assert {each["status"] for each in found} == {200}
    told = str([each["asked"] for each in found])
    assert [each for each in ("C1", "C2", "C9", "17") if each in told] == []
