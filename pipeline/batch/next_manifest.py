"""The manifest that a batch commits, from the version it was built on and what its tasks report. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

from msgspec.structs import replace

from ...fold import event_time as progress
from ...fold.event_time import Due, Watermark
from ...fold.kinds.kind import DueBy
from ...store.compaction import plan
from ...store.compaction.plan import Done
from ...store.versions import commit
from ...store.versions.manifest import Aside, Input, Manifest, Output, Sink
from ..source.planner import Position
from .snapshot_events import Outcome
from .task import Result


def next_manifest(
    base: Manifest,
    positions: Mapping[str, Position],
    outcome: Outcome,
    results: Sequence[Result],
    *,
    markers: Mapping[tuple[str, str], Sequence[int]],
    merges: Sequence[Done],
    watermarks: Sequence[Watermark] = (),
    timed: Collection[str] = (),
    bound_ms: int | None = None,
    due_by: DueBy | None = None,
    due: Due | None = None,
    behind_ms: int = 0,
    clock_ms: int,
    now_ms: int,
    duration_ms: int,
    aside: Mapping[str, Aside] = MappingProxyType({}),
) -> Manifest:
    """The version after `base`: what the batch read, wrote and sent.

    Args:
        base: The version that the batch was computed on.
        positions: Where the batch ends on each input, by declared name.
        outcome: What the batch means to snapshots under way.
        results: One for each task that had rows.
        markers: The offsets, by Kafka partition, of the markers that were written behind the rows, by snapshot and
            channel, in the order in which they were written.
        merges: Finished compactions, to be put in the place of their inputs; those that do not fit are left out.
        watermarks: Those of the stage's own.
        timed: The inputs that have one.
        bound_ms: Later event times were too far ahead of the clock for the tasks; None where there were none.
        due_by: What passes the time at which rows fall due; None for a table whose rows never do.
        due: Up to when they did, likewise.
        behind_ms: How much earlier than the watermark the times may be of what is emitted.
        clock_ms: By which the tasks looked keys up, in ms since 1970.
        now_ms: The wall clock, in ms since 1970.
        duration_ms: From the batch's start until now.
        aside: Tables beside the stage's own that the batch changed.

    Raises:
        Refused: The stage is retired.
    """
    draft = commit.successor(
        base, kind="batch", epoch=base.epoch, writer=base.writer, by=base.by, now_ms=now_ms, duration_ms=duration_ms
    )
    ssts = (*base.ssts, *(sst for result in results for sst in result.ssts))
    seen = [result.seen for result in results]
    own = {name for one in watermarks for name in one.inputs}
    read = {name: _read(base.inputs[name], end, own=name in own) for name, end in positions.items()}
    inputs = progress.advanced(draft.inputs | read, watermarks, seen)
    at_ms = progress.watermark_ms(inputs, timed, base.watermark_ms)
    late = sum(result.late for result in results)
    event_time = progress.after(base.event_time, at_ms, seen, late=late, bound_ms=bound_ms)
    if due_by is not None and due is not None:
        next_due = (result.next_due_ms for result in results)
        event_time = progress.with_due(event_time, base.event_time, due_by, due, next_due, behind_ms)
    return replace(
        draft,
        inputs=inputs,
        event_time=event_time,
        outputs={name: _sent(name, output, results, markers) for name, output in base.outputs.items()},
        sinks={name: _put_out(name, sink, results) for name, sink in base.sinks.items()},
        clock_ms=max([clock_ms, *(result.event_ms for result in results if result.event_ms is not None)]),
        ssts=plan.apply(ssts, merges),
        aside={**draft.aside, **aside},
        recorded=outcome.recorded,
        awaited=outcome.awaited,
        captured=outcome.captured,
    )


def has_rows(at: Input, end: Position) -> bool:
    """Whether there is a row between an input's place and the end of a batch."""
    if at.upstream and at.passed:
        # A marker has an offset too, and no row.
        return sum(end.consumed) > sum(at.passed)
    return _count(at.offsets, end.offsets) > 0


def _read(at: Input, end: Position, *, own: bool) -> Input:
    """The input after a batch that ended there; with a watermark of the stage's `own`, upstream's does not count."""
    if not at.upstream:
        return replace(at, offsets=end.offsets, rows=_count(at.offsets, end.offsets))
    # Where the reader began in the middle of the channel, nobody knows what was before.
    rows = _count(at.passed, end.consumed) if at.passed else 0
    consumed = tuple(passed - lost for passed, lost in zip_longest(end.consumed, at.lost, fillvalue=0))
    watermark_ms = at.watermark_ms if own else progress.later(at.watermark_ms, end.watermark_ms)
    return replace(
        at, offsets=end.offsets, version=end.version, rows=rows, consumed=consumed, watermark_ms=watermark_ms
    )


def _sent(
    name: str, before: Output, results: Sequence[Result], markers: Mapping[tuple[str, str], Sequence[int]]
) -> Output:
    """The output with the rows that the tasks sent, and the markers behind them."""
    ends, sent = list(before.ends), list(before.sent)
    for result in results:
        for partition, written in result.sent.get(name, {}).items():
            ends[partition] = max(ends[partition], written.end)
            sent[partition] += written.rows
    mine = {snapshot: tuple(offsets) for (snapshot, channel), offsets in markers.items() if channel == name}
    for offsets in mine.values():
        ends = [offset + 1 for offset in offsets]
    return replace(
        before,
        ends=tuple(ends),
        attempts=tuple(sorted(result.attempt for result in results if name in result.sent)),
        rows=sum(sent) - sum(before.sent),
        markers=mine,
        sent=tuple(sent),
    )


def _put_out(name: str, before: Sink, results: Sequence[Result]) -> Sink:
    """The sink with the rows that the tasks wrote for it."""
    mine = [(result.attempt, part) for result in results for part in result.sent.get(name, {}).values()]
    rows = sum(part.rows for _, part in mine)
    return replace(
        before,
        end=max([before.end, *(part.end for _, part in mine)]),
        attempts=tuple(sorted(attempt for attempt, _ in mine)),
        rows=rows,
        sent=before.sent + rows,
    )


def _count(before: Sequence[int], after: Sequence[int]) -> int:
    """What lies between; partitions that the topic got since begin at 0."""
    return sum(after) - sum(before)
