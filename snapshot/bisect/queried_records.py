"""Bad records returned by a predicate over an input archive: the search needs no program and no replay.

`FROM input('orders') WHERE …` returns whole records. If it returns no record at the last good moment, the records that
it returns at the bad commit made the moment bad.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.archive.columns import SCHEMA
from ..cut.lineage import Window
from .causes import Cause, CauseKind, TracedCause
from .verdict import BAD_RECORDS, RecordLocation, RecordPath, SourceRecord, Verdict


def find_queried_records(verdict: Verdict) -> TracedCause | None:
    """Return the records that the predicate returns at the bad commit, as the cause.

    Returns None if the commit is not a batch; if the predicate reads a table, or no input archive; if the result lacks
    columns of `input()`; or if the result has records that the batch did not read.
    """
    predicate, rows = verdict.predicate, verdict.rows
    if not predicate.inputs or predicate.tables(verdict.bad) or verdict.candidates or verdict.more_rows:
        return None
    if not verdict.bad.stages[verdict.stage].traits.reads_records:
        return None
    if not {*SCHEMA.names} <= {*rows.column_names} or not pa.types.is_binary(rows["value"].type):
        return None
    records = rows.select(SCHEMA.names).cast(SCHEMA)
    is_read = pa.array(np.zeros(records.num_rows, bool))
    for window in verdict.lineage.direct:
        place = pc.and_(pc.equal(records["topic"], window.topic), pc.equal(records["partition"], window.partition))
        offsets = pc.and_(pc.greater_equal(records["offset"], window.start), pc.less(records["offset"], window.end))
        is_read = pc.or_(is_read, pc.and_(place, offsets))
    if not pc.all(is_read).as_py():
        return None
    return _as_cause(records.sort_by([(name, "ascending") for name in ("timestamp", "partition", "offset")]))


def _as_cause(records: pa.Table) -> TracedCause:
    """Return records that are bad by themselves as a proved cause, ordered by time."""
    positions = zip(*(records[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    first, *later = addresses = tuple(RecordLocation(*place) for place in positions)
    times = np.asarray(records["timestamp"].cast(pa.int64()))
    same_time = [other for other, time in zip(later, times[1:], strict=True) if time == times[0]]
    rivals = {other.partition: other for other in reversed(same_time) if other.partition != first.partition}
    tied = tuple(rivals[partition] for partition in sorted(rivals))
    (row,) = records.slice(0, 1).to_pylist()
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    no_number, alone = pa.nulls(len(addresses), pa.int32()), pa.repeat(pa.scalar(True), len(addresses))
    columns = [*records.select(["topic", "partition", "offset"]).columns, no_number]
    path = RecordPath(
        hops=(),
        source_record=SourceRecord(first, int(times[0]), row["key"], row["value"], headers),
        reason="",
        windows=(Window(first.topic, first.partition, first.offset, first.offset + 1),),
        keys=None,
        others=len(later),
        proved=True,
        tied=tied,
        records=pa.table([*columns, records["timestamp"], records["key"], alone], schema=BAD_RECORDS),
        is_complete=True,
    )
    kind: CauseKind = "records" if later else "record"
    text = (
        f"is the first of {len(addresses):,} records that are bad by themselves" if later else "is the record behind it"
    )
    evidence = {"alone": len(addresses) if later else True}
    one_of = 1 + len(tied) if tied else None
    return TracedCause(Cause(kind, True, f"{first} {text}", first, one_of, addresses, evidence), path)
