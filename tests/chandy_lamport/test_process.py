"""The protocol on small networks, and events that a process refuses."""

import pickle

import pytest
from slackwater.chandy_lamport.events import (
    BatchArrived,
    Capture,
    Event,
    MarkerArrived,
    ProtocolError,
    RecordState,
    SendMarker,
    SnapshotEnded,
    SnapshotRequested,
)
from slackwater.chandy_lamport.process import Process


def stage(reads: str = "", writes: str = "") -> Process:
    return Process(inputs=frozenset(reads.split()), outputs=frozenset(writes.split()))


def test_a_chain_records_one_stage_after_the_other() -> None:
    parse, total, alert = stage(writes="by-key"), stage(reads="by-key", writes="sums"), stage(reads="sums")

    assert parse.receive(SnapshotRequested("s")) == (RecordState("s"), SendMarker("s", "by-key"))
    assert total.receive(MarkerArrived("s", "by-key")) == (
        RecordState("s"),
        SendMarker("s", "sums"),
    )
    assert alert.receive(MarkerArrived("s", "sums")) == (RecordState("s"),)


def test_a_fan_out_sends_a_marker_on_every_output() -> None:
    assert stage(writes="by-user by-item").receive(SnapshotRequested("s")) == (
        RecordState("s"),
        SendMarker("s", "by-item"),
        SendMarker("s", "by-user"),
    )


def test_a_diamond_records_at_the_first_marker_and_captures_the_other_channel_until_its_marker() -> None:
    join = stage(reads="fast slow", writes="joined")

    assert join.receive(BatchArrived("slow", "0..5")) == (), "before the snapshot: the state has it"
    assert join.receive(MarkerArrived("s", "fast")) == (RecordState("s"), SendMarker("s", "joined"))
    assert join.receive(BatchArrived("fast", "9..12")) == (), "after the marker: sent after the cut"
    assert join.receive(BatchArrived("slow", "5..7")) == (Capture("s", "slow", "5..7"),)
    assert join.receive(BatchArrived("slow", "7..8")) == (Capture("s", "slow", "7..8"),)
    assert join.receive(MarkerArrived("s", "slow")) == ()
    assert join.recorded == {"s": frozenset()}, "it has done its part"
    assert join.receive(BatchArrived("slow", "8..9")) == (), "after both markers: nothing of it is in the cut"


def test_each_of_three_inputs_is_captured_until_its_own_marker() -> None:
    join = stage(reads="a b c")
    assert join.receive(MarkerArrived("s", "b")) == (RecordState("s"),)
    assert join.receive(MarkerArrived("s", "a")) == ()
    assert join.receive(BatchArrived("a", "0..1")) == ()
    assert join.receive(BatchArrived("c", "0..1")) == (Capture("s", "c", "0..1"),)
    assert join.recorded == {"s": frozenset({"c"})}
    assert join.receive(MarkerArrived("s", "c")) == ()


def test_nothing_is_captured_if_one_batch_reaches_the_marker_of_every_input() -> None:
    join = stage(reads="left right")
    assert join.receive(MarkerArrived("s", "right")) == (RecordState("s"),)
    assert join.receive(MarkerArrived("s", "left")) == ()
    assert join.recorded == {"s": frozenset()}


def test_overlapping_snapshots_are_independent() -> None:
    join = stage(reads="left right")
    assert join.receive(MarkerArrived("first", "left")) == (RecordState("first"),)
    assert join.receive(MarkerArrived("second", "left")) == (RecordState("second"),)
    assert join.receive(BatchArrived("right", "0..1")) == (
        Capture("first", "right", "0..1"),
        Capture("second", "right", "0..1"),
    )
    assert join.receive(MarkerArrived("first", "right")) == ()
    assert join.receive(BatchArrived("right", "1..2")) == (Capture("second", "right", "1..2"),)
    assert join.recorded == {"first": frozenset(), "second": frozenset({"right"})}


def test_a_repeated_request_or_marker_changes_nothing() -> None:
    source, reader, join = stage(writes="c"), stage(reads="c"), stage(reads="left right")
    source.receive(SnapshotRequested("s"))
    reader.receive(MarkerArrived("s", "c"))
    join.receive(MarkerArrived("s", "left"))

    assert source.receive(SnapshotRequested("s")) == ()
    assert reader.receive(MarkerArrived("s", "c")) == ()
    assert join.receive(MarkerArrived("s", "left")) == ()
    assert join.recorded == {"s": frozenset({"right"})}


