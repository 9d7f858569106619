"""The ends of batches: record limits, the trigger interval, whole upstream versions, and markers."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from slackwater.pipeline.source.options import ScratchCheckpoint
from slackwater.pipeline.source.planner import ChannelPlanner, Pace, admit_records
from slackwater.pipeline.source.readers import _ranges_by_task
from slackwater.pipeline.source.wake import PlannerFiles
from slackwater.state.records import Position, Range
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import commit
from slackwater.store.versions.manifest import EventTime, Manifest, Output

partitions = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), min_size=1, max_size=6)


@given(partitions, st.integers(1, 10**6))
def test_admitted_records_stay_within_the_limit_and_every_backlog_advances(
    backlogs: list[tuple[int, int]], limit: int
) -> None:
    start = tuple(at for at, _ in backlogs)
    ends = tuple(at + waiting for at, waiting in backlogs)
    admitted = admit_records(start, ends, limit)
    taken = [to - at for at, to in zip(start, admitted, strict=True)]
    assert all(0 <= count <= waiting for count, (_, waiting) in zip(taken, backlogs, strict=True))
    # One record of each partition at least, so that none starves.
    assert sum(taken) <= limit + len(backlogs)
    assert all(count > 0 for count, (_, waiting) in zip(taken, backlogs, strict=True) if waiting)
    if sum(waiting for _, waiting in backlogs) <= limit:
        assert admitted == ends


def test_a_new_partition_is_read_from_its_beginning() -> None:
    assert admit_records((5,), (7, 3), None) == (7, 3)
    assert admit_records((5,), (7, 0), None) == (7, 0)


def test_a_limit_is_divided_in_proportion_to_backlogs() -> None:
    assert admit_records((0, 100), (300, 200), 40) == (30, 110)
    assert admit_records((0, 0), (3, 3), 4) == (2, 2)
    assert admit_records((0, 0), (3, 3), 5) == (2, 2)
    assert all(isinstance(end, int) for end in admit_records((0, 0), (3, 3), 5))


def test_a_topic_whose_end_has_moved_back_is_not_read_backwards() -> None:
    assert admit_records((50,), (10,), 100) == (50,)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_trigger_intervals_are_aligned_to_the_clock() -> None:
    clock = Clock(4)
    pace = Pace(10, clock)
    assert pace.is_due()
    pace.record_start()
    clock.now = 9.9
    assert not pace.is_due()
    clock.now = 10
    assert pace.is_due()
    pace.record_start()
    assert not pace.is_due()


def test_without_an_interval_a_batch_may_start_at_any_time() -> None:
    pace = Pace(0)
    pace.record_start()
    assert pace.is_due()


class Upstream:
    """A stage that writes one channel, version by version, into a store."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.version = 0
        self.end = 0
        self.rows = 0

    def write(
        self,
        rows: int,
        *markers: str,
        attempt: str = "",
        watermark_ms: int | None = None,
        times: EventTime | None = None,
    ) -> None:
        self.version += 1
        self.end += rows + len(markers)
        self.rows += rows
        output = Output(
            "t",
            (self.end,),
            (self.rows,),
            (attempt or f"w.{self.version}",) if rows else (),
            rows,
            "n long",
            dict.fromkeys(markers, (self.end - 1,)),
        )
        manifest = Manifest("a", "up", self.version, 1, "w", self.version, "batch", outputs={"c": output})
        if watermark_ms is not None:
            times = EventTime(watermark_ms)
        if times is not None:
            manifest = structs.replace(manifest, event_time=times)
        commit.commit(self.store, manifest)

    def planner(self, max_records: int | None = None, told: PlannerFiles | None = None) -> ChannelPlanner:
        planner = ChannelPlanner(self.store, "a", "up", "c", pace=Pace(0), max_records=max_records)
        if told is not None:
            planner.wake_version = lambda handled: told.due_wake_version("s", handled, now_ms=1_000)
        return planner


START = Position("c", (0,), 0, (0,))


def at(end: int, version: int, rows: int, *snapshots: str) -> Position:
    return Position("c", (end,), version, (rows,), snapshots)


