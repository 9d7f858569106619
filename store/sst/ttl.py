"""Time to live: by which clock rows expire, and what a manifest says of rows that have.

A row gets the time at which it expires (`_expires_at`) when it is written, and keeps it. It is gone
for everybody whose clock has reached it, so what a version holds depends on its SSTs and on a clock, and the clock is
in the version too (`Manifest.clock_ms`): whoever looks at a version again sees the same rows. Clocks never go back, so
a row that is expired at one version is expired at all later ones, and compaction may forget it.

There are two kinds of clock. *By write time* it is the wall clock at the start of the batch. *By event time* it is the
largest event time that the table was given, so it stands still while nothing comes, and an old topic that is read again
expires nothing before its own time. A table whose time to live was turned off keeps its clock where it stood: nothing
more expires, and nothing comes back.

Pure, and without numpy (`status` is quick); `expiry` looks at rows.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import Refused
from ..versions.manifest import Manifest, Sst, Table, Ttl
from .sorted_runs import touched

BEFORE_ALL_MS = -(1 << 63)
"""The clock of a table by event time that has not seen one yet."""

_MOSTLY = 0.5
"""Runs of which this part is expired are rewritten: at most as many bytes are written as are freed."""


def by_write_time(ttl: Ttl | None) -> bool:
    """Whether rows expire as the wall clock goes on, also while nothing is written."""
    return ttl is not None and ttl.ms > 0 and not ttl.column


def batch_clock_ms(head: Manifest, now_ms: int) -> int:
    """The clock by which the batch after `head` looks its keys up.

    `now_ms` is the wall clock at the batch's start; to decide again as a batch did, its version's `clock_ms`.
    """
    if head.table is not None and by_write_time(head.table.ttl):
        return max(now_ms, head.clock_ms)
    return head.clock_ms


def first_clock_ms(before: Table | None, table: Table | None, clock_ms: int) -> int:
    """The clock of a claim: it goes on from the head's, `clock_ms`, unless the table had no time to live before."""
    had = before is not None and before.ttl is not None
    if had or table is None or table.ttl is None:
        return clock_ms
    return BEFORE_ALL_MS if table.ttl.column else clock_ms


def seen_clock_ms(manifest: Manifest, at_ms: int) -> int:
    """The clock by which somebody who looks at `at_ms` sees a version that was the newest then.

    `at_ms` is 0 for who asks what the version holds, whenever that is asked.
    """
    # By write time a version's rows go on expiring until the next one is committed.
    return batch_clock_ms(manifest, at_ms) if at_ms else manifest.clock_ms


def agree(stage: str, stored: Ttl | None, declared: Ttl | None) -> Ttl | None:
    """The time to live of a table that there is already, which may be turned on, off, or to another length.

    Raises `Refused` where rows would expire by another clock than they were stamped for.
    """
    if stored is None:
        return declared
    if declared is None:
        return replace(stored, ms=0)
    if stored.gone:
        raise Refused(
            f"stage {stage!r}: its rows were to expire by a column that it has no more, and older ones still have such "
            "times: they would expire by another clock",
            hint="leave ttl out, or give the changed stage a new name",
        )
    if declared.column != stored.column:
        before, now = (f"column {ttl.column!r}" if ttl.column else "write time" for ttl in (stored, declared))
        raise Refused(
            f"stage {stage!r}: its rows expire by {now} now, but the stored ones by {before}",
            hint="leave ttl_by as it was, or give the changed stage a new name",
        )
    return declared


def may_have_expired(sst: Sst, clock_ms: int) -> bool:
    """Whether any row of the SST is expired."""
    return sst.expiring > 0 and sst.expires_min <= clock_ms


def shows_nothing(sst: Sst, clock_ms: int) -> bool:
    """Whether no row of the SST is to be seen: each is a tombstone or expired."""
    expired = not sst.expiring or sst.expires_max <= clock_ms
    return expired and sst.expiring + sst.tombstones >= sst.rows


def shown_rows(sst: Sst, clock_ms: int) -> tuple[str, int]:
    """Equal for two clocks when the same rows of the SST are expired by both, as far as its manifest says."""
    if not may_have_expired(sst, clock_ms):
        return sst.object, 0
    return sst.object, 1 + min(clock_ms, sst.expires_max) - sst.expires_min


def expired_suffix(runs: Sequence[Sequence[Sst]], clock_ms: int) -> int | None:
    """From which of a partition's runs (newest first) on to the oldest most bytes are of expired rows.

    The widest such row of runs, or None: these are worth a merge of their own, whatever their number and sizes. Only
    a merge that includes the oldest run forgets expired rows.
    """
    start, total, expired = None, 0.0, 0.0
    for position in reversed(range(len(runs))):
        for sst in runs[position]:
            total += sst.bytes
            if may_have_expired(sst, clock_ms):
                # Their times are taken as spread evenly.
                span = sst.expires_max - sst.expires_min
                reached = 1.0 if clock_ms >= sst.expires_max else (clock_ms - sst.expires_min) / span
                expired += sst.bytes * (reached * sst.expiring / sst.rows)
        if expired >= _MOSTLY * total:
            start = position
    return start


def without_expired_suffix(inputs: Sequence[Sst], partitions: int, clock_ms: int) -> tuple[Sst, ...]:
    """The inputs of a merge (newest first, the oldest run among them) that have to be read.

    The oldest of which nothing is to be seen are not: nothing lies under them that they could hide. One that reaches
    beyond the partition is, for there something may.
    """
    end = len(inputs)
    while end and shows_nothing(inputs[end - 1], clock_ms) and len(touched(inputs[end - 1], partitions)) == 1:
        end -= 1
    return tuple(inputs[:end])
