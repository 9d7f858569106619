"""Computation of the manifest that a batch commits, from the base version and the tasks' reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec
from msgspec.structs import replace

from ..errors import AnotherTopic
from ..store.compaction import plan
from ..store.compaction.plan import Finished
from ..store.objects.counting import Stats
from ..store.versions import commit
from ..store.versions.entries.ssts import Sst
from ..store.versions.manifest import EventTime, Input, Manifest, Output, SideTable, Sink, VersionSpan
from . import event_time as progress
from .event_time import BatchTimes, SeenTimes, TimeRules
from .failing import StateFailure
from .records import Position


class PartitionWrite(msgspec.Struct, frozen=True):
    """Rows that a task attempt wrote to one Kafka partition. `end` is the offset after its last message."""

    rows: int
    end: int


class OversizedRecord(msgspec.Struct, frozen=True):
    """Record of a sink that was not sent, because it exceeds the size limit of the topic."""

    sink: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    why: str


class TaskReport(msgspec.Struct, frozen=True):
    """Report of one task attempt to the driver."""

    attempt: str
    rows_in: int
    """Number of rows that the task received. A pre-aggregated row counts as the number of rows that it combines."""
    ssts: tuple[Sst, ...] = ()
    parts: dict[str, tuple[Sst, ...]] = {}
    """SSTs of side tables, by the side table's name."""
    sent: dict[str, dict[int, PartitionWrite]] = {}
    stats: Stats = Stats()
    ranged: tuple[str, ...] = ()
    """Keys of SSTs that the worker reads by byte ranges, because its machine has no copy."""
    event_ms: int | None = None
    seen: SeenTimes = SeenTimes()
    late: int = 0
    next_due_ms: int | None = None
    partials: int = 0
    """Number of pre-aggregated rows that were shuffled to this task; 0 without pre-aggregation."""
    unsent: tuple[OversizedRecord, ...] = ()
    failed: StateFailure | None = None
    """Keys or records for which the state's function failed, if the stage may reject records.

    The failure is reported instead of raised, so that Spark's Python workers stay alive and keep their Kafka metadata.
    """


@dataclass(frozen=True, slots=True)
class ProtocolOutcome:
    """Actions of the snapshot protocol for one commit. `recorded`, `awaited`, `captured` go into the manifest."""

    markers: tuple[tuple[str, str], ...]
    """Snapshot and channel of each marker to write after the batch's rows, in the given order."""
    recorded: dict[str, int]
    awaited: dict[str, tuple[str, ...]]
    captured: dict[str, dict[str, VersionSpan]]
    changed: bool


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result of a batch: reports of its tasks, offsets of written markers, and side tables."""

    results: Sequence[TaskReport] = ()
    markers: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """Offsets of the written markers, by Kafka partition, for each pair of snapshot and channel."""
    side_tables: Mapping[str, SideTable] = field(default_factory=dict)
    traceparents: tuple[str, ...] = ()
    read: Mapping[str, int] | None = None
    """Number of records read from each user's topic, by declared name; None if records were not counted."""


def next_version(
    base: Manifest,
    positions: Mapping[str, Position],
    outcome: ProtocolOutcome,
    written: BatchResult,
    merges: Sequence[Finished],
    rules: TimeRules,
    times: BatchTimes,
    *,
    with_rows: bool = True,
    now_ms: int,
    duration_ms: int,
) -> Manifest:
    """Return the manifest that a batch commits after `base`, the version on which it was computed.

    `positions` has the end of the batch by declared input; empty if nothing was read. Finished `merges` replace their
    input SSTs; outdated merges are dropped. `times` are the clock and due times that the tasks used; `with_rows` is
    True if the tasks read rows. `now_ms` is the wall clock in ms since 1970, and `duration_ms` the time since the batch
    began.

    Raises `Refused` if the stage is retired, and `AnotherTopic` if rows were written at offsets below those of earlier
    rows.
    """
    draft = commit.successor(
        base, kind="batch", epoch=base.epoch, writer=base.writer, by=base.by, now_ms=now_ms, duration_ms=duration_ms
    )
    results, markers = written.results, written.markers
    ssts = base.ssts.plus(sst for result in results for sst in result.ssts)
    side_tables = draft.side_tables | {
        name: replace(side, ssts=side.ssts.plus(sst for result in results for sst in result.parts.get(name, ())))
        for name, side in draft.side_tables.items()
        if any(name in result.parts for result in results)
    }
    own = {name for watermark in rules.watermarks for name in watermark.inputs}
    counts = written.read or {}
    read = {
        name: _input_after(base.inputs[name], end, counts.get(name), own=name in own) for name, end in positions.items()
    }
    inputs = progress.advance_watermarks(draft.inputs | read, rules.watermarks, [result.seen for result in results])
    written_version = replace(
        draft,
        inputs=inputs,
        event_time=_event_time(base, inputs, results, rules, times, times.bound_ms if with_rows else None),
        outputs={name: _output_after(name, output, results, markers) for name, output in base.outputs.items()},
        sinks=sinks_after(base.sinks, results),
        clock_ms=max([times.clock_ms, *(result.event_ms for result in results if result.event_ms is not None)]),
        ssts=ssts,
        side_tables={**side_tables, **written.side_tables},
        recorded=outcome.recorded,
        awaited=outcome.awaited,
        captured=outcome.captured,
    )
    return plan.apply_to_manifest(written_version, merges)


