"""A healthy cut has no difference; missing and unreadable objects are reported."""

import pytest
from msgspec.structs import replace
from slackwater.errors import NotFound, Usage
from slackwater.snapshot.cut.stored import read_snapshot
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.memory import MemoryStore

from tests.snapshot.verify.damaging import change, only, put_snapshot, report
from tests.support.fan_in import FanIn, bank


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("ref", ["bank@good", "bank", "bank@~2", "bank/join@v2", "bank/right@v4"])
def test_a_healthy_cut_has_no_difference(app: FanIn, ref: str, deep: bool) -> None:
    found = report(app, ref, deep=deep)
    assert found.consistent
    assert found.differences == found.not_reread == ()
    assert {entry.difference for entry in found.ledger} == {0}


def test_the_counts_of_a_snapshot_include_the_records_it_keeps(app: FanIn) -> None:
    left, right = report(app).ledger
    assert (left.channel, left.sender, left.receiver) == ("by-left", "left", "join")
    assert (left.sent, left.consumed, left.in_flight.rows) == ((5, 3), (5, 3), 0)
    assert (right.sent, right.consumed) == ((4, 6), (1, 4))
    assert (right.in_flight.by_partition, right.in_flight.where) == ((3, 2), "snapshot")
    assert right.partitions == ((4, 1, 0, 3, 0), (6, 4, 0, 2, 0))
    _, reread = report(app, deep=True).ledger
    assert (reread.in_flight.by_partition, reread.in_flight.where) == ((3, 2), "kept records")


def test_records_in_flight_at_other_moments_are_counted_from_manifests_or_in_kafka(app: FanIn) -> None:
    now, deeply = report(app, "bank"), report(app, "bank", deep=True)
    assert [(entry.in_flight.rows, entry.in_flight.where) for entry in now.ledger] == [
        (2, "manifests"),
        (10, "manifests"),
    ]
    assert [(entry.in_flight.by_partition, entry.in_flight.where) for entry in deeply.ledger] == [
        ((1, 1), "Kafka"),
        ((5, 5), "Kafka"),
    ]


def test_records_that_kafka_deleted_are_noted_and_are_no_difference(app: FanIn) -> None:
    app.topics.expired = True
    found = report(app, "bank", deep=True)
    assert found.consistent
    assert [entry.in_flight.where for entry in found.ledger] == ["manifests", "manifests"]
    assert found.not_reread[0].startswith("records in flight on by-left to join were not re-read: offsets of by-left")
    marked = report(app, deep=True)
    assert marked.consistent
    assert marked.not_reread[0] == "markers on by-left were not re-read: by-left[0]@4 is gone from Kafka"
    without = verify(app.store, "bank", now_ms=10**15, deep=True)
    assert without.consistent
    assert without.not_reread[0].endswith("no Kafka configured")


def test_an_unreachable_kafka_is_waited_for_once(app: FanIn) -> None:
    app.topics.away = True
    found = report(app, "bank", deep=True)
    assert found.consistent
    assert [note.rpartition(": ")[2] for note in found.not_reread] == ["Kafka does not answer"] * 2
    assert len(report(app, deep=True).not_reread) == 2
    assert app.topics.asked == 2


def test_unknown_counts_are_not_compared(app: FanIn) -> None:
    join = app.heads["join"]
    inputs = {name: replace(read, consumed=()) for name, read in join.inputs.items()}
    change(app, "join", join.version, lambda manifest: replace(manifest, inputs=inputs))
    found = report(app, "bank")
    assert found.consistent
    assert {entry.difference for entry in found.ledger} == {None}


def test_names_that_do_not_exist_are_errors(app: FanIn) -> None:
    with pytest.raises(NotFound):
        report(app, "bank@goof")
    with pytest.raises(NotFound):
        report(app, "bank/jion@good")
    with pytest.raises(Usage):
        report(app, "bank@")


@pytest.mark.parametrize(
    ("header", "expected"),
    [("attempt-9", "holds no marker; expected that of"), ("marker other", "holds the marker of other; expected")],
)
def test_the_record_in_kafka_at_a_markers_offset_must_be_that_marker(app: FanIn, header: str, expected: str) -> None:
    app.topics.messages["by-left"][0][4] = (header, 0)
    message = only(report(app, deep=True))
    assert message.startswith("by-left[0]@4 ")
    assert expected in message


def test_records_lost_or_duplicated_in_kafka_are_a_difference_in_the_counts(app: FanIn) -> None:
    messages = app.topics.messages["by-right"][1]
    header, rows = messages[-1]
    messages[-1] = (header, rows - 1)
    found = report(app, "bank", deep=True)
    assert only(found) == (
        "by-right[1]: right at version 6 sent 11 records, but join at version 4 consumed 6 and 4 are in flight"
    )
    assert found.ledger[1].partitions == ((9, 4, 0, 5, 0), (11, 6, 0, 4, 1))


def test_a_marker_on_a_channel_without_a_reader_is_checked_too() -> None:
    app = bank(MemoryStore())
    for version in (1, 2, 3, 4):
        change(app, "join", version, lambda manifest: replace(manifest, inputs={}))
    snapshot = read_snapshot(app.store, "bank", "good")
    put_snapshot(app, replace(snapshot, channels=()))
    found = report(app, deep=True)
    assert found.consistent
    assert found.ledger == ()
    assert next(each.checked for each in found.checks if each.check == "markers") == 4