def test_a_batch_takes_whole_upstream_versions_within_the_limit() -> None:
    upstream = Upstream()
    for rows in (10, 10, 10):
        upstream.write(rows)
    assert upstream.planner().plan_end(START) == at(30, 3, 30)
    assert upstream.planner(25).plan_end(START) == at(20, 2, 20)
    assert upstream.planner(20).plan_end(START) == at(20, 2, 20)
    # A version larger than the limit is taken alone: it cannot be divided.
    assert upstream.planner(3).plan_end(START) == at(10, 1, 10)


def test_a_wake_up_of_the_runner_starts_a_batch_without_input(tmp_path: Path) -> None:
    upstream, told = Upstream(), PlannerFiles(tmp_path)
    planner = upstream.planner(told=told)
    assert planner.plan_end(START) == START
    told.schedule_wake_up("s", 7, 1_001)
    assert planner.plan_end(START) == START, "not before its time"
    told.schedule_wake_up("s", 7, 1_000)
    woken = planner.plan_end(replace(START, snapshots=("s1",)))
    assert woken == replace(START, woken=7), "and it brings no snapshot again"
    assert planner.plan_end(woken) == woken, "once"
    told.schedule_wake_up("s", 9, 0)
    upstream.write(10)
    assert upstream.planner(told=told).plan_end(woken) == replace(at(10, 1, 10), woken=9)
    told.schedule_wake_up("s", 9, None)
    assert planner.wake_version(0) == 0


def test_readers_get_a_watermark_only_after_the_rows_due_at_it_were_sent() -> None:
    upstream = Upstream()
    upstream.write(10, times=EventTime(50, due_ms=40, next_due_ms=51))
    assert upstream.planner().plan_end(START).watermark_ms == 50
    upstream.write(10, times=EventTime(60, due_ms=50, next_due_ms=51))
    assert upstream.planner().plan_end(START).watermark_ms == 50
    upstream.write(10, times=EventTime(60, due_ms=50, next_due_ms=51, by_clock=True))
    assert upstream.planner().plan_end(START).watermark_ms == 60


def test_known_versions_are_counted_only_once() -> None:
    upstream = Upstream()
    upstream.write(10)
    upstream.write(10)
    planner = upstream.planner(30)
    assert planner.plan_end(START) == at(20, 2, 20)
    upstream.write(10)
    deadline = time.monotonic() + 30
    while (found := planner.plan_end(START)) != at(30, 3, 30):
        assert found == at(20, 2, 20)
        assert time.monotonic() < deadline


def test_a_batch_ends_at_a_marker_and_reports_it_once() -> None:
    upstream = Upstream()
    upstream.write(10)
    upstream.write(10, "s1")
    upstream.write(10)
    planner = upstream.planner()
    at_marker = planner.plan_end(START)
    assert at_marker == at(21, 2, 20, "s1")
    assert planner.plan_end(at_marker) == at(31, 3, 30)


def test_a_marker_without_rows_is_a_batch_and_two_markers_are_two_batches() -> None:
    upstream = Upstream()
    upstream.write(0, "s1")
    upstream.write(0, "s2")
    planner = upstream.planner(1)
    first = planner.plan_end(START)
    assert first == at(1, 1, 0, "s1")
    assert planner.plan_end(first) == at(2, 2, 0, "s2")


def test_claims_and_compactions_upstream_start_no_batch() -> None:
    upstream = Upstream()
    upstream.write(0)
    planner = upstream.planner()
    assert planner.plan_end(START) == START


def test_an_advanced_watermark_without_rows_starts_one_batch() -> None:
    upstream = Upstream()
    upstream.write(10, watermark_ms=5)
    upstream.write(0, watermark_ms=5)
    upstream.write(0, watermark_ms=9)
    planner = upstream.planner()
    first = planner.plan_end(START)
    assert first == replace(at(10, 3, 10), watermark_ms=9)
    upstream.write(0, watermark_ms=9)
    assert upstream.planner().plan_end(first) == first


def test_only_attempts_named_by_a_manifest_count() -> None:
    upstream = Upstream()
    upstream.write(1, attempt="first")
    upstream.write(1, attempt="second")
    upstream.write(1, attempt="third")
    assert upstream.planner().counted_attempts(1, 3) == {"second", "third"}


def test_versions_before_the_channel_existed_have_no_attempts() -> None:
    upstream = Upstream()
    upstream.version += 1
    commit.commit(upstream.store, Manifest("a", "up", 1, 1, "w", 1, "batch"))
    upstream.write(1, attempt="first")
    planner = upstream.planner()
    assert planner.plan_end(START) == at(1, 2, 1)
    assert planner.counted_attempts(0, 2) == {"first"}


