"""Up to when rows fall due with a batch, and what its version says of it. Pure.

Version N + 1 lets those rows fall due whose time lies after what N says (`EventTime.due_ms`) and up to the watermark
that N left. So what falls due follows from versions alone, as late rows do. By the clock, it is the batch's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ..store.versions.manifest import EventTime
from .event_time import later
from .falling import Falling
from .kinds.kind import DueBy


def falling(base: EventTime | None, by: DueBy, clock_ms: int | None) -> Falling:
    """What falls due with the batch after a version that says this; `clock_ms` is that of the batch."""
    known = base or EventTime()
    until_ms = later(known.due_ms, clock_ms if by == "clock" else known.watermark_ms)
    pending = until_ms is not None and known.next_due_ms is not None and known.next_due_ms <= until_ms
    return Falling(known.due_ms, until_ms, pending)


def after(
    now: EventTime | None,
    base: EventTime | None,
    by: DueBy,
    fell: Falling,
    next_due: Iterable[int | None],
    behind_ms: int = 0,
) -> EventTime:
    """What a version says, from the rest of that.

    Args:
        now: The rest.
        base: What the version before said.
        by: What passes the time of rows.
        fell: What fell due.
        next_due: When rows fall due next, as each task found it.
        behind_ms: How much earlier than the watermark the times may be of what is emitted.
    """
    known = now or EventTime()
    times = [at for at in next_due if at is not None]
    if not fell.pending and base is not None and base.next_due_ms is not None:
        # Nobody looked at the table.
        times.append(base.next_due_ms)
    next_ms = min(times, default=None)
    made = replace(known, due_ms=fell.until_ms, next_due_ms=next_ms, by_clock=by == "clock", behind_ms=behind_ms)
    if by == "clock" or made.owed:
        return made
    # Nothing falls due up to the new watermark, so that is how far it has come already.
    return replace(made, due_ms=later(fell.until_ms, made.watermark_ms))
