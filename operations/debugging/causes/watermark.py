"""A watermark as the cause: late records, and the record that moved the watermark past them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ....common.instants import iso
from ....snapshot.bisect.causes import Cause
from ....snapshot.bisect.verdict import Address, Guilty
from ....state.failing import RECORD
from ....store.versions.manifest import Manifest
from ..replay.stage_replay import StageReplay
from .bad_commit import BadCommit
from .movers import mover_of_watermark


def of_late_table(bad: BadCommit, guilty: Guilty) -> Cause | None:
    """Return the cause of a late row that the predicate selects; None if no stage on the path has late rows."""
    if guilty.message is None:
        return None
    for below, hop in zip(guilty.hops, guilty.hops[1:], strict=False):
        late = bad.program.app.stages[hop.stage].late
        reader = bad.program.app.stages.get(below.stage)
        if late is not None and reader is not None and late.name in reader.inputs:
            replay = bad.replay(hop.stage, hop.version)
            records = bad.addresses(guilty) or (guilty.message.address,)
            return _cause(bad, replay, _late_of(replay), guilty.message.address, records)
    return None


def of_dropped(bad: BadCommit) -> Cause | None:
    """Return the cause that rows of the bad batch were dropped as late; None if the batch is bad with them too."""
    commit = bad.commit
    if commit.event_time is None or not commit.event_time.late or commit.table is None:
        return None
    replay = bad.replay(commit.stage, commit.version)
    # Without a watermark, no row is late.
    in_time = replay.based_on(replace(replay.before, event_time=None))
    if bad.bad_with(in_time.manifest(in_time.merged(in_time.rows())[0])):
        return None
    late, first = _late_of(replay), None
    if replay.knows_records and late.num_rows:
        first = bad.source_of(replay, int(np.min(late[RECORD].to_numpy())))
    return _cause(bad, replay, late, first, ())


def _late_of(replay: StageReplay) -> pa.Table:
    """Return the late rows of a batch."""
    return replay.step.split_late(replay.rows())[1]


def _cause(
    bad: BadCommit, replay: StageReplay, late: pa.Table, first: Address | None, records: tuple[Address, ...]
) -> Cause:
    previous: Manifest = replay.before
    at_ms = previous.watermark_ms
    end_ms = _latest_end(replay, late)
    # The row became late when the watermark first passed its end.
    mover = mover_of_watermark(bad, previous.stage, previous.version, end_ms) if end_ms is not None else None
    moved = mover.record if mover is not None else None
    stage = f"{replay.after.stage}@v{replay.after.version}"
    fact = f"{first} is the first late record of {stage}" if first is not None else f"records of {stage} were late"
    moved_text = f"; {moved} had advanced it" if moved is not None else ""
    moved_version = f"{mover.stage}@v{mover.version}" if mover is not None else None
    read_text = f", read by {moved_version}" if moved is not None else ""
    watermark = iso(at_ms, "milliseconds") if at_ms is not None else None
    return Cause(
        "watermark",
        proved=True,
        sentence=f"{fact}: the watermark was {watermark or 'not known'} already{moved_text}{read_text}",
        record=first if records else None,
        records=records,
        evidence={
            "late": str(first) if first is not None else None,
            "watermark": watermark,
            "moved_version": moved_version,
            "moved_by": str(moved) if moved is not None else None,
        },
    )


def _latest_end(replay: StageReplay, late: pa.Table) -> int | None:
    """Return the end of the first late row's window, or its event time; None if the row has neither."""
    if RECORD in late.column_names and late.num_rows:
        late = late.filter(pc.equal(late[RECORD], int(np.min(late[RECORD].to_numpy()))))
    ends = []
    for name in replay.shape.late_by:
        column = late[name]
        end = pc.struct_field(column, "end") if pa.types.is_struct(column.type) else column
        ends.append(pc.max(end.cast(pa.int64())).as_py())
    present = [end for end in ends if end is not None]
    return -(-min(present) // 1000) if present else None
