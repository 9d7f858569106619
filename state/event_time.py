"""Event time of a stage: watermarks, late rows, and rows that fall due.

A stage's watermark is the smallest watermark of its inputs. If the rows of an input have `withWatermark`, the watermark
of the input is the largest event time read, less the delay. Otherwise a channel has the watermark of the last upstream
version that was read. Watermarks never decrease. The manifest stores all watermarks, so a restart, a clone and a replay
continue from them.

As in Spark's `groupBy(window)` and joins, a row is late if the previous version's watermark has passed the end of the
row's window, or the row's own time. In version N + 1, a row falls due if its due time is after version N's
`EventTime.due_ms` and not after version N's watermark. If rows fall due by the clock, the batch's time is used instead
of the watermark.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ..store.sst.schema import event_ms
from ..store.sst.ttl import BEFORE_FIRST_EVENT_MS
from ..store.versions.limits import YEAR_1_MS
from ..store.versions.manifest import EventTime, Input
from .kinds.kind import BatchMoment, DueBy
from .multi_input import INPUT_COLUMN

MAX_EVENT_TIME, AHEAD_COUNT = "_slackwater_at", "_slackwater_ahead"
"""Columns of pre-aggregated rows: largest plausible event time, and count of later times."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Watermark of some inputs, as the program declares it: event time columns and delay."""

    columns: tuple[str, ...]
    delay_ms: int
    inputs: tuple[str, ...]
    part: int | None = None
    """Index of the DataFrame to which the watermark applies, if several have the event time column; else None."""


class SeenTimes(msgspec.Struct, frozen=True):
    """Event times in the rows of one task: the latest time by watermark, and the number of times too far ahead."""

    latest_ms: tuple[int | None, ...] = ()
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class EventTimeScan:
    """Scan of a task's rows for the latest event times. Times after `bound_ms` are too far ahead, and only counted."""

    watermarks: tuple[Watermark, ...] = ()
    bound_ms: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        tags = (INPUT_COLUMN for watermark in self.watermarks if watermark.part is not None)
        return tuple(dict.fromkeys(chain(*(watermark.columns for watermark in self.watermarks), tags)))

    def scan(self, rows: pa.Table) -> SeenTimes:
        columns = [[(name, watermark.part) for name in watermark.columns] for watermark in self.watermarks]
        ahead = pc.sum(rows[AHEAD_COUNT]).as_py() or 0 if AHEAD_COUNT in rows.column_names else 0
        newest_by_column: dict[tuple[str, int | None], int | None] = {}
        for name, part in dict.fromkeys(chain.from_iterable(columns)):
            # Only the rows of the watermark's DataFrame, if other DataFrames also have the column.
            times = event_ms(rows[name] if part is None else rows[name].filter(pc.equal(rows[INPUT_COLUMN], part)))
            newest = pc.max(times).as_py()
            if newest is not None and newest > self.bound_ms:
                within = times.filter(pc.less_equal(times, self.bound_ms))
                newest = pc.max(within).as_py()
                ahead += len(times) - times.null_count - len(within)
            newest_by_column[name, part] = newest
        latest = (
            max((time_ms for key in keys if (time_ms := newest_by_column[key]) is not None), default=None)
            for keys in columns
        )
        return SeenTimes(tuple(latest), ahead)


def advance_watermarks(
    inputs: Mapping[str, Input], watermarks: Sequence[Watermark], seen: Iterable[SeenTimes]
) -> dict[str, Input]:
    """Return the inputs, with declared watermarks advanced to the event times in a batch's rows."""
    moved, reports = dict(inputs), list(seen)
    for number, watermark in enumerate(watermarks):
        times = [time_ms for report in reports if (time_ms := report.latest_ms[number]) is not None]
        for name in watermark.inputs if times else ():
            at_ms = max(YEAR_1_MS, max(times) - watermark.delay_ms)
            moved[name] = replace(moved[name], watermark_ms=later_time(moved[name].watermark_ms, at_ms))
    return moved


