"""The manifest that a batch commits, from the version it was built on and what its tasks report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec
from msgspec.structs import replace

from ..errors import AnotherTopic
from ..store.compaction import plan
from ..store.compaction.plan import Done
from ..store.objects.stats import Stats
from ..store.versions import commit
from ..store.versions.manifest import EventTime, Input, Manifest, Output, SideTable, Sink, Span, Sst
from . import event_time as progress
from .event_time import BatchTimes, Seen, TimeRules
from .failing import StateFailure
from .records import Position


class SentTo(msgspec.Struct, frozen=True):
    """What an attempt wrote to one Kafka partition."""

    rows: int
    end: int
    """The offset after its last message."""


class Unsent(msgspec.Struct, frozen=True):
    """A record that is larger than a sink's topic takes, and was left out."""

    sink: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    why: str


class TaskReport(msgspec.Struct, frozen=True):
    """One task attempt's report to the driver."""

    attempt: str
    rows_in: int
    """Rows of the stage's function, also where they came added up."""
    ssts: tuple[Sst, ...] = ()
    sent: dict[str, dict[int, SentTo]] = {}
    """What this attempt wrote, by channel and Kafka partition."""
    stats: Stats = Stats()
    ranged: tuple[str, ...] = ()
    """SST objects of which the worker reads byte ranges, as its machine does not have them."""
    event_ms: int | None = None
    """The largest event time of the rows that it wrote, for a table whose rows expire by event time."""
    seen: Seen = Seen()
    """What it saw of the event times that it was asked to look for."""
    late: int = 0
    """Rows that it left out of the table, since they were late."""
    next_due_ms: int | None = None
    """When the next row falls due at the earliest of those that it wrote or looked at; None for never."""
    partials: int = 0
    """Rows that crossed the shuffle for it, where they were added up before; see `pre_aggregation`."""
    unsent: tuple[Unsent, ...] = ()
    """Records that it did not send, as a sink's topic does not take them."""
    failed: StateFailure | None = None
    """Where the state's function failed and the stage can do without some records: for which it did. Told as a report
    and not raised, it leaves Spark's Python workers alive, and with them what they know of Kafka."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the protocol has one commit do: `recorded`, `awaited` and `captured` as in the manifest to commit."""

    markers: tuple[tuple[str, str], ...]
    """Snapshot and channel of each marker to write behind the batch's rows, in this order."""
    recorded: dict[str, int]
    awaited: dict[str, tuple[str, ...]]
    captured: dict[str, dict[str, Span]]
    changed: bool
    """Whether it commits even if the batch has no rows."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a batch wrote."""

    results: Sequence[TaskReport] = ()
    """One for each task that had rows."""
    markers: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """The offsets, by Kafka partition, of the markers that were written behind the rows, by snapshot and channel, in
    the order in which they were written."""
    side_tables: Mapping[str, SideTable] = field(default_factory=dict)
    """Tables beside the stage's own that the batch changed."""
    traceparents: tuple[str, ...] = ()
    """Where the records that it left out are traced, by their headers."""
    read: Mapping[str, int] | None = None
    """By user's topic as declared, how many records were read; None where nobody counted: then as many as offsets."""


def next_version(
    base: Manifest,
    positions: Mapping[str, Position],
    outcome: Outcome,
    written: Written,
    merges: Sequence[Done],
    rules: TimeRules,
    times: BatchTimes,
    *,
    with_rows: bool = True,
    now_ms: int,
    duration_ms: int,
) -> Manifest:
    """The version after `base`, on which the batch was computed: what it read, wrote and sent.

    `positions` says where it ends on each input, by declared name; empty where nothing was read. Finished `merges` are
    put in the place of their inputs; those that do not fit are left out. The tasks went by `times`, and `with_rows`
    says whether they read any. `now_ms` is the wall clock, in ms since 1970, `duration_ms` the time since it began.

    Raises `Refused` where the stage is retired, and `AnotherTopic` where rows came to lie before those that were sent
    earlier.
    """
    draft = commit.successor(
        base, kind="batch", epoch=base.epoch, writer=base.writer, by=base.by, now_ms=now_ms, duration_ms=duration_ms
    )
    results, markers = written.results, written.markers
    ssts = (*base.ssts, *(sst for result in results for sst in result.ssts))
    own = {name for one in rules.watermarks for name in one.inputs}
    counts = written.read or {}
    read = {name: _read(base.inputs[name], end, counts.get(name), own=name in own) for name, end in positions.items()}
    inputs = progress.advanced(draft.inputs | read, rules.watermarks, [result.seen for result in results])
    return replace(
        draft,
        inputs=inputs,
        event_time=_event_time(base, inputs, results, rules, times, times.bound_ms if with_rows else None),
        outputs={name: _sent(name, output, results, markers) for name, output in base.outputs.items()},
        sinks={name: _put_out(name, sink, results) for name, sink in base.sinks.items()},
        clock_ms=max([times.clock_ms, *(result.event_ms for result in results if result.event_ms is not None)]),
        ssts=plan.apply(ssts, merges),
        side_tables={**draft.side_tables, **written.side_tables},
        recorded=outcome.recorded,
        awaited=outcome.awaited,
        captured=outcome.captured,
    )


