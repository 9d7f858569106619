"""With more stages than cores and a backlog, each stage commits within a bounded number of other batches."""

from collections import Counter
from pathlib import Path

import pytest
from slackwater.common import instants
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.snapshot.under_way import runners
from slackwater.store.objects.open import open_store

from tests.support.running import APPS, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]
LAST = "l_counts"
"""Name of the stage that is last in alphabetical order."""
BATCHES, AHEAD, BEGINNING = 3, 4, 6
"""Limits in batches: of the last stage, of any other stage meanwhile, and before the last stage starts.

The last limit exists because queries start one after the other.
"""


@pytest.mark.ci  # twelve queries take a minute of two cores to start
def test_a_stage_with_input_commits_under_any_name(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    many = Ledger(kafka.bootstrap, tmp_path, program=APPS / "many.py")
    many.send(6_000)
    with many.running_here(max_records=20) as await_commit:
        counts = Counter[str]()
        while not counts[LAST]:
            counts[await_commit().stage] += 1
            assert max(counts.values()) <= BEGINNING, counts
        # All stages run by then, so that only the order of Spark's tasks decides whose turn it is.
        counts.clear()
        while counts[LAST] < BATCHES:
            counts[await_commit().stage] += 1
            assert max(counts.values()) <= counts[LAST] + 1 + AHEAD, counts
        assert len(counts) == 12, counts
        # With two cores for twelve stages, others wait; their runner says so with its next sign of life.
        while not any(
            what.startswith("a free core")
            for beat in runners.live_heartbeats(open_store(many.store), many.app, instants.now_ms())
            for what in beat.waits.values()
        ):
            await_commit()