def stage_watermark_ms(inputs: Mapping[str, Input], timed: Collection[str], before_ms: int | None) -> int | None:
    """Return a stage's watermark: the smallest of its `timed` inputs, at least `before_ms`; None if unknown."""
    watermarks = [inputs[name].watermark_ms for name in sorted(timed)]
    present = [at for at in watermarks if at is not None]
    return later_time(before_ms, min(present)) if present and len(present) == len(watermarks) else before_ms


def later_time(before_ms: int | None, now_ms: int | None) -> int | None:
    return max((at for at in (before_ms, now_ms) if at is not None), default=None)


def next_event_time(
    previous: EventTime | None,
    at_ms: int | None,
    seen: Iterable[SeenTimes],
    *,
    late: int = 0,
    bound_ms: int | None = None,
) -> EventTime | None:
    """Return the `EventTime` of the next version; None for an app without event time.

    `previous` is the `EventTime` of the last version, and `at_ms` the watermark of the next version. `seen` comes from
    the tasks of the batch. `late` is the number of rows left out of the table. Times after `bound_ms` were too far
    ahead of the clock; `bound_ms` is None if the batch read no rows.
    """
    ahead = sum(report.ahead for report in seen)
    if previous is None and at_ms is None and not ahead and not late:
        return None
    base = previous or EventTime()
    return EventTime(at_ms, ahead, base.ahead_total + ahead, late, base.late_total + late, bound_ms)


def due_span_after(base: EventTime | None, by: DueBy, wall_ms: int | None) -> "Due":
    """Return a batch's range of due times: stored rows in the range fall due. `wall_ms` is the batch's wall clock."""
    event_time = base or EventTime()
    until_ms = later_time(event_time.due_ms, wall_ms if by == "clock" else event_time.watermark_ms)
    pending = until_ms is not None and event_time.next_due_ms is not None and event_time.next_due_ms <= until_ms
    return Due(until_ms, wall_ms, event_time.watermark_ms, event_time.due_ms, pending)


@dataclass(frozen=True, slots=True)
class Due(BatchMoment):
    """Times of a batch, with its range of due times. `pending` is True if a stored row may fall due."""

    after_ms: int | None = None
    pending: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """Earliest and latest due time (ms since 1970) of rows that fall due in the batch. Call only if `pending`."""
        assert self.until_ms is not None  # noqa: S101  nothing is pending else
        return BEFORE_FIRST_EVENT_MS if self.after_ms is None else self.after_ms + 1, self.until_ms


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Clock, latest plausible event time and due times of one batch."""

    clock_ms: int
    bound_ms: int = 0
    due: Due | None = None
    """Range of due times of the batch; None for a table whose rows never fall due."""

    @property
    def pending(self) -> bool:
        return self.due is not None and self.due.pending


@dataclass(frozen=True, slots=True)
class TimeRules:
    """Event time rules of a stage: watermarks, inputs with event time, and the clock by which rows fall due."""

    watermarks: Sequence[Watermark] = ()
    timed: Collection[str] = ()
    due_by: DueBy | None = None
    behind_ms: int = 0
    """Largest lag of an emitted row's event time behind the watermark, in ms."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Test for rows that are too late for a table, or too far ahead of the clock."""

    columns: tuple[str, ...]
    """Columns to test: time windows (structs of `start` and `end`), or times."""
    watermark_ms: int | None
    bound_ms: int

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return bool[rows]: True for rows that are late or too far ahead; False if all columns to test are null."""
        masks = []
        for column in (rows[name] for name in self.columns):
            edges = (
                [pc.struct_field(column, name) for name in ("start", "end")]
                if pa.types.is_struct(column.type)
                else [column] * 2
            )
            start, end = (edge.cast(pa.int64()) for edge in edges)
            out = pc.greater(start, self.bound_ms * 1000)
            if self.watermark_ms is not None:
                out = pc.or_(out, pc.less_equal(end, self.watermark_ms * 1000))
            masks.append(np.asarray(pc.fill_null(out, False)))
        return np.asarray(np.logical_or.reduce(masks))
