"""An app that was rewound reads on from there: each record counts once in its tables, on the real thing."""

from pathlib import Path

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def test_what_was_on_the_way_then_is_read_and_what_is_undone_is_read_again(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(600)
    ledger.catch_up()
    ledger.send(300)
    ledger.catch_up("entries")  # what these send is on its way
    ledger.slackwater("snapshot", "take", ledger.app, "then", "--instant")
    ledger.catch_up()
    ledger.send(300)
    ledger.catch_up()
    ledger.check_tables()

    ledger.slackwater("rewind", f"{ledger.app}@then")
    assert ledger.sql("SELECT sum(n)::BIGINT AS n FROM accounts").to_pylist() == [{"n": 600}]
    ledger.verify(ledger.app)
    ledger.catch_up()
    ledger.check_tables()
    ledger.verify(ledger.app)

    # And back to where it was, with more that came in since.
    ledger.send(100)
    ledger.slackwater("rewind", f"{ledger.app}@before-rewind-1")
    assert ledger.sql("SELECT sum(n)::BIGINT AS n FROM accounts").to_pylist() == [{"n": 1_200}]
    ledger.catch_up()
    ledger.check_tables()
    ledger.verify(ledger.app)
