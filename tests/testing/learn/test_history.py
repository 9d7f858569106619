"""Tests are learned from records of the whole history, including rejected ones."""

import json
from pathlib import Path

import pytest
from slackwater.errors import Refused
from slackwater.testing.learn.history import sample_records

from tests.operations.debugging.reconcile.planted import TOPIC, Plants


def keys_of(plants: Plants, count: int) -> list[str]:
    records = sample_records(plants.app, count)
    assert {record.topic for record in records} == {TOPIC}
    return [json.loads(record.record.value or b"")["k"] for record in records]


def test_a_short_history_is_taken_whole_from_the_archive_and_kafka(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 1)
    with plants.client:
        sent = [key for _ in range(5) for key in plants.batch("counted", "filtered", "rejected")]
        plants.kafka.delete_records(TOPIC, 2, 0)
        plants.send("unread")
        assert sorted(keys_of(plants, 1_000)) == sorted(sent)


def test_of_a_long_history_the_beginning_the_end_and_rejected_records_are_taken(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 2)
    with plants.client:
        for number in range(12):
            plants.batch(*["counted"] * 10, *["rejected"] * (number == 5))
        found = keys_of(plants, 16)
        assert len(found) < 30
        assert [key for key in found if key.startswith("rejected")] == ["rejected-61"]
        for partition in plants.sent:
            assert {partition[0], partition[-1]} <= {*found}


@pytest.mark.parametrize("count", [8, 70])
def test_as_many_rejected_records_are_taken_as_others(tmp_path: Path, count: int) -> None:
    plants = Plants(tmp_path, 4)
    with plants.client:
        plants.batch(*["counted"] * 200)
        plants.batch(*["rejected"] * (count + 5))
        plants.batch(*["counted"] * 200)
        assert sum(key.startswith("rejected") for key in keys_of(plants, count)) == count


def test_without_records_it_is_said_how_to_keep_them(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 3)
    with plants.client, pytest.raises(Refused, match="no record") as error:
        sample_records(plants.app, 10)
    assert "slackwater archive plants" in error.value.hint
