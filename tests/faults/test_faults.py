"""Verdicts on planted faults: the right class, the right record, and never a healthy record."""

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


@pytest.mark.ci
def test_a_record_that_waited_in_a_join_is_blamed(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The same for rejected records is in operations/debugging/replay/test_several_records.py."""
    check(kafka, tmp_path, 3, "join")


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(5))
def test_a_fault_of_each_class_gets_the_right_verdict(kafka: EmbeddedKafka, tmp_path: Path, seed: int) -> None:
    check(kafka, tmp_path, seed, *CLASSES)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
def test_faults_of_many_more_seeds_get_the_right_verdict(kafka: EmbeddedKafka, tmp_path: Path, seed: int) -> None:
    check(kafka, tmp_path, seed, *CLASSES)
