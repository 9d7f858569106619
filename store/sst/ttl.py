"""Time to live: the clocks by which rows expire, and checks for expired rows that need only a manifest.

A row gets its expiry time (`_expires_at`) when it is written, and keeps it. The row is invisible to readers whose clock
has reached this time. So the content of a version depends on its SSTs and on a clock. The version stores the clock as
well (`Manifest.clock_ms`), so every read of the version returns the same rows. Clocks never go back, so a row that is
expired at one version is expired at all later versions, and compaction may drop it.

There are two kinds of clock. *By write time* it is the wall clock at the start of the batch. *By event time* it is the
largest event time in the table: this clock does not advance without input, and replaying an old topic expires no row
too early. After the time to live is turned off, the table keeps its last clock: no further rows expire, and no expired
row becomes visible.

Pure functions without numpy (`status` must start quickly); `schema` works on rows.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ...errors import Refused
from ..versions.entries.ssts import Sst
from ..versions.manifest import Manifest, Table, Ttl

BEFORE_FIRST_EVENT_MS = -(1 << 63)
"""Clock of a table that expires by event time, before the first event."""

_MIN_EXPIRED_SHARE = 0.5
"""Share of expired bytes at which runs are rewritten: a rewrite then frees at least as many bytes as it writes."""


def expires_by_write_time(ttl: Ttl | None) -> bool:
    return ttl is not None and ttl.ms > 0 and not ttl.column


def batch_clock_ms(head: Manifest, now_ms: int) -> int:
    """Return the clock for the look-ups of the batch after `head`.

    `now_ms` is the wall clock at the batch's start. To repeat an earlier batch, pass the `clock_ms` of its version.
    """
    if head.table is not None and expires_by_write_time(head.table.ttl):
        return max(now_ms, head.clock_ms)
    return head.clock_ms


def claim_clock_ms(previous: Table | None, table: Table | None, clock_ms: int) -> int:
    """Return the clock of a claim: `clock_ms`, or `BEFORE_FIRST_EVENT_MS` if event-time expiry is new."""
    had = previous is not None and previous.ttl is not None
    if had or table is None or table.ttl is None:
        return clock_ms
    return BEFORE_FIRST_EVENT_MS if table.ttl.column else clock_ms


def read_clock_ms(manifest: Manifest, at_ms: int) -> int:
    """Return the clock that decided which rows of a version were expired for readers at the time `at_ms`.

    The version was the newest one at that time. With `at_ms` 0, returns the version's own clock, which gives the same
    rows at any time.
    """
    # By write time, rows of the newest version continue to expire until the next commit.
    return batch_clock_ms(manifest, at_ms) if at_ms else manifest.clock_ms


def reconcile_ttl(stage: str, stored: Ttl | None, declared: Ttl | None) -> Ttl | None:
    """Return a table's time to live after the program turned it on or off, or changed its length.

    Raises `Refused` if stored rows expire by another clock than the declared clock.
    """
    if stored is None:
        return declared
    if declared is None:
        return replace(stored, ms=0)
    if stored.gone:
        raise Refused(
            f"stage {stage!r}: its rows expired by a column that was removed, and older rows still have "
            "those times: a new ttl would compare them with another clock",
            hint="leave ttl out, or give the changed stage a new name",
        )
    if declared.column != stored.column:
        stored_by, declared_by = (
            f"column {ttl.column!r}" if ttl.column else "write time" for ttl in (stored, declared)
        )
        raise Refused(
            f"stage {stage!r}: its rows expire by {declared_by}, but stored rows by {stored_by}",
            hint="leave ttl_by as it was, or give the changed stage a new name",
        )
    return declared


def has_expired_rows(sst: Sst, clock_ms: int) -> bool:
    return sst.expiring > 0 and sst.expires_min <= clock_ms


def has_no_visible_rows(sst: Sst, clock_ms: int) -> bool:
    expired = not sst.expiring or sst.expires_max <= clock_ms
    return expired and sst.expiring + sst.tombstones >= sst.rows


def visible_rows_key(sst: Sst, clock_ms: int) -> tuple[str, int]:
    """Return a key for an SST's visible rows at a clock. Equal keys mean equal visible rows."""
    if not has_expired_rows(sst, clock_ms):
        return sst.object, 0
    return sst.object, 1 + min(clock_ms, sst.expires_max) - sst.expires_min


def expired_bytes(ssts: Iterable[Sst], clock_ms: int) -> float:
    """Estimate the bytes of the rows that have expired at a clock, as if expiry times were evenly spread."""
    expired = 0.0
    for sst in ssts:
        if has_expired_rows(sst, clock_ms):
            span = sst.expires_max - sst.expires_min
            reached = 1.0 if clock_ms >= sst.expires_max else (clock_ms - sst.expires_min) / span
            expired += sst.bytes * (reached * sst.expiring / sst.rows)
    return expired


def expired_suffix(runs: Sequence[tuple[int, float]]) -> int | None:
    """Return the index from which on expired rows have at least half of the bytes; None without such an index.

    `runs` are bytes and expired bytes of each run, newest first. The runs from this index to the oldest are worth a
    merge, regardless of their number and sizes: only a merge that includes the oldest run drops expired rows. If
    several indexes qualify, returns the smallest.
    """
    start, total, expired = None, 0, 0.0
    for position in reversed(range(len(runs))):
        total += runs[position][0]
        expired += runs[position][1]
        if expired >= _MIN_EXPIRED_SHARE * total:
            start = position
    return start


def drop_expired_suffix(inputs: Sequence[Sst], clock_ms: int) -> tuple[Sst, ...]:
    """Return the inputs that a merge must read. `inputs` are newest first and include the oldest run.

    Leaves out the oldest inputs if all their rows have expired. No older run exists, so these inputs hide no rows.
    """
    end = len(inputs)
    while end and has_no_visible_rows(inputs[end - 1], clock_ms):
        end -= 1
    return tuple(inputs[:end])
