"""An app that was rewound reads on from there: each record counts once in its tables, on the real thing."""

from pathlib import Path

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import SPLIT, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


@pytest.mark.parametrize("program", [SPLIT], ids=["split"])
def test_what_was_on_the_way_then_is_read_and_what_is_undone_is_read_again(
    program: Path, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path, program=program)
    ledger.send(600)
    ledger.catch_up()
    first, *_ = ledger.sql("SELECT 1").to_pylist()  # the app can be queried
    assert first
    # The moment: its first stage is ahead of the others.
    ledger.send(300)
    stages = [line.split()[0] for line in ledger.slackwater("status", ledger.app).stdout.splitlines() if line]
    assert stages
    ledger.slackwater("snapshot", "take", ledger.app, "then", "--instant")
    ledger.catch_up()
    ledger.send(300)
    ledger.catch_up()
    ledger.check_tables()
    late = ledger.app + "@before-rewind-1"

    looked = ledger.slackwater("rewind", f"{ledger.app}@then", "--dry-run")
    assert "nothing was changed (--dry-run)" in looked.stdout
    ledger.slackwater("rewind", f"{ledger.app}@then")
    ledger.verify(ledger.app)
    ledger.catch_up()
    ledger.check_tables()
    ledger.verify(ledger.app)

    # And back to where it was before, with more that came in since.
    ledger.send(100)
    ledger.slackwater("rewind", late)
    ledger.verify(ledger.app)
    ledger.catch_up()
    ledger.check_tables()
    ledger.verify(ledger.app)
