"""Tests if event time caused a bad commit: rows expired or fell due, rows were late, a watermark advanced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ....common.instants import format_iso
from ....errors import SlackwaterError
from ....snapshot.bisect.causes import MAX_LISTED_KEYS, Cause
from ....snapshot.bisect.verdict import RecordlessBatch, RecordLocation, RecordPath
from ....state.failing import RECORD, find_turning_point
from ....store.sst.arrow_types import python_rows
from ....store.sst.schema import event_ms
from ....store.sst.ttl import BEFORE_FIRST_EVENT_MS, expires_by_write_time
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.stage_replay import StageReplay
from .bad_commit import BadCommit


def explain_no_record(bad: BadCommit, finding: RecordlessBatch) -> Cause:
    """Return the cause of a batch that is bad even in a replay without its records.

    Raises the errors of a replay.
    """
    after = history.read(bad.program.store, bad.verdict.app, finding.stage, finding.version)
    if finding.expired.num_rows:
        table = after.table
        by = "write time" if table is not None and expires_by_write_time(table.ttl) else "event time"
        return _time_cause(finding, finding.expired, "expired", by, finding.clock_ms, None)
    span, mover = finding.due_ms, None
    if finding.by == "watermark" and span[1] is not None:
        mover = find_watermark_mover(bad, finding.stage, finding.version - 1, span[1])
    return _time_cause(finding, finding.fell_due, "fell due", finding.by, span, mover)


def find_expiry_cause(bad: BadCommit, guilty: RecordPath) -> Cause | None:
    """Return a `time` cause if the moment is bad because rows expired when event time advanced; else None.

    As a test, evaluates the moment with the expiry clock of the previous version. The suspected record is the record
    that advanced event time.
    """
    commit = bad.commit
    previous = history.find(bad.program.store, commit.app, commit.stage, commit.version - 1)
    table = commit.table
    if previous is None or table is None or table.ttl is None or not table.ttl.column or guilty.source_record is None:
        return None
    if commit.clock_ms <= previous.clock_ms or previous.clock_ms == BEFORE_FIRST_EVENT_MS:
        return None
    if bad.is_bad_with(replace(commit, clock_ms=previous.clock_ms)):
        return None
    keys = bad.verdict.keys
    expired_keys = keys.keys if keys is not None and keys.from_predicate else pa.table({})
    mover = Mover(commit.stage, commit.version, guilty.source_record.location)
    finding = RecordlessBatch(
        commit.stage, commit.version, expired_keys, expired_keys, (previous.clock_ms, commit.clock_ms), (None, None)
    )
    return _time_cause(finding, expired_keys, "expired", "event time", finding.clock_ms, mover)


def _time_cause(
    finding: RecordlessBatch,
    rows: pa.Table,
    event: str,
    by: str,
    span: tuple[int | None, int | None],
    mover: Mover | None,
) -> Cause:
    keys = finding.keys.keys if finding.keys is not None and len(finding.keys) else rows
    if keys is rows and "time" in rows.column_names:
        keys = rows.drop_columns(["time"])
    count = rows.num_rows or keys.num_rows
    rows_text = (
        f"{count:,} {'row' if count == 1 else 'rows'} of {finding.stage}@v{finding.version}"
        if count
        else f"rows of {finding.stage}"
    )
    start, end = (_iso_time(at) for at in span)
    by_whom = f"; {mover.record} advanced it, read by {mover.ref}" if mover and mover.record else ""
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
            "keys": python_rows(keys.slice(0, MAX_LISTED_KEYS)) if keys.num_columns else [],
            "num_keys": count,
            **_moved(mover),
        },
    )


def _iso_time(at_ms: int | None) -> str | None:
    return None if at_ms is None or at_ms == BEFORE_FIRST_EVENT_MS else format_iso(at_ms, "milliseconds")


def find_late_table_cause(bad: BadCommit, guilty: RecordPath) -> Cause | None:
    """Return a `watermark` cause if the suspected record passed through a stage's output of late rows.

    Returns None if no such output lies on the path from the record to the bad commit.
    """
    if guilty.source_record is None:
        return None
    for below, hop in zip(guilty.hops, guilty.hops[1:], strict=False):
        late = bad.program.app.stages[hop.stage].late_output
        reader = bad.program.app.stages.get(below.stage)
        if late is not None and reader is not None and late.name in reader.inputs:
            replay = bad.replay(hop.stage, hop.version)
            records = bad.bad_record_addresses(guilty) or (guilty.source_record.location,)
            return _late_cause(bad, replay, _late_rows(replay), guilty.source_record.location, records)
    return None


def find_dropped_late_cause(bad: BadCommit) -> Cause | None:
    """Return a `watermark` cause if the batch is good when its late rows are not dropped, else None."""
    commit = bad.commit
    if commit.event_time is None or not commit.event_time.late or commit.table is None:
        return None
    replay = bad.replay(commit.stage, commit.version)
    # Without a watermark, no row is late.
    in_time = replay.with_previous(replace(replay.before, event_time=None))
    if bad.is_bad_with(in_time.manifest(in_time.merge(in_time.rows()))):
        return None
    late, first = _late_rows(replay), None
    if replay.knows_records and late.num_rows:
        first = bad.source_address(replay, int(np.min(late[RECORD].to_numpy())))
    return _late_cause(bad, replay, late, first, ())


def _late_rows(replay: StageReplay) -> pa.Table:
    return replay.step.split_late(replay.rows())[1]


def _late_cause(
    bad: BadCommit,
    replay: StageReplay,
    late: pa.Table,
    first: RecordLocation | None,
    records: tuple[RecordLocation, ...],
) -> Cause:
    previous, at_ms = replay.before, replay.before.watermark_ms
    end_ms = _first_late_end_ms(replay, late)
    # The row became late when the watermark first passed its end.
    mover = find_watermark_mover(bad, previous.stage, previous.version, end_ms) if end_ms is not None else None
    stage = f"{replay.after.stage}@v{replay.after.version}"
    fact = f"{first} is the first late record of {stage}" if first is not None else f"records of {stage} were late"
    moved_text = f"; {mover.record} had advanced it, read by {mover.ref}" if mover and mover.record else ""
    watermark = format_iso(at_ms, "milliseconds") if at_ms is not None else None
    return Cause(
        "watermark",
        proved=True,
        sentence=f"{fact}: the watermark was {watermark or 'not known'} already{moved_text}",
        record=first if records else None,
        records=records,
        evidence={"late": str(first) if first is not None else None, "watermark": watermark, **_moved(mover)},
    )


def _first_late_end_ms(replay: StageReplay, late: pa.Table) -> int | None:
    if RECORD in late.column_names and late.num_rows:
        late = late.filter(pc.equal(late[RECORD], int(np.min(late[RECORD].to_numpy()))))
    ends = []
    for name in replay.shape.lateness_columns:
        column = late[name]
        end = pc.struct_field(column, "end") if pa.types.is_struct(column.type) else column
        ends.append(pc.max(end.cast(pa.int64())).as_py())
    present = [end for end in ends if end is not None]
    return -(-min(present) // 1000) if present else None


@dataclass(frozen=True, slots=True)
class Mover:
    """The version that advanced a watermark or an expiry clock, and the record that made it advance."""

    stage: str
    version: int
    record: RecordLocation | None

    @property
    def ref(self) -> str:
        return f"{self.stage}@v{self.version}"


def _moved(mover: Mover | None) -> dict[str, str | None]:
    moved_by = str(mover.record) if mover is not None and mover.record is not None else None
    return {"moved_version": mover.ref if mover is not None else None, "moved_by": moved_by}


def find_watermark_mover(bad: BadCommit, stage: str, version: int, to_ms: int) -> Mover | None:
    """Return the version and record that advanced a stage's watermark to `to_ms`; None if not known.

    Searches versions up to `version` by binary search, which reads a few manifests. If a watermark comes from an
    upstream stage, the search continues in the stage that defines it. One version of that stage is replayed.
    """
    store, app = bad.program.store, bad.verdict.app
    read, first = partial(history.find, store, app), partial(history.first_version, store, app)

    def is_before(manifest: Manifest) -> bool:
        return manifest.watermark_ms is None or manifest.watermark_ms < to_ms

    after = history.find(store, app, stage, version)
    if after is None or is_before(after):
        return None
    last = history.newest_where(read, first, after, is_before)
    version_moved = history.find(store, app, stage, last.version + 1 if last is not None else first(stage))
    if version_moved is None or stage not in bad.program.shapes:
        return None
    return _mover(bad, version_moved, last, to_ms)


def _mover(bad: BadCommit, after: Manifest, previous: Manifest | None, to_ms: int) -> Mover | None:
    shape = bad.program.shapes[after.stage]
    for name in sorted(shape.inputs_with_watermark):
        current, earlier = after.inputs.get(name), previous.inputs.get(name) if previous is not None else None
        if current is None or (
            earlier is not None and earlier.watermark_ms is not None and earlier.watermark_ms >= to_ms
        ):
            continue
        if name in shape.inputs_with_declared_watermark:
            return Mover(after.stage, after.version, _first_moving_record(bad, after, name, to_ms))
        if current.upstream:
            return find_watermark_mover(bad, current.upstream, current.version, to_ms)
    return None


def _first_moving_record(bad: BadCommit, moved: Manifest, name: str, to_ms: int) -> RecordLocation | None:
    bound_ms = moved.event_time.bound_ms if moved.event_time is not None else None
    try:
        replay = bad.replay(moved.stage, moved.version)

        def movers(rows: pa.Table) -> pa.Table:
            is_mover = np.zeros(rows.num_rows, bool)
            for watermark in replay.shape.watermarks:
                for column in watermark.columns if name in watermark.inputs else ():
                    times = event_ms(rows[column])
                    late = pc.greater_equal(times, to_ms + watermark.delay_ms)
                    if bound_ms is not None:
                        late = pc.and_(late, pc.less_equal(times, bound_ms))
                    is_mover |= np.asarray(pc.fill_null(late, False))
            return rows.filter(pa.array(is_mover))

        if not (rows_found := movers(replay.rows())).num_rows:
            return None
        if replay.knows_records:
            return bad.source_address(replay, int(np.min(rows_found[RECORD].to_numpy())))
        # Costs one Spark job for each prefix.
        number = find_turning_point(
            replay.count, lambda count: bool(movers(replay.rows(np.arange(count, dtype=np.int64))).num_rows)
        )
        return bad.source_address(replay, number)
    except (SlackwaterError, KeyError):
        return None
