"""What a version took of the records that it read: without those that it rejected, with those that it retried."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.versions.aside import rejected_of
from ...store.versions.manifest import Manifest
from ..api.stage import Stage
from ..reject.retried import rows_of
from ..reject.table import Written
from .inputs import PLACE, Records
from .program import Program


def as_taken(
    program: Program,
    before: Manifest,
    after: Manifest,
    stage: Stage,
    schemas: Mapping[str, pa.Schema],
    read: dict[str, Records],
) -> dict[str, Records]:
    """The records that a version's function and state got, of those that it read. Reads no SST where all were taken."""
    rejected, retried = rejected_of(after), rejected_of(after).waiting - rejected_of(before).waiting
    if not rejected.rows and retried >= 0:
        return read
    rows = Written(program.store, program.cache, after.app, after.stage).rows(after)
    left_out = rows.filter(pc.equal(rows["version"], after.row_seq))
    again = rows.filter(pc.fill_null(pc.equal(rows["retried"], after.row_seq), False))
    return {
        name: _with(_without(records, left_out), again, name, stage, schemas[name]) for name, records in read.items()
    }


def _without(records: Records, rejected: pa.Table) -> Records:
    mine = rejected.filter(pc.equal(rejected["topic"], records.topic))
    if not mine.num_rows or not records.rows.num_rows:
        return records
    partition, offset, row = PLACE.names[:3]
    out = {tuple(each.values()) for each in mine.select(["partition", "offset", "row"]).to_pylist()}
    offsets = np.isin(records.column(offset), [each[1] for each in out])
    keep = np.ones(records.rows.num_rows, bool)
    for place in np.flatnonzero(offsets).tolist():
        address = tuple(records.place[name][place].as_py() for name in (partition, offset, row))
        keep[place] = address not in out
    return records.take(np.flatnonzero(keep))


def _with(records: Records, retried: pa.Table, name: str, stage: Stage, schema: pa.Schema) -> Records:
    mine = retried.filter(pc.equal(retried["input"], name))
    if not mine.num_rows:
        return records
    rows = rows_of(stage, name, mine.to_pylist(), schema)
    nothing = pa.repeat(pa.scalar(0, pa.int64()), mine.num_rows)
    times = mine["time"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    placed = pa.table([mine["partition"], mine["offset"], mine["row"], times, nothing], schema=PLACE)
    place = pa.concat_tables([records.place, placed])
    return Records(records.topic, records.upstream, pa.concat_tables([records.rows, rows]), place)
