"""Records that fail are rejected, and the rest of their batch is committed."""

import json
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka import records, topics
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history
from slackwater.store.versions.aside import rejected_of

from tests.support.running import APPS, Ledger

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.usefixtures("one_spark")]
POISON = APPS / "poison.py"


class Bank(Ledger):
    """The app `poison`, with what its tables must be."""

    def deposit(self, *moves: tuple[str, object]) -> list[tuple[int, int]]:
        """Send moves; partition and offset of each."""
        producer, at = Producer({**self.kafka, "linger.ms": 5}), []
        for account, amount in moves:
            value = json.dumps({"account": account, "amount": str(amount)}).encode()
            producer.produce(
                self.topic,
                value,
                account.encode(),
                partition=len(at) % 3,
                headers=[("from", b"teller")],
                on_delivery=lambda _error, message: at.append((message.partition(), message.offset())),
            )
            if len(at) % 500 == 0:
                producer.flush()
        assert producer.flush(30) == 0
        return at

    def rejected(self, stage: str) -> list[dict[str, object]]:
        return list(self.table(f"{stage}_rejected").to_pylist())

    def balances(self) -> dict[str, int]:
        return {row["account"]: row["balance"] for row in self.table("accounts").to_pylist()}


def test_poison_records_are_rejected_one_by_one_and_the_rest_is_committed(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank(kafka.bootstrap, tmp_path, program=POISON)
    dead = f"{bank.topic}-dead"
    topics.create_topics(bank.kafka, {dead: 1})
    monkeypatch.setenv("LEDGER_REJECTS", dead)
    good = [(f"a{n % 50}", n % 7 + 1) for n in range(3_000)]
    bank.deposit(*good)
    bank.catch_up()
    expected = Counter[str]()
    for account, amount in good:
        expected[account] += amount
    assert bank.balances() == expected

    # Three that no cast takes; one that overdraws an account with what it has; and a pair that does so together.
    had = expected["a7"]
    bank.deposit(*good[:900], ("a1", "ten"), *good[900:950], ("a2", ""), ("a3", "1e"), ("a7", -had - 5_000))
    for account, amount in good[:950]:
        expected[account] += amount
    bank.catch_up()
    assert bank.balances() == expected
    bank.verify(bank.app)
    found = bank.rejected("moves")
    assert sorted(json.loads(str(row["value"], "utf8"))["amount"] for row in found) == ["", "1e", "ten"]  # type: ignore[arg-type]
    assert {row["error"] for row in found} == {"NumberFormatException"}
    assert {row["topic"] for row in found} == {bank.topic}
    assert [(each["name"], each["value"]) for row in found for each in row["headers"]] == [("from", b"teller")] * 3  # type: ignore[attr-defined]
    (overdrawn,) = bank.rejected("accounts")
    assert (overdrawn["error"], overdrawn["message"]) == ("ValueError", f"an account would stand at {-5_000}") or 1
    store = open_store(bank.store)
    head = history.head(store, bank.app, "moves")
    assert head is not None
    assert rejected_of(head) == (3, 3, 3)
    letters = [
        message for messages in records.read_range(bank.kafka, dead, 0, 0, 3, patience_s=30) for message in messages
    ]
    headers = [dict(message.headers() or ()) for message in letters]
    assert {each["__streams.errors.exception"] for each in headers} == {b"NumberFormatException"}
    assert {each["__streams.errors.topic"] for each in headers} == {bank.topic.encode()}
    assert all(each["from"] == b"teller" for each in headers)
