"""Running snapshots in one batch: the protocol events of a commit, and the state that the manifest records."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.pipeline.batch.snapshot_events import compute_outcome
from slackwater.state.next_version import ProtocolOutcome
from slackwater.state.records import Position
from slackwater.store.versions.manifest import Input, Manifest, Output, VersionSpan


def stage(*channels: str, topics: Collection[str] = (), outputs: Collection[str] = ("out",)) -> Manifest:
    """Return a stage at version 10 that has read version 5 of each channel."""
    inputs = {name: Input(name, (50,), f"writer-of-{name}", 5) for name in channels}
    inputs |= {name: Input(name, (0,)) for name in topics}
    return Manifest(
        "a", "s", 10, 1, "w", 1, "batch", inputs=inputs, outputs={name: Output(name, (0,), (0,)) for name in outputs}
    )


def at(**versions: int) -> dict[str, Position]:
    return {name: Position(name, (10 * version,), version) for name, version in versions.items()}


def ended(name: str, version: int, *snapshots: str) -> dict[str, Position]:
    return {name: Position(name, (10 * version,), version, (), snapshots)}


def committed(head: Manifest, outcome: ProtocolOutcome) -> Manifest:
    return replace(
        head,
        version=head.version + 1,
        recorded=outcome.recorded,
        awaited=outcome.awaited,
        captured=outcome.captured,
    )


def test_the_first_marker_records_this_version_and_is_forwarded_to_every_output() -> None:
    outcome = compute_outcome(stage("left", outputs=("b", "a")), at(left=5), ended("left", 7, "s"), ())
    assert outcome == ProtocolOutcome(
        markers=(("s", "a"), ("s", "b")), recorded={"s": 11}, awaited={}, captured={}, changed=True
    )


def test_a_batch_without_a_marker_changes_nothing() -> None:
    outcome = compute_outcome(stage("left"), at(left=5), at(left=7), ())
    assert outcome == ProtocolOutcome(markers=(), recorded={}, awaited={}, captured={}, changed=False)


def test_markers_of_the_other_inputs_are_awaited() -> None:
    head = stage("left", "right", "third")
    outcome = compute_outcome(head, at(left=5, right=5, third=5), at(right=6, third=5) | ended("left", 7, "s"), ())
    assert (outcome.recorded, outcome.awaited) == ({"s": 11}, {"s": ("right", "third")})
    assert outcome.captured == {}, "what the recording commit itself consumed is in its state"


def test_versions_up_to_an_inputs_marker_are_captured_as_one_span() -> None:
    head = stage("left", "right")
    marked = at(right=5) | ended("left", 7, "s")
    head = committed(head, compute_outcome(head, at(left=5, right=5), marked, ()))
    assert head.captured == {}

    outcome = compute_outcome(head, marked, at(left=9, right=6), ())
    assert outcome.captured == {"s": {"right": VersionSpan(5, 6)}}, "what left sends now was sent after the cut"
    head = committed(head, outcome)
    outcome = compute_outcome(head, at(left=9, right=6), at(left=9, right=9), ())
    assert (outcome.captured, outcome.changed) == ({"s": {"right": VersionSpan(5, 9)}}, False)
    head = committed(head, outcome)

    outcome = compute_outcome(head, at(left=9, right=9), at(left=9) | ended("right", 10, "s"), ())
    assert outcome == ProtocolOutcome(
        markers=(), recorded={"s": 11}, awaited={}, captured={"s": {"right": VersionSpan(5, 10)}}, changed=True
    )
    head = committed(head, outcome)
    outcome = compute_outcome(head, at(left=9) | ended("right", 10, "s"), at(left=9, right=12), ())
    assert outcome.captured == {"s": {"right": VersionSpan(5, 10)}}, "behind the marker nothing is in the cut"
    assert not outcome.changed


def test_nothing_is_captured_if_one_commit_reaches_the_marker_of_every_input() -> None:
    outcome = compute_outcome(
        stage("left", "right"), at(left=5, right=5), ended("left", 7, "s") | ended("right", 9, "s"), ()
    )
    assert outcome == ProtocolOutcome(
        markers=(("s", "out"),), recorded={"s": 11}, awaited={}, captured={}, changed=True
    )


def test_markers_of_overlapping_snapshots_may_arrive_in_one_commit() -> None:
    head = stage("left", "right")
    first = ended("left", 6, "one") | at(right=5)
    head = committed(head, compute_outcome(head, at(left=5, right=5), first, ()))
    outcome = compute_outcome(head, first, ended("left", 8, "two") | ended("right", 7, "one"), ())
    # This commit's records of `right` are late for the first snapshot, and in the state that the second records.
    assert outcome == ProtocolOutcome(
        markers=(("two", "out"),),
        recorded={"one": 11, "two": 12},
        awaited={"two": ("right",)},
        captured={"one": {"right": VersionSpan(5, 7)}},
        changed=True,
    )


def test_two_markers_at_the_same_position_record_two_snapshots() -> None:
    outcome = compute_outcome(stage("left"), at(left=5), ended("left", 7, "one", "two"), ())
    assert outcome.recorded == {"one": 11, "two": 11}
    assert outcome.markers == (("one", "out"), ("two", "out"))


def test_an_unchanged_position_does_not_repeat_its_snapshots() -> None:
    head = stage("left", "right")
    marked = at(right=5) | ended("left", 7, "s")
    head = committed(head, compute_outcome(head, at(left=5, right=5), marked, ()))
    head = committed(head, compute_outcome(head, marked, {**marked, **ended("right", 6, "s")}, ()))
    # The snapshot is complete and forgotten, and `left` still stands at its marker.
    outcome = compute_outcome(head, {**marked, **ended("right", 6, "s")}, {**marked, **at(right=7)}, {"s"})
    assert outcome == ProtocolOutcome(markers=(), recorded={}, awaited={}, captured={}, changed=False)
    outcome = compute_outcome(committed(head, outcome), {**marked, **at(right=7)}, {**marked, **at(right=8)}, ())
    assert outcome.recorded == {}


def test_a_snapshot_without_an_open_request_is_forgotten_with_its_captured_versions() -> None:
    head = replace(
        stage("left", "right"),
        recorded={"old": 9, "wanted": 10},
        awaited={"old": ("right",), "wanted": ("right",)},
        captured={"old": {"right": VersionSpan(3, 5)}, "wanted": {"right": VersionSpan(4, 5)}},
    )
    outcome = compute_outcome(head, at(left=5, right=5), at(left=5, right=6), {"old"})
    assert outcome.recorded == {"wanted": 10}
    assert outcome.awaited == {"wanted": ("right",)}
    assert outcome.captured == {"wanted": {"right": VersionSpan(4, 6)}}


def test_captured_versions_of_an_unrecorded_snapshot_are_dropped() -> None:
    head = replace(stage("left", "right"), awaited={"s": ("left",)}, captured={"s": {"left": VersionSpan(1, 3)}})
    outcome = compute_outcome(head, at(left=5, right=5), at(left=6, right=6), ())
    assert (outcome.awaited, outcome.captured) == ({}, {})


def test_forgetting_a_snapshot_is_no_reason_for_a_commit() -> None:
    outcome = compute_outcome(replace(stage("left"), recorded={"s": 9}), at(left=5), at(left=5), {"s"})
    assert (outcome.recorded, outcome.changed) == ({}, False)


def test_a_request_starts_the_protocol_in_a_stage_without_channels() -> None:
    head = stage(topics=["events"])
    asked = {"events": Position("events", (0,), snapshots=("s",))}
    outcome = compute_outcome(head, {"events": Position("events", (0,))}, asked, ())
    assert outcome == ProtocolOutcome(
        markers=(("s", "out"),), recorded={"s": 11}, awaited={}, captured={}, changed=True
    )
    # The position keeps its snapshot while nothing comes in, also when it is complete and forgotten.
    head = committed(head, outcome)
    assert compute_outcome(head, asked, asked, {"s"}).recorded == {}


def test_a_request_that_arrives_through_two_topics_is_recorded_once() -> None:
    head = stage(topics=["clicks", "orders"])
    before = {name: Position(name, (0,)) for name in head.inputs}
    both = {name: Position(name, (3,), snapshots=("s",)) for name in head.inputs}
    assert compute_outcome(head, before, both, ()).markers == (("s", "out"),)
    one = before | {"clicks": both["clicks"]}
    head = committed(head, compute_outcome(head, before, one, ()))
    outcome = compute_outcome(head, one, both, ())
    assert (outcome.recorded, outcome.markers, outcome.changed) == ({"s": 11}, (), False)


def test_in_a_stage_with_channels_a_topic_starts_no_snapshot() -> None:
    # Its source may see the request before the marker comes; only the marker says where the cut is.
    head = stage("left", topics=["events"])
    before = at(left=5) | {"events": Position("events", (0,))}
    asked = at(left=5) | {"events": Position("events", (3,), snapshots=("s",))}
    assert compute_outcome(head, before, asked, ()) == ProtocolOutcome((), {}, {}, {}, changed=False)
    assert compute_outcome(head, asked, {**asked, **ended("left", 6, "s")}, ()).recorded == {"s": 11}


def test_records_of_a_users_topic_are_never_captured() -> None:
    head = replace(stage("left", "right", topics=["events"]), recorded={"s": 10}, awaited={"s": ("right",)})
    before = at(left=5, right=5) | {"events": Position("events", (0,))}
    after = at(left=5, right=5) | {"events": Position("events", (9,))}
    assert compute_outcome(head, before, after, ()).captured == {}


def test_a_gap_between_captured_versions_is_corruption() -> None:
    head = replace(
        stage("left", "right"),
        recorded={"s": 9},
        awaited={"s": ("right",)},
        captured={"s": {"right": VersionSpan(2, 4)}},
    )
    with pytest.raises(Corruption, match="'right' was captured up to version 4, but the next batch begins after 5"):
        compute_outcome(head, at(left=5, right=5), at(left=5, right=6), ())


class Sent(NamedTuple):
    """Records that a channel's writer has sent: rows by version (from 1), and the version of each snapshot's marker."""

    rows: tuple[int, ...]
    markers: dict[str, int]

    def up_to(self, version: int) -> int:
        return sum(self.rows[:version])

    def position(self, name: str, version: int) -> Position:
        here = tuple(sorted(snapshot for snapshot, at in self.markers.items() if at == version))
        return Position(name, (self.up_to(version),), version, (self.up_to(version),), here)

    def plan(self, start: int, versions: int) -> int:
        """Return the end of the next batch, which has at most this many versions and never goes past a marker."""
        ahead = [at for at in self.markers.values() if at > start]
        return min(start + versions, *ahead, len(self.rows))


SNAPSHOTS = ("s0", "s1", "s2")


@st.composite
def channels(draw: st.DrawFn) -> dict[str, Sent]:
    """Draw two or three channels. The order of snapshots may differ between them."""
    found = {}
    for name in ("a", "b", "c")[: draw(st.integers(2, 3))]:
        rows = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
        markers = {snapshot: draw(st.integers(1, len(rows))) for snapshot in SNAPSHOTS}
        found[name] = Sent(tuple(rows), markers)
    return found


@dataclass
class Reader:
    """A stage that reads the channels, commit by commit. `unwanted` are cancelled or completed snapshots."""

    sent: Mapping[str, Sent]
    history: list[Manifest] = field(default_factory=list)
    before: dict[str, Position] = field(default_factory=dict)
    unwanted: set[str] = field(default_factory=set)
    passed_on: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        inputs = {name: Input(name, (0,), f"w-{name}", consumed=(0,)) for name in self.sent}
        self.history = [
            Manifest("a", "s", 1, 1, "w", 1, "claim", inputs=inputs, outputs={"out": Output("out", (0,), (0,))})
        ]
        self.restart()

    @property
    def head(self) -> Manifest:
        return self.history[-1]

    def consumed(self, name: str, version: int | None = None) -> int:
        return self.history[(version or self.head.version) - 1].inputs[name].version

    def restart(self) -> None:
        self.before = {
            name: Position(name, read.offsets, read.version, read.consumed) for name, read in self.head.inputs.items()
        }

    def commit(self, versions: Mapping[str, int]) -> None:
        ends = {name: self.sent[name].plan(start.version, versions[name]) for name, start in self.before.items()}
        after = {
            name: self.sent[name].position(name, end) if end > self.before[name].version else self.before[name]
            for name, end in ends.items()
        }
        outcome = compute_outcome(self.head, self.before, after, self.head.recorded.keys() & self.unwanted)
        marked = any(after[name].snapshots for name in after if after[name] != self.before[name])
        assert outcome.changed == marked
        new = [snapshot for snapshot, version in outcome.recorded.items() if version == self.head.version + 1]
        assert sorted(outcome.markers) == [(snapshot, "out") for snapshot in sorted(new)]
        self.passed_on += new
        inputs = {
            name: replace(read, offsets=after[name].offsets, version=after[name].version, consumed=after[name].consumed)
            for name, read in self.head.inputs.items()
        }
        self.history.append(replace(committed(self.head, outcome), inputs=inputs))
        self.before = after

    def check(self) -> None:
        for snapshot in SNAPSHOTS:
            if snapshot in self.unwanted:
                continue
            marker = {name: sent.markers[snapshot] for name, sent in self.sent.items()}
            reached = [name for name in self.sent if self.consumed(name) >= marker[name]]
            assert (snapshot in self.head.recorded) == bool(reached)
            assert self.passed_on.count(snapshot) == bool(reached)
            if not reached:
                assert snapshot not in self.head.captured
                continue
            recorded = self.head.recorded[snapshot]
            assert not any(self.consumed(name, recorded - 1) >= marker[name] for name in self.sent)
            assert any(self.consumed(name, recorded) >= marker[name] for name in self.sent)
            awaited = tuple(sorted(self.sent.keys() - set(reached)))
            assert self.head.awaited.get(snapshot, ()) == awaited
            for name, sent in self.sent.items():
                seen = self.consumed(name, recorded)
                late = min(self.consumed(name), marker[name])
                span = self.head.captured.get(snapshot, {}).get(name)
                assert span == (VersionSpan(seen, late) if late > seen else None)
                if name in reached:
                    captured = sent.up_to(span.up_to) - sent.up_to(span.after) if span else 0
                    assert sent.up_to(seen) + captured == sent.up_to(marker[name])


steps = st.lists(
    st.tuples(
        st.fixed_dictionaries({name: st.integers(0, 3) for name in "abc"}),
        st.sampled_from(["go on", "go on", "restart", "end", "s0", "s1", "s2"]),
    ),
    max_size=12,
)


@given(channels(), steps)
def test_at_every_marker_consumed_plus_captured_records_are_those_sent(
    sent: dict[str, Sent], schedule: list[tuple[dict[str, int], str]]
) -> None:
    reader = Reader(sent)
    for versions, happens in schedule:
        reader.commit(versions)
        reader.check()
        match happens:
            case "restart":
                reader.restart()
            case "end":
                reader.unwanted |= reader.head.recorded.keys() - reader.head.awaited.keys()
            case str(cancelled) if cancelled in SNAPSHOTS:
                reader.unwanted.add(cancelled)
    for _ in range(4):
        reader.commit(dict.fromkeys("abc", 100))
        reader.check()
    event(f"spans captured: {sum(map(len, reader.head.captured.values()))}")
    # All markers are past: what is not wanted is not carried on for ever.
    reader.commit(dict.fromkeys("abc", 0))
    reader.commit(dict.fromkeys("abc", 0))
    assert reader.head.recorded.keys() == set(SNAPSHOTS) - reader.unwanted
    assert not reader.head.awaited
