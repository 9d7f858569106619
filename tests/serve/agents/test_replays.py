"""With the program that ran, agents find the bad record, and replay batches on the server's Spark."""

from pathlib import Path

import pytest
import urllib3
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.serve.service import ServeOptions

from tests.operations.debugging.replay.test_record import plant
from tests.support.running import LEDGER, Ledger

from ..conftest import HERE, serving
from .conftest import agent_at

HUGE = 5_000_000


@pytest.mark.ci  # two Sparks are started for it
@pytest.mark.kafka
@pytest.mark.spark
def test_a_search_continues_to_the_record_and_a_batch_is_replayed(
    kafka: EmbeddedKafka, one_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(100)
    address = plant(ledger, HUGE, account="quokka")
    ledger.send(50)
    ledger.catch_up(max_records=50)
    for name, value in ledger.environment().items():
        monkeypatch.setenv(name, value)
    options = ServeOptions(programs={ledger.app: LEDGER})
    at = serving(ledger.store, tmp_path / "cache", HERE, options, kafka.bootstrap, with_agents=True)
    with at as url, agent_at(url) as agent:
        where = f"SELECT account FROM accounts WHERE balance > {HUGE // 2}"
        found = agent("bisect", app=ledger.app, where=where)
        record = found["record"]
        assert f"{record['topic']}[{record['partition']}]@{record['offset']}" == address, found
        first_bad = found["first_bad"]
        again = agent("replay", app=ledger.app, stage=first_bad["stage"], version=first_bad["version"])
        assert again["same"], again
        assert again["keys_that_differ"] == 0
        sent = {"stage": first_bad["stage"], "version": first_bad["version"], "key": "quokka"}
        one = urllib3.request("POST", f"{url}/apps/{ledger.app}/replay", json=sent, timeout=200, retries=False).json()
        assert (one["same"], one["keys_replayed"], one["different"]) == (True, 1, [])
        (cause,) = agent("why", app=ledger.app, table="accounts", key="quokka", minimal=True)["records"]
        assert cause["record"] == address
        reached = agent("impact", app=ledger.app, record=address)
        assert {each["table"] for each in reached["rows"]} == {"accounts", "latest", "branches"}, reached
        path = f"{url}/apps/{ledger.app}/at/now/tables/accounts/why"
        explained = urllib3.request("POST", path, json={"key": "quokka"}, timeout=200, retries=False).json()
        assert [each["record"] for each in explained["records"]] == [address]
        assert explained["row"]["balance"] == HUGE
        path = f"{url}/apps/{ledger.app}/impact"
        downstream = urllib3.request("POST", path, json={"record": address}, timeout=200, retries=False).json()
        assert [each["until"] for each in downstream["rows"]] == [None] * 3
        assert [each for each in agent.answers if "quokka" in each or str(HUGE) in each] == []