def _event_time(
    base: Manifest,
    inputs: Mapping[str, Input],
    results: Sequence[TaskReport],
    rules: TimeRules,
    times: BatchTimes,
    bound_ms: int | None,
) -> EventTime | None:
    at_ms = progress.stage_watermark_ms(inputs, rules.timed, base.watermark_ms)
    seen, late = [result.seen for result in results], sum(result.late for result in results)
    event_time = progress.next_event_time(base.event_time, at_ms, seen, late=late, bound_ms=bound_ms)
    if rules.due_by is None or times.due is None:
        return event_time
    due_times = [at for result in results if (at := result.next_due_ms) is not None]
    if not times.due.pending and base.event_time is not None and base.event_time.next_due_ms is not None:
        # The tasks did not search the table for due rows, so the table's earliest due time is still valid.
        due_times.append(base.event_time.next_due_ms)
    until_ms, next_ms, by_clock = times.due.until_ms, min(due_times, default=None), rules.due_by == "clock"
    before_due = event_time or EventTime()
    after_due = replace(
        before_due,
        due_ms=until_ms,
        next_due_ms=next_ms,
        by_clock=by_clock,
        behind_ms=rules.behind_ms,
        wall_ms=times.due.wall_ms,
    )
    if by_clock or after_due.has_unemitted_due_rows:
        return after_due
    # No row is due up to the new watermark, so the next batch need not search the table up to it.
    return replace(after_due, due_ms=progress.later_time(until_ms, after_due.watermark_ms))


def rows_until(start: Input, end: Position) -> int | None:
    """Return the number of rows of an input in a batch up to `end`; the number of offsets for a user's topic.

    None for a channel that was not read from its beginning, because the number of earlier rows is unknown.
    """
    if start.upstream:
        return sum(end.consumed) - sum(start.rows_passed) if start.rows_passed else None
    # New partitions begin at 0.
    return sum(end.offsets) - sum(start.offsets)


def has_rows(start: Input, end: Position) -> bool:
    """Return True if a batch that ends at `end` has rows of this input."""
    # Markers have offsets but no rows.
    rows = rows_until(start, end)
    return sum(end.offsets) > sum(start.offsets) if rows is None else rows > 0


def _input_after(start: Input, end: Position, count: int | None, *, own: bool) -> Input:
    """Return the input after a batch that ended at `end`.

    With `own`, the stage declares a watermark for the input, and ignores the upstream stage's watermark. `count` is the
    number of records read from a user's topic. It may be less than the number of offsets, because transaction markers,
    and aborted or compacted records, have offsets as well.
    """
    rows = rows_until(start, end) or 0
    if not start.upstream:
        return replace(start, offsets=end.offsets, rows=rows if count is None else min(count, rows))
    consumed = tuple(passed - lost for passed, lost in zip_longest(end.consumed, start.lost, fillvalue=0))
    at_ms = start.watermark_ms if own else progress.later_time(start.watermark_ms, end.watermark_ms)
    return replace(start, offsets=end.offsets, version=end.version, rows=rows, consumed=consumed, watermark_ms=at_ms)


def _output_after(
    name: str, output: Output, results: Sequence[TaskReport], markers: Mapping[tuple[str, str], Sequence[int]]
) -> Output:
    ends, sent = list(output.ends), list(output.sent)
    for result in results:
        for partition, written in result.sent.get(name, {}).items():
            _check_behind(output.topic, partition, output.ends[partition], written.end)
            ends[partition] = max(ends[partition], written.end)
            sent[partition] += written.rows
    marker_offsets = {snapshot: tuple(offsets) for (snapshot, channel), offsets in markers.items() if channel == name}
    for offsets in marker_offsets.values():
        ends = [offset + 1 for offset in offsets]
    return replace(
        output,
        ends=tuple(ends),
        attempts=tuple(sorted(result.attempt for result in results if name in result.sent)),
        rows=sum(sent) - sum(output.sent),
        markers=marker_offsets,
        sent=tuple(sent),
    )


def sinks_after(sinks: Mapping[str, Sink], results: Sequence[TaskReport]) -> dict[str, Sink]:
    """Return a stage's sinks after a version that sent the messages in `results`. Raises `AnotherTopic`."""
    return {name: _sink_after(name, sink, results) for name, sink in sinks.items()}


def _sink_after(name: str, sink: Sink, results: Sequence[TaskReport]) -> Sink:
    parts = [(result.attempt, part) for result in results for part in result.sent.get(name, {}).values()]
    for _, part in parts:
        _check_behind(sink.topic, 0, sink.end, part.end)
    rows = sum(part.rows for _, part in parts)
    return replace(
        sink,
        end=max([sink.end, *(part.end for _, part in parts)]),
        attempts=tuple(sorted(attempt for attempt, _ in parts)),
        rows=rows,
        sent=sink.sent + rows,
    )


def _check_behind(topic: str, partition: int, end: int, new_end: int) -> None:
    if new_end <= end:
        raise AnotherTopic(
            f"messages just sent to {topic}[{partition}] end at offset {new_end}, but earlier ones ended at {end}: "
            "the topic was deleted and created again",
            hint="run the app again: its message says how to continue",
        )