def test_a_writer_in_this_runner_announces_its_commits_and_is_polled_only_every_two_seconds(tmp_path: Path) -> None:
    upstream, told = Upstream(), PlannerFiles(tmp_path / "told")
    told.write_committed("up", 0)
    store = CountingStore(upstream.store)
    planner = ChannelPlanner(
        store, "a", "up", "c", pace=Pace(0), max_records=None, committed_version=lambda: told.committed_version("up")
    )
    start = planner.plan_end(START)
    store.take_stats()
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        assert planner.plan_end(start) == start
    assert store.take_stats().requests <= 2
    for version in range(1, 4):
        upstream.write(10)
        told.write_committed("up", version)
        start = planner.plan_end(start)
        assert start == at(10 * version, version, 10 * version), "seen at once, whenever the store was looked at"
    # A version without the channel is looked at once.
    upstream.version += 1
    commit.commit(upstream.store, Manifest("a", "up", upstream.version, 1, "w", upstream.version, "batch"))
    told.write_committed("up", upstream.version)
    planner.plan_end(start)
    store.take_stats()
    planner.plan_end(start)
    assert store.take_stats().requests == 0


def test_a_writer_elsewhere_is_polled_less_often_the_longer_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream, clock = Upstream(), Clock(1)
    monkeypatch.setattr("slackwater.common.runtime.monotonic", clock)
    store = CountingStore(upstream.store)
    planner = ChannelPlanner(store, "a", "up", "c", pace=Pace(0), max_records=None)

    def asks(seconds: float) -> int:
        """Return the number of requests that an idle planner makes in this time."""
        store.take_stats()
        ends = clock.now + seconds
        while clock.now < ends:
            clock.now += 0.1
            assert planner.plan_end(START) == START
        return store.take_stats().requests

    assert asks(10) > 20
    asks(50)
    assert asks(3_600) <= 1_850
    upstream.write(1)
    clock.now += 2
    assert planner.plan_end(START) == at(1, 1, 1)


def test_a_marker_does_not_wait_for_the_trigger_interval() -> None:
    upstream = Upstream()
    clock = Clock()
    pace = Pace(60, clock)
    pace.record_start()
    planner = ChannelPlanner(upstream.store, "a", "up", "c", pace=pace, max_records=None)
    upstream.write(5)
    upstream.write(5, "s1")
    assert planner.plan_end(START) == at(11, 2, 10, "s1")


def test_a_position_survives_sparks_checkpoint(tmp_path: Path) -> None:
    checkpoint = ScratchCheckpoint(tmp_path / "scratch")
    position = Position("c", (4, 0), 7, (3, 0), ("s1",))
    checkpoint.write(41, [position])
    assert checkpoint.read_positions(41) == checkpoint.read_positions(40) == {"c": position}
    assert {path.name for path in (tmp_path / "scratch" / "commits").iterdir()} == {"40", "41"}


offsets = st.lists(st.integers(0), max_size=4).map(tuple)


@given(st.builds(Position, st.just("c"), offsets, st.integers(0), offsets, st.just(("a", "b"))))
def test_a_position_survives_json(position: Position) -> None:
    assert Position.from_json(position.to_json()) == position


def test_a_checkpoint_in_a_foreign_format_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        Position.from_json({"offsets": [1]})


@dataclass(frozen=True)
class Wrote:
    """Messages that one upstream version wrote to a channel with two partitions.

    `rows` are by partition, `litter` is the number of messages of failed attempts, and `markers` has snapshot names.
    """

    rows: tuple[int, int]
    litter: int
    markers: tuple[str, ...]


@st.composite
def histories(draw: st.DrawFn) -> list[Wrote]:
    names = iter(["s0", "s1", "s2", "s3", "s4", "s5"])
    marked = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), max_size=10).filter(lambda counts: sum(counts) <= 6))
    rows = st.sampled_from([0, 0, 1, 2, 5])
    return [
        Wrote((draw(rows), draw(rows)), draw(st.integers(0, 2)), tuple(next(names) for _ in range(count)))
        for count in marked
    ]


