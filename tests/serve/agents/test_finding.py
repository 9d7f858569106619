"""A scripted agent finds the record behind wrong totals in at most 15 tool calls."""

from pathlib import Path

import numpy as np
import pytest
from slackwater.serve.service import ServeOptions
from slackwater.store.objects.local import LocalStore

from bench import finding
from bench.support import side
from tests.support.histories import Flight

from ..conftest import HERE, serving
from .conftest import Agent, agent_at
from .planted import TOPIC, place_of, written

MOST_CALLS = 15


def found(agent: Agent, total: str, most: int, in_record: str) -> tuple[str, int, int]:
    """Return topic, partition and offset of the record behind a total that is too large.

    The only hint is that the column `total` has values above `most`. `in_record` is the same condition for the value of
    a record; a server without the program for a replay needs it.
    """
    (app,) = agent("apps")["apps"]
    tables = agent("apps", app=app)["tables"]
    for table in tables:
        columns = {each["name"]: each for each in table["columns"]}
        if total not in columns:
            continue
        name, keys = table["table"], ", ".join(each["name"] for each in table["columns"] if each["key"])
        wrong = f"SELECT {keys} FROM {name} WHERE {total} > {most}"
        counted = agent("query", app=app, sql=f"SELECT count(*) AS n FROM ({wrong})")
        if counted["rows"][0]["n"]:
            break
    verdict = agent("bisect", app=app, where=wrong)
    assert verdict["certain"]
    if verdict["record"] is not None:
        record = verdict["record"]
        return record["topic"], record["partition"], record["offset"]
    for window in verdict["input"]:
        within = f'partition = {window["partition"]} AND "offset" BETWEEN {window["start"]} AND {window["end"] - 1}'
        sql = f"SELECT partition, \"offset\" FROM input('{window['topic']}') WHERE {within} AND {in_record} > {most}"
        for row in agent("query", app=app, sql=sql)["rows"]:
            return window["topic"], row["partition"], row["offset"]
    raise AssertionError(agent.answers[-3:])


def test_the_record_among_50_000_is_found_without_a_program(tmp_path: Path) -> None:
    random, count = np.random.default_rng(3), 50_000
    tails, delays = random.integers(0, 400, count).tolist(), random.integers(0, 60, count).tolist()
    sent = [Flight(f"N{tail:03}", f"C{tail % 9}", delay) for tail, delay in zip(tails, delays, strict=True)]
    planted = Flight("N123", "C4", 9_000_000)
    sent[int(count * 0.7)] = planted
    app = written(LocalStore(tmp_path / "store"), sent, a_batch=2_000)
    how = {"with_agents": True, "shows_values": True}
    with serving(app.store.url, tmp_path / "cache", **how) as url, agent_at(url) as agent:
        at = found(agent, "delay", 5_000_000, "(decode(value)->>'delay')::BIGINT")
        assert at == (TOPIC, *place_of(app, planted))
        assert len(agent.answers) <= MOST_CALLS


@pytest.mark.ci
@pytest.mark.kafka
@pytest.mark.spark
def test_the_record_among_5_000_000_is_found(tmp_path: Path, broker: str) -> None:
    versions, keys, window = 170, 100_000, 40_000  # of which some are compactions
    places = side.run("finding", "prepare", broker, tmp_path, versions, keys, window)
    options = ServeOptions(programs={"bench": finding.PROGRAM})
    how = {"with_agents": True, "shows_values": True}
    at = serving(str(tmp_path / "store"), tmp_path / "cache", HERE, options, broker, **how)
    with at as url, agent_at(url) as agent:
        assert sum(agent("apps", app="bench")["read_up_to"][finding.TOPIC]) > 5_000_000
        topic, partition, offset = found(agent, "worst", finding.WEEK - 1, "")
        assert f"{topic}[{partition}]@{offset}" in places[0]["addresses"]
        assert len(agent.answers) <= MOST_CALLS
