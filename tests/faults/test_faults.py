"""Verdicts on planted faults: right class, right record, and never a healthy record."""

from pathlib import Path

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.faults.plants import CLASSES
from tests.faults.run import SEEDS, table
from tests.faults.trial import ALL, trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def check(kafka: EmbeddedKafka, folder: Path, seed: int, *names: str) -> None:
    """Check all verdicts for the faults of a seed, and that each class had a fault."""
    outcomes = list(trial(kafka.bootstrap, folder, seed, names, partial=len(names) == len(CLASSES)))
    wrong = [(outcome.name, outcome.asked, outcome.wrong, outcome.repeat) for outcome in outcomes if outcome.wrong]
    assert wrong == [], table(outcomes)
    assert {outcome.name for outcome in outcomes if outcome.asked == ALL} == set(names), table(outcomes)


def test_a_record_that_waited_in_a_join_is_named(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Of rejected records, operations/debugging/replay/test_several_records.py holds it in each gate."""
    check(kafka, tmp_path, 3, "join")


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(5))
def test_a_fault_of_each_class_is_told_for_what_it_is(kafka: EmbeddedKafka, tmp_path: Path, seed: int) -> None:
    check(kafka, tmp_path, seed, *CLASSES)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
def test_so_it_is_of_many_more(kafka: EmbeddedKafka, tmp_path: Path, seed: int) -> None:
    check(kafka, tmp_path, seed, *CLASSES)
