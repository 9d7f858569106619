"""Time: rows that expired, or fell due, without a record; and the record that moved event time, where one did."""

from __future__ import annotations

import pyarrow as pa
from msgspec.structs import replace

from ....common.instants import iso
from ....snapshot.bisect.causes import MOST_KEYS, Cause
from ....snapshot.bisect.verdict import Address, Guilty, NoRecord
from ....store.sst.arrow_types import python_rows
from ....store.sst.ttl import BEFORE_ALL_MS, by_write_time
from ....store.versions import history
from .bad_commit import BadCommit
from .movers import Mover, mover_of_watermark


def of_no_record(bad: BadCommit, found: NoRecord) -> Cause:
    """The cause of a batch that is bad with none of its records. Raises as a replay does."""
    after = history.read(bad.program.store, bad.verdict.app, found.stage, found.version)
    if found.expired.num_rows:
        table = after.table
        by = "write time" if table is not None and by_write_time(table.ttl) else "event time"
        return _cause(found, found.expired, "expired", by, found.clock_ms, None)
    span, mover = found.due_ms, None
    if found.by == "watermark" and span[1] is not None:
        mover = mover_of_watermark(bad, found.stage, found.version - 1, span[1])
    return _cause(found, found.fell_due, "fell due", found.by, span, mover)


def of_held_clock(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """The cause that rows expired as event time went on: where the batch is good by the clock before it.

    The record that was found is the one that moved the clock. None where that is not the cause.
    """
    commit = bad.commit
    before = history.find(bad.program.store, commit.app, commit.stage, commit.version - 1)
    table = commit.table
    if before is None or table is None or table.ttl is None or not table.ttl.column or guilty.message is None:
        return None
    if commit.clock_ms <= before.clock_ms or before.clock_ms == BEFORE_ALL_MS:
        return None
    if bad.bad_with(replace(commit, clock_ms=before.clock_ms)):
        return None
    keys = bad.verdict.keys
    gone = keys.keys if keys is not None and keys.named else pa.table({})
    mover = Mover(commit.stage, commit.version, guilty.message.address)
    found = NoRecord(commit.stage, commit.version, gone, gone, (before.clock_ms, commit.clock_ms), (None, None))
    return _cause(found, gone, "expired", "event time", found.clock_ms, mover)


def _cause(
    of: NoRecord, rows: pa.Table, did: str, by: str, span: tuple[int | None, int | None], mover: Mover | None
) -> Cause:
    keys = of.keys.keys if of.keys is not None and len(of.keys) else rows
    keys = keys.drop_columns([name for name in ("time",) if name in keys.column_names and keys is rows])
    count = rows.num_rows or keys.num_rows
    what = (
        f"{count:,} {'row' if count == 1 else 'rows'} of {of.stage}@v{of.version}" if count else f"rows of {of.stage}"
    )
    start, end = (_time(at) for at in span)
    moved: Address | None = mover.record if mover is not None else None
    by_whom = f"; {moved} moved it there, read by {mover.stage}@v{mover.version}" if mover and moved else ""
    passed = {"watermark": "its watermark", "clock": "the clock", "write time": "the clock", "event time": "event time"}
    since = f" from {start}" if start is not None else ""
    return Cause(
        "time",
        proved=True,
        sentence=f"no record is behind it: {what} {did}, as {passed[by]} went on{since} to {end}{by_whom}",
        evidence={
            "stage": of.stage,
            "version": of.version,
            "by": by,
            "from": start,
            "to": end,
            "keys": python_rows(keys.slice(0, MOST_KEYS)) if keys.num_columns else [],
            "num_keys": count,
            "moved_version": f"{mover.stage}@v{mover.version}" if mover is not None else None,
            "moved_by": str(moved) if moved is not None else None,
        },
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None or at_ms == BEFORE_ALL_MS else iso(at_ms, "milliseconds")
