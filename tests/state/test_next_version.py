"""The next manifest, which a batch commits: inputs, outputs, markers, merges and the clock."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Refused
from slackwater.state.event_time import BatchTimes, SeenTimes, TimeRules, Watermark
from slackwater.state.next_version import (
    BatchResult,
    PartitionWrite,
    ProtocolOutcome,
    TaskReport,
    has_rows,
    next_version,
    rows_until,
)
from slackwater.state.records import Position
from slackwater.store.compaction.plan import Compaction, CompactionResult
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import (
    Column,
    EventTime,
    Input,
    Manifest,
    Output,
    SideTable,
    Sink,
    Table,
    VersionSpan,
)

PARTITIONS = 3
NOTHING = ProtocolOutcome((), {}, {}, {}, changed=False)


def stage(name: str, inputs: dict[str, Input], outputs: dict[str, Output] | None = None) -> Manifest:
    return Manifest("a", name, 1, 1, "w", 1, "claim", inputs, outputs or {}, by="host:1")


def sst(name: str, level: int = 0, seq: int = 1) -> Sst:
    return Sst(name, 0, level, 1, 1, "", 0, 1, seq, seq, 0, "", 0)


def made(
    base: Manifest,
    positions: dict[str, Position],
    results: Sequence[TaskReport] = (),
    outcome: ProtocolOutcome = NOTHING,
    *,
    markers: dict[tuple[str, str], tuple[int, ...]] | None = None,
    merges: Sequence[CompactionResult] = (),
) -> Manifest:
    return next_version(
        base,
        positions,
        outcome,
        BatchResult(results, markers or {}),
        merges,
        TimeRules(),
        BatchTimes(base.clock_ms, 0),
        with_rows=False,
        now_ms=base.time_ms + 5,
        duration_ms=7,
    )


Batch = list[list[int]]
"""Rows of each task, by partition."""
batches = st.lists(st.lists(st.lists(st.integers(0, 4), min_size=PARTITIONS, max_size=PARTITIONS), max_size=3))


@given(batches, st.sets(st.integers(0, 20)), st.lists(st.booleans()))
def test_at_every_version_a_reader_has_consumed_what_its_writer_sent(
    batches: list[Batch], marked: set[int], reads: list[bool]
) -> None:
    none = (0,) * PARTITIONS
    writer = stage("w", {"t": Input("t", (0,))}, {"c": Output("a-c", none, sent=none)})
    reader = stage("r", {"c": Input("a-c", none, "w", consumed=none)})
    log = [0] * PARTITIONS
    for number, tasks in enumerate(batches):
        results = []
        for task, rows in enumerate(tasks):
            for partition, count in enumerate(rows):
                log[partition] += count > 0
            sent = {partition: PartitionWrite(count, log[partition]) for partition, count in enumerate(rows) if count}
            results.append(TaskReport(f"w.{number}.{task}", sum(rows), sent={"c": sent} if sent else {}))
        markers = {("s", "c"): tuple(log)} if number in marked else {}
        log = [end + bool(markers) for end in log]
        before, writer = writer, made(writer, {"t": Position("t", (number + 1,))}, results, markers=markers)
        output = writer.outputs["c"]
        assert (writer.version, writer.kind, writer.duration_ms) == (before.version + 1, "batch", 7)
        assert output.rows == sum(map(sum, tasks)) == sum(output.sent) - sum(before.outputs["c"].sent)
        assert all(end >= known for end, known in zip(output.ends, before.outputs["c"].ends, strict=True))
        assert output.markers == {snapshot: at for (snapshot, _), at in markers.items()}
        assert output.ends == tuple(log) or not markers, "a marker is behind all rows, in every partition"
        if reads[number : number + 1] == [True]:
            at, end = reader.inputs["c"], Position("c", output.ends, writer.version, output.sent)
            assert has_rows(at, end) == (sum(output.sent) > sum(at.consumed))
            reader = made(reader, {"c": end})
            after = reader.inputs["c"]
            assert (after.consumed, after.offsets, after.version) == (output.sent, output.ends, writer.version)
            assert after.rows == sum(output.sent) - sum(at.consumed)


def test_an_input_without_new_offsets_was_not_read() -> None:
    base = stage("s", {"left": Input("l", (4,), rows=4), "right": Input("r", (2,), rows=2)})
    manifest = made(base, {"left": Position("left", (6, 3))})
    assert manifest.inputs == {"left": Input("l", (6, 3), rows=5), "right": Input("r", (2,))}
    assert has_rows(base.inputs["left"], Position("left", (4, 1))), "a partition that the topic got since"
    assert not has_rows(base.inputs["left"], Position("left", (4, 0)))
    assert rows_until(base.inputs["left"], Position("left", (6, 3))) == 5


def test_lost_rows_are_counted_as_passed_and_not_as_consumed() -> None:
    base = stage("s", {"c": Input("c", (9,), "w", 3, consumed=(4,), lost=(2,))})
    after = made(base, {"c": Position("c", (12,), 4, (11,))}).inputs["c"]
    assert (after.rows, after.consumed, after.lost, after.rows_passed) == (5, (9,), (2,), (11,))
    # Where the reader began in the middle of a channel, nobody knows how many were before.
    unknown = replace(base, inputs={"c": replace(base.inputs["c"], consumed=(), lost=())})
    assert made(unknown, {"c": Position("c", (12,), 4)}).inputs["c"].rows == 0
    assert rows_until(unknown.inputs["c"], Position("c", (12,), 4)) is None
    assert rows_until(base.inputs["c"], Position("c", (12,), 4, (11,))) == 5


def test_finished_merges_replace_their_inputs_and_new_ssts_stay() -> None:
    old, new, merged = (sst("a"), sst("b")), sst("c", seq=2), sst("m", level=1)
    merge = CompactionResult(Compaction(0, 1, old[::-1], drops_tombstones=False), (merged,))
    stale = CompactionResult(Compaction(0, 1, (sst("gone"),), drops_tombstones=False), (sst("x", level=1),))
    base = replace(stage("s", {}), ssts=old)
    manifest = made(base, {}, [TaskReport("w.2.0", 1, (new,), event_ms=30)], merges=[merge, stale])
    assert set(manifest.ssts) == {new, merged}
    assert manifest.clock_ms == 30
    assert made(manifest, {}, [TaskReport("w.3.0", 1, event_ms=10)]).clock_ms == 30, "it never goes back"


def test_the_outcome_of_the_snapshot_protocol_is_in_the_manifest() -> None:
    outcome = ProtocolOutcome((), {"s": 2}, {"s": ("right",)}, {"s": {"left": VersionSpan(1, 2)}}, changed=True)
    manifest = made(stage("s", {}), {}, outcome=outcome)
    assert (manifest.recorded, manifest.awaited, manifest.captured) == (
        outcome.recorded,
        outcome.awaited,
        outcome.captured,
    )


def test_a_retired_stage_gets_no_batch() -> None:
    with pytest.raises(Refused, match="retired"):
        made(replace(stage("s", {}), kind="retire"), {})


def test_a_channel_has_the_upstream_watermark_unless_the_stage_has_its_own() -> None:
    base = stage("s", {"c": Input("a-c", (0,), "up"), "t": Input("t", (0,))})
    ends = {"c": Position("c", (0,), 4, watermark_ms=90), "t": Position("t", (3,), watermark_ms=70)}
    mine = {name: Watermark(("at",), 10, (name,)) for name in ends}
    results = [TaskReport("w.1", 3, seen=SeenTimes((55,)))]

    def after(results: Sequence[TaskReport], own: Sequence[str], timed: set[str]) -> Manifest:
        return next_version(
            base,
            ends,
            NOTHING,
            BatchResult(results),
            (),
            TimeRules([mine[name] for name in own], timed),
            BatchTimes(0, 0),
            with_rows=False,
            now_ms=2,
            duration_ms=1,
        )

    assert after((), (), {"c"}).watermark_ms == 90, "no row, and no job"
    assert after(results, ("t",), {"c", "t"}).watermark_ms == 45
    both = after(results, ("c",), {"c"})
    assert (both.watermark_ms, both.inputs["c"].watermark_ms, both.inputs["t"].watermark_ms) == (45, 45, None)
    assert after((), ("c",), {"c"}).event_time is None


def test_side_tables_are_kept_and_those_changed_by_the_batch_are_replaced() -> None:
    table = Table((Column("k", "string"),), (), 1)
    before = {"rejected": SideTable(table, rows=2, total=2), "other": SideTable(table, (sst("a"),), rows=1, total=1)}
    base = replace(stage("s", {"t": Input("t", (0,))}), side_tables=before)
    changed = SideTable(table, (sst("b", seq=2),), rows=3, total=5)

    def after(written: BatchResult) -> Manifest:
        times = BatchTimes(0, 0)
        return next_version(base, {}, NOTHING, written, (), TimeRules(), times, now_ms=2, duration_ms=1)

    other = replace(before["other"], rows=0)
    assert after(BatchResult(side_tables={"rejected": changed})).side_tables == {"rejected": changed, "other": other}
    assert after(BatchResult()).side_tables == {"rejected": replace(before["rejected"], rows=0), "other": other}


def test_the_bound_for_early_rows_is_recorded_by_versions_that_read_rows() -> None:
    base = stage("s", {"t": Input("t", (0,))})
    rules, results = TimeRules([Watermark(("at",), 10, ("t",))], {"t"}), [TaskReport("w.1", 3, seen=SeenTimes((55,)))]

    def event_time(*, with_rows: bool) -> EventTime | None:
        times, written = BatchTimes(0, 700), BatchResult(results)
        made = next_version(
            base, {}, NOTHING, written, (), rules, times, with_rows=with_rows, now_ms=2, duration_ms=1
        )  # fmt: skip
        return made.event_time

    assert event_time(with_rows=True) == EventTime(45, bound_ms=700)
    assert event_time(with_rows=False) == EventTime(45)
    due = replace(base, event_time=EventTime(45))
    made = next_version(
        due, {}, NOTHING, BatchResult(), (), TimeRules(due_by="clock"), BatchTimes(0, 0), now_ms=2, duration_ms=1
    )  # fmt: skip
    assert made.event_time == EventTime(45, bound_ms=0), "nothing falls due with a batch that does not say up to when"


def test_rows_for_a_sink_are_added_up_with_the_winning_attempts() -> None:
    base = replace(stage("s", {"t": Input("t", (0,))}), sinks={"out": Sink("a-s-out-sink", 5, 1, sent=3)})
    results = [
        TaskReport("w.2.8", 4, sent={"out": {0: PartitionWrite(4, 9)}}),
        TaskReport("w.2.7", 2, sent={"out": {0: PartitionWrite(2, 7)}}),
        TaskReport("w.2.6", 1),
    ]
    assert made(base, {}, results).sinks["out"] == Sink(
        "a-s-out-sink", 9, 1, attempts=("w.2.7", "w.2.8"), rows=6, sent=9
    )
    assert made(base, {}).sinks["out"] == base.sinks["out"]
