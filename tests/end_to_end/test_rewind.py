"""An app continues after a rewind, and each record counts once, on a real broker and Spark."""

import json
import re
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.pipeline.publish.reader import committed
from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def test_undone_records_are_read_again_and_the_rewind_first_lists_their_published_rows(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, alerts = Ledger(kafka.bootstrap, tmp_path), f"alerts-{uuid4().hex[:6]}"
    ledger.kafka.create_topics({alerts: 2})
    monkeypatch.setenv("ALERTS_TOPIC", alerts)

    def catch_up(*stages: str) -> None:
        ledger.catch_up(*stages, variant="publishes")

    def published() -> dict[tuple[int, int], int]:
        """Return the number of each published entry, by position."""
        found = committed(ledger.kafka, alerts)
        return {(each.partition() or 0, each.offset() or 0): json.loads(each.value() or b"")["seq"] for each in found}

    ledger.send(600)
    catch_up()
    ledger.send(300)
    catch_up("entries")  # what these send is on its way
    ledger.slackwater("snapshot", "take", ledger.app, "then", "--instant")
    catch_up()
    ledger.send(300)
    catch_up()
    ledger.check_tables()

    said = ledger.slackwater("rewind", f"{ledger.app}@then", "--dry-run", "--json").stdout
    (sink,) = json.loads(said)["sinks"]
    assert (sink["sink"], sink["topic"], sink["rows"], sink["dropped"]) == (alerts, alerts, 300, 0)
    ranges = [tuple(map(int, re.findall(r"\[(\d+)\] (\d+)\.\.(\d+)$", each)[0])) for each in sink["offsets"]]
    named = [seq for (at, offset), seq in published().items() if any(p == at and a <= offset < b for p, a, b in ranges)]
    assert sorted(named) == list(range(900, 1_200))
    ledger.check_tables()

    ledger.slackwater("rewind", f"{ledger.app}@then")
    assert ledger.sql("SELECT sum(n)::BIGINT AS n FROM accounts").to_pylist() == [{"n": 600}]
    ledger.verify(ledger.app)
    catch_up()
    ledger.check_tables()
    ledger.verify(ledger.app)

    # Back to the earlier state, with the records that arrived since.
    ledger.send(100)
    ledger.slackwater("rewind", f"{ledger.app}@before-rewind-1")
    assert ledger.sql("SELECT sum(n)::BIGINT AS n FROM accounts").to_pylist() == [{"n": 1_200}]
    catch_up()
    ledger.check_tables()
    ledger.verify(ledger.app)
    assert Counter(published().values()) == {seq: 2 if 900 <= seq < 1_200 else 1 for seq in range(1_300)}