def _event_time(
    base: Manifest,
    inputs: Mapping[str, Input],
    results: Sequence[TaskReport],
    rules: TimeRules,
    times: BatchTimes,
    bound_ms: int | None,
) -> EventTime | None:
    at_ms = progress.watermark_ms(inputs, rules.timed, base.watermark_ms)
    seen, late = [result.seen for result in results], sum(result.late for result in results)
    found = progress.after(base.event_time, at_ms, seen, late=late, bound_ms=bound_ms)
    if rules.due_by is None or times.due is None:
        return found
    due_times = [at for result in results if (at := result.next_due_ms) is not None]
    if not times.due.pending and base.event_time is not None and base.event_time.next_due_ms is not None:
        # Nobody searched the table.
        due_times.append(base.event_time.next_due_ms)
    until_ms, next_ms, by_clock = times.due.until_ms, min(due_times, default=None), rules.due_by == "clock"
    known = found or EventTime()
    made = replace(
        known,
        due_ms=until_ms,
        next_due_ms=next_ms,
        by_clock=by_clock,
        behind_ms=rules.behind_ms,
        wall_ms=times.due.wall_ms,
    )
    if by_clock or made.owed:
        return made
    # Nothing falls due up to the new watermark, so that is how far it has come already.
    return replace(made, due_ms=progress.later(until_ms, made.watermark_ms))


def has_rows(at: Input, end: Position) -> bool:
    """Whether there is a row between an input's place and the end of a batch."""
    if at.upstream and at.passed:
        # A marker has an offset too, and no row.
        return sum(end.consumed) > sum(at.passed)
    return sum(end.offsets) > sum(at.offsets)


def _read(at: Input, end: Position, count: int | None, *, own: bool) -> Input:
    """The input after a batch that ended there; with a watermark of the stage's `own`, upstream's does not count.

    Of a user's topic, `count` is how many records were read. Marks of transactions have offsets too, and so has what
    was aborted or compacted away.
    """
    if not at.upstream:
        # Partitions that the topic got since begin at 0.
        offsets = sum(end.offsets) - sum(at.offsets)
        return replace(at, offsets=end.offsets, rows=offsets if count is None else min(count, offsets))
    # Where the reader began in the middle of the channel, nobody knows what was before.
    rows = sum(end.consumed) - sum(at.passed) if at.passed else 0
    consumed = tuple(passed - lost for passed, lost in zip_longest(end.consumed, at.lost, fillvalue=0))
    at_ms = at.watermark_ms if own else progress.later(at.watermark_ms, end.watermark_ms)
    return replace(at, offsets=end.offsets, version=end.version, rows=rows, consumed=consumed, watermark_ms=at_ms)


def _sent(
    name: str, before: Output, results: Sequence[TaskReport], markers: Mapping[tuple[str, str], Sequence[int]]
) -> Output:
    ends, sent = list(before.ends), list(before.sent)
    for result in results:
        for partition, written in result.sent.get(name, {}).items():
            _check_behind(before.topic, partition, before.ends[partition], written.end)
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


def _put_out(name: str, before: Sink, results: Sequence[TaskReport]) -> Sink:
    mine = [(result.attempt, part) for result in results for part in result.sent.get(name, {}).values()]
    for _, part in mine:
        _check_behind(before.topic, 0, before.end, part.end)
    rows = sum(part.rows for _, part in mine)
    return replace(
        before,
        end=max([before.end, *(part.end for _, part in mine)]),
        attempts=tuple(sorted(attempt for attempt, _ in mine)),
        rows=rows,
        sent=before.sent + rows,
    )


def _check_behind(topic: str, partition: int, end: int, new_end: int) -> None:
    if new_end <= end:
        raise AnotherTopic(
            f"what was sent to {topic}[{partition}] ends at offset {new_end}, and what was sent before ended at {end}: "
            "the topic was deleted and made again",
            hint="run the app again: it says what is there, and the ways on",
        )
