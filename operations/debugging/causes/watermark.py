"""A watermark: records that were late, and the record that had moved it beyond them."""

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
    """The cause of a late row that the predicate asks for; None where the way to the record has none."""
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
    """The cause that rows of the bad batch were left out as late: where it is good with them; else None."""
    commit = bad.commit
    if commit.event_time is None or not commit.event_time.late or commit.table is None:
        return None
    replay = bad.replay(commit.stage, commit.version)
    # Nothing is before a watermark that is not known.
    in_time = replay.based_on(replace(replay.before, event_time=None))
    if bad.bad_with(in_time.manifest(in_time.merged(in_time.rows())[0])):
        return None
    late, first = _late_of(replay), None
    if replay.knows_records and late.num_rows:
        first = bad.source_of(replay, int(np.min(late[RECORD].to_numpy())))
    return _cause(bad, replay, late, first, ())


def _late_of(replay: StageReplay) -> pa.Table:
    """The rows of a batch that were late."""
    return replay.step.split_late(replay.rows())[1]


def _cause(
    bad: BadCommit, replay: StageReplay, late: pa.Table, first: Address | None, records: tuple[Address, ...]
) -> Cause:
    before: Manifest = replay.before
    at_ms = before.watermark_ms
    end_ms = _latest_end(replay, late)
    # Where its end was passed first, it became late.
    mover = mover_of_watermark(bad, before.stage, before.version, end_ms) if end_ms is not None else None
    moved = mover.record if mover is not None else None
    stage = f"{replay.after.stage}@v{replay.after.version}"
    what = f"{first} is the first late record of {stage}" if first is not None else f"records of {stage} were late"
    by = f"; {moved} had moved it there" if moved is not None else ""
    moved_version = f"{mover.stage}@v{mover.version}" if mover is not None else None
    read = f", read by {moved_version}" if moved is not None else ""
    watermark = iso(at_ms, "milliseconds") if at_ms is not None else None
    return Cause(
        "watermark",
        proved=True,
        sentence=f"{what}: the watermark was {watermark or 'not known'} already{by}{read}",
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
    """When the first late row's window ended, or its time; None where no row has one."""
    if RECORD in late.column_names and late.num_rows:
        late = late.filter(pc.equal(late[RECORD], int(np.min(late[RECORD].to_numpy()))))
    ends = []
    for name in replay.shape.late_by:
        column = late[name]
        end = pc.struct_field(column, "end") if pa.types.is_struct(column.type) else column
        ends.append(pc.max(end.cast(pa.int64())).as_py())
    known = [end for end in ends if end is not None]
    return -(-min(known) // 1000) if known else None