def written(history: list[Wrote]) -> tuple[MemoryStore, list[Output]]:
    """Store the history as versions 1, 2, …; return each version's output entry."""
    store, ends, sent, outputs = MemoryStore(), (0, 0), (0, 0), []
    for version, wrote in enumerate(history, 1):
        sent = (sent[0] + wrote.rows[0], sent[1] + wrote.rows[1])
        added = [int(rows > 0) + wrote.litter + len(wrote.markers) for rows in wrote.rows]
        # A version that wrote nothing does not pass over what zombies left.
        if any(wrote.rows) or wrote.markers:
            ends = (ends[0] + added[0], ends[1] + added[1])
        attempts = tuple(f"w.{version}.{task}" for task in range(2) if any(wrote.rows))
        markers = {
            name: (ends[0] - len(wrote.markers) + n, ends[1] - len(wrote.markers) + n)
            for n, name in enumerate(wrote.markers)
        }
        outputs.append(Output("t", ends, sent, attempts, sum(wrote.rows), "n long", markers))
        manifest = Manifest("a", "up", version, 1, "w", version, "batch", outputs={"c": outputs[-1]})
        commit.commit(store, manifest)
    return store, outputs


@given(histories(), st.none() | st.integers(1, 12), st.data())
def test_batches_are_whole_versions_that_end_at_each_marker_and_omit_nothing(
    history: list[Wrote], limit: int | None, data: st.DataObject
) -> None:
    store, outputs = written(history)
    planner = ChannelPlanner(store, "a", "up", "c", pace=Pace(0), max_records=limit)
    at = Position("c", (0, 0), 0, (0, 0))
    while (end := planner.plan_end(at)) != at:
        assert end.version > at.version
        taken = outputs[at.version : end.version]
        last = taken[-1]
        assert (end.offsets, end.consumed) == (last.ends, last.sent)
        assert last.rows or last.markers, "a version without either is no reason to go there"
        assert end.snapshots == tuple(sorted(last.markers))
        assert not any(output.markers for output in taken[:-1]), "past a marker"
        rows = sum(output.rows for output in taken)
        assert limit is None or rows <= limit or sum(map(bool, (output.rows for output in taken))) == 1
        assert sum(end.consumed) - sum(at.consumed) == rows
        names = {attempt for output in taken for attempt in output.attempts}
        assert planner.counted_attempts(at.version, end.version) == names
        tasks = _ranges_by_task("t", at, end, frozenset(names), 2)
        assert all(task.attempts == names for task in tasks)
        counts = {part.partition: part for task in tasks for part in task.parts}
        for partition, (first, until) in enumerate(zip(at.offsets, end.offsets, strict=True)):
            read = counts.pop(partition, None)
            rows = sum(wrote.rows[partition] for wrote in history[at.version : end.version])
            assert (read is None) == (rows == 0), "markers are not read"
            assert read in (None, Range(partition, first, until, rows))
        assert not counts
        at = end
        if data.draw(st.booleans(), "restarted"):
            planner = ChannelPlanner(store, "a", "up", "c", pace=Pace(0), max_records=limit)
            at = replace(at, snapshots=())
    assert not any(output.rows or output.markers for output in outputs[at.version :])


def ranges(start: Position, end: Position) -> list[tuple[int, int, int, int | None]]:
    tasks = _ranges_by_task("t", start, end, frozenset(), 1)
    return [(part.partition, part.first, part.last, part.rows) for task in tasks for part in task.parts]


def test_rows_of_a_range_are_counted_if_both_positions_have_counts() -> None:
    start, end = Position("c", (4, 4), 2, (3, 2)), Position("c", (9, 7), 5, (7, 3))
    assert ranges(start, end) == [(0, 4, 9, 4), (1, 4, 7, 1)]
    for uncounted in (replace(start, consumed=()), start):
        other = end if uncounted != start else replace(end, consumed=())
        assert ranges(uncounted, other) == [(0, 4, 9, None), (1, 4, 7, None)]


def test_a_range_that_has_only_markers_is_not_read() -> None:
    start, end = Position("c", (4, 4), 2, (3, 2)), Position("c", (9, 7), 5, (7, 2))
    assert ranges(start, end) == [(0, 4, 9, 4)]


def test_a_new_partition_is_read_from_its_beginning_and_an_unchanged_one_is_not_read() -> None:
    assert ranges(Position("t", (4, 4)), Position("t", (9, 4, 2))) == [(0, 4, 9, None), (2, 0, 2, None)]
