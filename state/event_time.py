"""How far event time has come: what tasks see of it in their rows, which rows are late, which fall due.

A stage's watermark is the smallest of its inputs'. That of rows with `withWatermark` is the largest event time that was
read, less the delay; that of another channel is the watermark of the upstream version that was read. None of them ever
falls, and all are in the manifest: a restart, a clone and a replay go on from there.

A row is late, as Spark has it for `groupBy(window)` and for joins, when its window had ended, or its own time had
passed, by the watermark that the version before left. And version N + 1 lets those rows fall due whose time lies after
what N says (`EventTime.due_ms`) and up to the watermark that N left; by the clock, up to the batch's own.
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

from ..store.sst.expiry import event_ms
from ..store.sst.ttl import BEFORE_ALL_MS
from ..store.versions.limits import YEAR_1_MS
from ..store.versions.manifest import EventTime, Input
from .kinds.kind import BatchMoment, DueBy
from .multi_input import TAG

AT, AHEAD = "_slackwater_at", "_slackwater_ahead"
"""Columns of rows that stand for several: their largest event time within the bound, and how many are beyond."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark as a batch has it."""

    columns: tuple[str, ...]
    """Of the batch's rows, tagged as they are (`multi_input`), those that are an event time."""
    delay_ms: int
    """How much later than the newest rows others may come."""
    inputs: tuple[str, ...]
    part: int | None = None
    """The number of the DataFrame whose rows alone count, where others have the column, too; None elsewhere."""


class Seen(msgspec.Struct, frozen=True):
    """What a task saw of its rows' event times."""

    latest_ms: tuple[int | None, ...] = ()
    """Of each watermark, the largest event time that is not too far ahead of the clock; None where there is none."""
    ahead: int = 0
    """Rows whose event time is."""


@dataclass(frozen=True, slots=True)
class Times:
    """The event times that a task searches its rows for."""

    watermarks: tuple[Watermark, ...] = ()
    bound_ms: int = 0
    """What is later is too far ahead of the clock."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that it takes, each once."""
        tags = (TAG for one in self.watermarks if one.part is not None)
        return tuple(dict.fromkeys(chain(*(one.columns for one in self.watermarks), tags)))

    def seen(self, rows: pa.Table) -> Seen:
        """What these rows show."""
        columns = [[(name, one.part) for name in one.columns] for one in self.watermarks]
        ahead = pc.sum(rows[AHEAD]).as_py() or 0 if AHEAD in rows.column_names else 0
        each: dict[tuple[str, int | None], int | None] = {}
        for name, part in dict.fromkeys(chain.from_iterable(columns)):
            # Rows of one of the tagged DataFrames, where others have the column, too.
            times = event_ms(rows[name] if part is None else rows[name].filter(pc.equal(rows[TAG], part)))
            newest = pc.max(times).as_py()
            if newest is not None and newest > self.bound_ms:
                within = times.filter(pc.less_equal(times, self.bound_ms))
                newest = pc.max(within).as_py()
                ahead += len(times) - times.null_count - len(within)
            each[name, part] = newest
        latest = (max((at for one in ones if (at := each[one]) is not None), default=None) for ones in columns)
        return Seen(tuple(latest), ahead)


def advanced(inputs: Mapping[str, Input], watermarks: Sequence[Watermark], seen: Iterable[Seen]) -> dict[str, Input]:
    """The inputs after a batch in which tasks saw this; those of channels say already what upstream says."""
    moved, found = dict(inputs), list(seen)
    for number, watermark in enumerate(watermarks):
        times = [at for one in found if (at := one.latest_ms[number]) is not None]
        for name in watermark.inputs if times else ():
            at_ms = max(YEAR_1_MS, max(times) - watermark.delay_ms)
            moved[name] = replace(moved[name], watermark_ms=later(moved[name].watermark_ms, at_ms))
    return moved


def watermark_ms(inputs: Mapping[str, Input], timed: Collection[str], before_ms: int | None) -> int | None:
    """The watermark of a stage whose inputs of these names have one, and which had another before."""
    each = [inputs[name].watermark_ms for name in sorted(timed)]
    known = [at for at in each if at is not None]
    return later(before_ms, min(known)) if known and len(known) == len(each) else before_ms


def later(before_ms: int | None, now_ms: int | None) -> int | None:
    """The later of two times of which either may not be known."""
    return max((at for at in (before_ms, now_ms) if at is not None), default=None)


def after(
    before: EventTime | None, at_ms: int | None, seen: Iterable[Seen], *, late: int = 0, bound_ms: int | None = None
) -> EventTime | None:
    """What a version says with the watermark `at_ms`, from what the one before says; None where there never was any.

    `seen` is what its tasks saw, and `late` counts rows that were left out of the table. Times after `bound_ms` were
    too far ahead of the clock; None where it read no rows.
    """
    ahead = sum(one.ahead for one in seen)
    if before is None and at_ms is None and not ahead and not late:
        return None
    known = before or EventTime()
    return EventTime(at_ms, ahead, known.ahead_total + ahead, late, known.late_total + late, bound_ms)


def due_after(base: EventTime | None, by: DueBy, wall_ms: int | None) -> "Due":
    """What falls due with the batch after a version that says this; `wall_ms` is the clock at the batch's start."""
    known = base or EventTime()
    until_ms = later(known.due_ms, wall_ms if by == "clock" else known.watermark_ms)
    pending = until_ms is not None and known.next_due_ms is not None and known.next_due_ms <= until_ms
    return Due(known.due_ms, until_ms, pending, wall_ms, known.watermark_ms)


@dataclass(frozen=True, slots=True)
class Due:
    """What falls due with a batch."""

    after_ms: int | None
    """Up to when rows have fallen due before; None for never."""
    until_ms: int | None
    """Up to when they do now; None where nobody knows yet how late it is."""
    pending: bool
    """Whether a row may fall due in between."""
    wall_ms: int | None = None
    """The wall clock at the batch's start; None where no batch is."""
    watermark_ms: int | None = None
    """The watermark of the version before it; None where there is none."""

    @property
    def moment(self) -> BatchMoment:
        """When the batch is, for its state."""
        return BatchMoment(self.until_ms, self.wall_ms, self.watermark_ms)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last millisecond in which rows fall due now; to be asked where `pending`."""
        assert self.until_ms is not None  # noqa: S101  nothing is pending else
        return BEFORE_ALL_MS if self.after_ms is None else self.after_ms + 1, self.until_ms


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The times that one batch goes by."""

    clock_ms: int
    """By which rows expire."""
    bound_ms: int = 0
    """Events that are later are too far ahead of the clock."""
    due: Due | None = None
    """Up to when rows fall due; None where none ever does."""

    @property
    def pending(self) -> bool:
        """Whether a row may fall due."""
        return self.due is not None and self.due.pending


@dataclass(frozen=True, slots=True)
class TimeRules:
    """How a stage keeps event time."""

    watermarks: Sequence[Watermark] = ()
    timed: Collection[str] = ()
    """The inputs that have one, so or from the stage that writes them."""
    due_by: DueBy | None = None
    """What passes the time at which rows of its table fall due; None where they never do."""
    behind_ms: int = 0
    """How much earlier than the watermark the times may be of what is emitted."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Which rows have no place in a table any more, or not yet."""

    columns: tuple[str, ...]
    """Those of the rows by which they are late: windows of time (structs of `start` and `end`), or times."""
    watermark_ms: int | None
    """What ends by then is over; None where no watermark is known yet."""
    bound_ms: int
    """What begins later is too far ahead of the clock."""

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """bool[rows]: whether each is left out. Rows without a window or time are not."""
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
