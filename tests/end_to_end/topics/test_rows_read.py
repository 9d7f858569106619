"""The number of rows read counts records. Offsets also count transaction markers and aborted records."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.snapshot.query import log
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


class Transactions:
    """A producer that sends entries in transactions, spread over the partitions."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.seq = ledger, 0
        self.producer = Producer({**ledger.kafka.properties, "transactional.id": ledger.topic})
        self.producer.init_transactions(30)

    def __call__(self, count: int, *, abort: bool = False) -> None:
        self.producer.begin_transaction()
        for _ in range(count):
            entry = {"seq": self.seq, "account": f"a{self.seq % 5}", "branch": 1, "amount": 1}
            self.producer.produce(self.ledger.topic, json.dumps(entry).encode(), partition=self.seq % 3)
            self.seq += 1
        self.producer.flush(30)
        (self.producer.abort_transaction if abort else self.producer.commit_transaction)(30)


def rows_read(ledger: Ledger) -> tuple[int, int]:
    """Return the numbers of records and of offsets in the newest batch of the first stage."""
    store = open_store(ledger.store)
    head = history.head(store, ledger.app, "entries")
    assert head is not None
    before = history.read(store, ledger.app, "entries", head.version - 1)
    (at,), (was,) = head.inputs.values(), before.inputs.values()
    newest = next(iter(log.log_entries(store, ledger.app, stage="entries")))
    assert newest.rows_in == at.rows
    return at.rows, sum(at.offsets) - sum(was.offsets)


@pytest.mark.ci
def test_transaction_markers_and_aborted_records_are_not_counted(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    send = Transactions(ledger)
    send(4)
    send(14, abort=True)
    send(7)
    ledger.catch_up("entries", "accounts")
    records, offsets = rows_read(ledger)
    assert (records, offsets) == (11, 4 + 14 + 7 + 3 * 3)
    assert ledger.sql("SELECT sum(n)::BIGINT AS n FROM accounts").to_pylist() == [{"n": 11}]
    send(5, abort=True)
    ledger.catch_up("entries", "accounts")
    records, offsets = rows_read(ledger)
    assert (records, offsets) == (0, 5 + 3)
    ledger.verify(ledger.app)
    said = ledger.slackwater("status", ledger.app, "--json").stdout
    assert json.loads(said)
