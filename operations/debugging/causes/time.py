"""Time as the cause: rows that expired or fell due without a record, and the record that moved event time."""

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


def of_no_record(bad: BadCommit, finding: NoRecord) -> Cause:
    """Return the cause of a batch that is bad with none of its records. Raises as a replay does."""
    after = history.read(bad.program.store, bad.verdict.app, finding.stage, finding.version)
    if finding.expired.num_rows:
        table = after.table
        by = "write time" if table is not None and by_write_time(table.ttl) else "event time"
        return _cause(finding, finding.expired, "expired", by, finding.clock_ms, None)
    span, mover = finding.due_ms, None
    if finding.by == "watermark" and span[1] is not None:
        mover = mover_of_watermark(bad, finding.stage, finding.version - 1, span[1])
    return _cause(finding, finding.fell_due, "fell due", finding.by, span, mover)


def of_held_clock(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """Return the cause that rows expired as event time advanced; None if the batch is bad with the old clock too.

    The suspected record is the one that moved the clock.
    """
    commit = bad.commit
    previous = history.find(bad.program.store, commit.app, commit.stage, commit.version - 1)
    table = commit.table
    if previous is None or table is None or table.ttl is None or not table.ttl.column or guilty.message is None:
        return None
    if commit.clock_ms <= previous.clock_ms or previous.clock_ms == BEFORE_ALL_MS:
        return None
    if bad.bad_with(replace(commit, clock_ms=previous.clock_ms)):
        return None
    keys = bad.verdict.keys
    expired_keys = keys.keys if keys is not None and keys.named else pa.table({})
    mover = Mover(commit.stage, commit.version, guilty.message.address)
    finding = NoRecord(
        commit.stage, commit.version, expired_keys, expired_keys, (previous.clock_ms, commit.clock_ms), (None, None)
    )
    return _cause(finding, expired_keys, "expired", "event time", finding.clock_ms, mover)


def _cause(
    finding: NoRecord, rows: pa.Table, event: str, by: str, span: tuple[int | None, int | None], mover: Mover | None
) -> Cause:
    keys = finding.keys.keys if finding.keys is not None and len(finding.keys) else rows
    keys = keys.drop_columns([name for name in ("time",) if name in keys.column_names and keys is rows])
    count = rows.num_rows or keys.num_rows
    rows_text = (
        f"{count:,} {'row' if count == 1 else 'rows'} of {finding.stage}@v{finding.version}"
        if count
        else f"rows of {finding.stage}"
    )
    start, end = (_time(at) for at in span)
    moved_by: Address | None = mover.record if mover is not None else None
    by_whom = f"; {moved_by} advanced it, read by {mover.stage}@v{mover.version}" if mover and moved_by else ""
    passed = {"watermark": "its watermark", "clock": "the clock", "write time": "the clock", "event time": "event time"}
    since = f" from {start}" if start is not None else ""
    return Cause(
        "time",
        proved=True,
        sentence=f"no record is the cause: {rows_text} {event} when {passed[by]} advanced{since} to {end}{by_whom}",
        evidence={
            "stage": finding.stage,
            "version": finding.version,
            "by": by,
            "from": start,
            "to": end,
            "keys": python_rows(keys.slice(0, MOST_KEYS)) if keys.num_columns else [],
            "num_keys": count,
            "moved_version": f"{mover.stage}@v{mover.version}" if mover is not None else None,
            "moved_by": str(moved_by) if moved_by is not None else None,
        },
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None or at_ms == BEFORE_ALL_MS else iso(at_ms, "milliseconds")
