"""Failing records are rejected, and the rest of their batch is committed."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from slackwater.operations.debugging.replay.compare import compare, read_sent_rows
from slackwater.operations.debugging.replay.program import open_program
from slackwater.operations.debugging.replay.stage_replay import StageReplay
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.reject import rejecter
from slackwater.pipeline.run import runner
from slackwater.pipeline.run.program import load_app
from slackwater.pipeline.telemetry.spans import Tracing
from slackwater.snapshot.change.stages import RETRIES, request_retry
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.side_tables import rejected_counts

from tests.pipeline.publish.reader import committed
from tests.support.running import APPS, Ledger

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.usefixtures("one_spark")]
POISON = APPS / "poison.py"


def traceparent(number: int) -> bytes:
    return f"00-{number + 1:032x}-00f067aa0ba902b7-01".encode()


class Bank(Ledger):
    """The app `poison`, with its expected tables."""

    def deposit(self, *moves: tuple[str, object]) -> list[tuple[int, int]]:
        """Send moves; return the partition and offset of each."""
        producer, at = Producer({**self.kafka.properties, "linger.ms": 5}), []
        for number, (account, amount) in enumerate(moves, self.sent):
            value = json.dumps({"account": account, "amount": str(amount)}).encode()
            producer.produce(
                self.topic,
                value,
                account.encode(),
                partition=len(at) % 3,
                headers=[("from", b"teller"), ("traceparent", traceparent(number))],
                on_delivery=lambda _error, message: at.append((message.partition(), message.offset())),
            )
            if len(at) % 500 == 0:
                producer.flush()
        assert producer.flush(30) == 0
        self.sent += len(moves)
        return at

    def rejected(self, stage: str) -> list[dict[str, Any]]:
        return list(self.table(f"{stage}_rejected").to_pylist())

    def balances(self) -> dict[str, int]:
        return {row["account"]: row["balance"] for row in self.table("accounts").to_pylist()}


def test_poison_records_are_rejected_one_by_one_and_the_rest_is_committed(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Reported at once, and not after five seconds.
    monkeypatch.setattr(rejecter, "_LOG_INTERVAL_S", 0.0)
    exported, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(runner, "configured_tracing", lambda: Tracing(provider))
    bank = Bank(kafka.bootstrap, tmp_path, program=POISON)
    dead, carried = f"{bank.topic}-dead", f"{bank.topic}-carried"
    bank.kafka.create_topics({dead: 1, carried: 2})
    monkeypatch.setenv("LEDGER_REJECTS", dead)
    monkeypatch.setenv("LEDGER_CARRIED", carried)
    good = [(f"a{n % 50}", n % 7 + 1) for n in range(1_950)]
    expected = Counter[str]()
    for account, amount in good:
        expected[account] += amount

    # Three records that no cast accepts, and one record that overdraws an account.
    debt = expected["a7"] + 5_000
    bank.deposit(*good[:900], ("a1", "ten"), *good[900:], ("a2", ""), ("a3", "1e"), ("a7", -debt))
    bank.catch_up()
    assert bank.balances() == expected
    bank.verify(bank.app)
    assert "stage 'moves': a batch fails; searching for the records that cause it: 3 found" in caplog.text
    found = bank.rejected("moves")
    assert sorted(json.loads(row["value"])["amount"] for row in found) == ["", "1e", "ten"]
    assert {(row["error"], row["topic"], row["attempts"]) for row in found} == {
        ("NumberFormatException", bank.topic, 1)
    }
    numbers = {"a1": 900, "a2": 1_951, "a3": 1_952}
    assert {json.loads(row["value"])["account"]: row["headers"] for row in found} == {
        account: [{"name": "from", "value": b"teller"}, {"name": "traceparent", "value": traceparent(number)}]
        for account, number in numbers.items()
    }
    (overdrawn,) = bank.rejected("accounts")
    assert overdrawn["error"] == "ValueError"
    assert overdrawn["message"].startswith("an account would stand at -")
    letters = [one for some in bank.kafka.read(dead, 0, 0, 3, patience_s=180) for one in some]
    headers = [dict(message.headers() or ()) for message in letters]
    assert {each["__streams.errors.exception"] for each in headers} == {b"NumberFormatException"}
    assert {each["__streams.errors.topic"] for each in headers} == {bank.topic.encode()}
    assert all(each["from"] == b"teller" for each in headers)

    # A trace of a record has the batch that rejected it, and the record that a sink got of it.
    links = {stage: linked(exported, bank.app, stage) for stage in ("moves", "accounts")}
    assert links == {"moves": {number + 1 for number in numbers.values()}, "accounts": {1_954}}
    assert b"an account would stand" not in b"".join(span.to_json().encode() for span in exported.get_finished_spans())
    sent = [message.headers() for message in committed(bank.kafka, carried)]
    left_out = {*numbers.values()}
    assert sorted(sent) == [
        [("from", b"teller"), ("traceparent", traceparent(number))] for number in range(1_954) if number not in left_out
    ]

    # A replay gives the committed rows, regardless of the records that the batch had read.
    store = open_store(bank.store)
    for stage in ("moves", "accounts"):
        head = history.head(store, bank.app, stage)
        assert head is not None
        assert rejected_counts(head)[1:] == (len(bank.rejected(stage)),) * 2
        newest = max(row["version"] for row in bank.rejected(stage))
        assert replayed_as_committed(bank, stage, newest)

    # A program that accepts them, and more money: the waiting records are processed, once.
    bank.deposit(("a7", debt))
    monkeypatch.setenv("LEDGER_VARIANT", "tolerant")
    for stage in ("moves", "accounts"):
        request_retry(store, bank.app, stage, by="test", now_ms=1)
    bank.catch_up(variant="tolerant")
    bank.catch_up(variant="tolerant")
    assert RETRIES.all(store, bank.app) == ()
    assert all(row["retried"] for row in bank.rejected("moves"))
    # The deposit comes before or after the second try: with it, there is enough.
    (overdrawn,) = bank.rejected("accounts")
    expected["a7"] += debt if overdrawn["retried"] is None else 0
    assert overdrawn["attempts"] == 2
    assert bank.balances() == expected
    bank.verify(bank.app)


def linked(exported: InMemorySpanExporter, app: str, stage: str) -> set[int]:
    """Check that each batch of a stage has a commit; return the traces to which the batches link."""
    spans = exported.get_finished_spans()
    batches = [span for span in spans if span.name == f"process {app}/{stage}"]
    commits = {span.parent.span_id for span in spans if span.name == f"commit {app}/{stage}" and span.parent}
    assert {span.context.span_id for span in batches} == commits
    assert all(span.attributes and span.attributes["slackwater.version"] for span in batches)
    return {link.context.trace_id for span in batches for link in span.links}


def replayed_as_committed(bank: Bank, stage: str, version: int) -> bool:
    """Return True if a replay of the version equals its commit."""
    store = open_store(bank.store)
    os.environ["LEDGER_TOPIC"] = bank.topic
    app = load_app(str(bank.program), name=bank.app)
    with open_program(app, store, SstCache(bank.folder / "cache" / "replay", 1 << 30), bank.kafka) as program:
        replay = StageReplay.for_version(program, history.read(store, bank.app, stage, version))
        return compare(replay, read_sent_rows(replay)).same