def test_a_forgotten_snapshot_captures_no_more_records() -> None:
    join = stage(reads="left right")
    join.receive(MarkerArrived("s", "left"))
    join.receive(MarkerArrived("wanted", "left"))
    assert join.receive(SnapshotEnded("s")) == ()
    assert join.recorded == {"wanted": frozenset({"right"})}
    assert join.receive(BatchArrived("right", "0..1")) == (Capture("wanted", "right", "0..1"),)


@pytest.mark.parametrize("reads", ["", "c"])
def test_forgetting_an_unknown_snapshot_is_no_error(reads: str) -> None:
    process = stage(reads=reads)
    assert process.receive(SnapshotEnded("s")) == ()
    assert process.recorded == {}


def test_a_marker_of_a_forgotten_snapshot_restarts_it_and_it_can_be_forgotten_again() -> None:
    reader = stage(reads="c")
    reader.receive(MarkerArrived("s", "c"))
    reader.receive(SnapshotEnded("s"))

    assert reader.receive(MarkerArrived("s", "c")) == (RecordState("s"),)
    reader.receive(SnapshotEnded("s"))
    assert reader.recorded == {}


def test_a_restored_process_continues_from_its_last_commit() -> None:
    names = frozenset({"left", "right"}), frozenset({"out"})
    before = Process(*names)
    before.receive(MarkerArrived("done", "left"))
    before.receive(MarkerArrived("done", "right"))
    before.receive(MarkerArrived("open", "left"))

    after = Process(*names, before.recorded)
    assert after.recorded == before.recorded == {"done": frozenset(), "open": frozenset({"right"})}
    assert after.receive(MarkerArrived("done", "left")) == ()
    assert after.receive(BatchArrived("right", "0..1")) == (Capture("open", "right", "0..1"),)
    assert after.receive(MarkerArrived("open", "right")) == ()


def test_callers_may_change_the_returned_dict_of_recorded_snapshots() -> None:
    source = stage()
    source.receive(SnapshotRequested("s"))
    source.recorded.clear()
    assert source.recorded == {"s": frozenset()}


@pytest.mark.parametrize(
    ("reads", "event", "message"),
    [
        (
            "right left",
            MarkerArrived("s", "middle"),
            "a marker of snapshot 's' arrived: expected it on 'left' or 'right', found it on 'middle'",
        ),
        (
            "",
            MarkerArrived("s", "c"),
            "a marker of snapshot 's' arrived: expected none, for this process reads no channel, found it on 'c'",
        ),
        ("c", BatchArrived("d", "0..1"), "a batch arrived: expected it on 'c', found it on 'd'"),
        (
            "c",
            SnapshotRequested("s"),
            "a process with channel inputs that does not know snapshot 's' cannot continue: "
            "expected MarkerArrived on an awaited channel or MarkerArrived on the only awaited channel "
            "or Forgotten, found Requested",
        ),
        (
            "c",
            RecordState("s"),  # an action, not an event
            "a process received an unknown event: "
            "expected Requested, BatchArrived, MarkerArrived or Forgotten, found RecordState(snapshot='s')",
        ),
    ],
)
def test_an_illegal_event_says_what_was_expected_and_changes_nothing(reads: str, event: Event, message: str) -> None:
    process = stage(reads=reads)
    with pytest.raises(ProtocolError) as caught:
        process.receive(event)
    assert str(caught.value) == message
    assert process.recorded == {}


@pytest.mark.parametrize("event", [SnapshotRequested("s"), MarkerArrived("s", "other"), BatchArrived("other", "0..1")])
def test_an_illegal_event_does_not_change_a_running_snapshot(event: Event) -> None:
    join = stage(reads="left right")
    join.receive(MarkerArrived("s", "left"))
    with pytest.raises(ProtocolError):
        join.receive(event)
    assert join.recorded == {"s": frozenset({"right"})}


def test_a_process_whose_inputs_changed_cannot_be_restored() -> None:
    with pytest.raises(ProtocolError, match="snapshot 's' is restored and awaits a marker: expected it on 'new', "):
        Process(frozenset({"new"}), frozenset(), {"s": ["old"]})


def test_a_protocol_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ProtocolError("it failed", "this", "that")))  # noqa: S301 - bytes of its own
    assert (str(error), error.subject, error.expected, error.actual) == (
        "it failed: expected this, found that",
        "it failed",
        "this",
        "that",
    )
