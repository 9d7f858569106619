"""The records of a batch that are bad by themselves, where a predicate looks at single rows: found all at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...errors import SlackwaterError
from ...fold.failing import RECORD
from ...fold.kinds.kind import Groups
from ...moments.query.row_local import ROW, numbers_of, row_local
from ...search.predicate import Predicate
from ...store.sst.hashing import normalise_keys
from ...store.versions.side_tables import table_name
from ..batch.rerun import Numbers
from .batches import Batch
from .stage_replay import StageReplay


def bad_beside(batch: Batch, predicate: Predicate) -> Numbers | None:
    """The records whose rows of a table beside the stage's own are each wrong; None where that is not known."""
    names = {table_name(batch.replay.after.stage, name): name for name in batch.side_rows}
    try:
        table, sql = row_local(predicate.sql, names)
        rows, numbers = batch.side_rows[names[table]]
        return numbers_of(sql, table, rows.append_column(ROW, pa.array(numbers)).filter(pa.array(numbers >= 0)))
    except SlackwaterError:
        return None


def bad_alone(replay: StageReplay, predicate: Predicate) -> Numbers | None:
    """The records that make the predicate true by themselves, ascending; None where that is not known.

    It is known where each of the function's rows comes of one record, and the predicate is SQL over single rows of
    the stage's table.
    """
    if not replay.knows_records or not predicate.sql or replay.before.table is None:
        return None
    try:
        stage, sql = row_local(predicate.sql, [replay.after.stage])
        return numbers_of(sql, stage, _each_alone(replay))
    except Exception:
        # The predicate is another one, or the state's function does not take a key several times.
        return None


def _each_alone(replay: StageReplay) -> pa.Table:
    """The table's rows as each record by itself would leave those of its keys, with the record's number as `ROW`."""
    step, table = replay.step, replay.table
    bound = step.state_now
    key = [column.name for column in table.key]
    rows = normalise_keys(step.split_late(replay.rows())[0], key)
    order = np.lexsort((rows["_hash"].to_numpy(), rows[RECORD].to_numpy()))
    rows = rows.take(pa.array(order)).combine_chunks()
    records, hashes = rows[RECORD].to_numpy(), rows["_hash"].to_numpy()
    begins = np.append(True, (records[1:] != records[:-1]) | (hashes[1:] != hashes[:-1]))
    starts = np.flatnonzero(begins)
    keys = rows.select(key).take(pa.array(starts))
    each, first, place = np.unique(hashes[starts], return_index=True, return_inverse=True)
    old, _, _ = replay.stored.of_keys(each, keys.take(pa.array(first)))
    groups = Groups((np.cumsum(begins) - 1).astype(np.int32), starts)
    merged = bound.merge(rows.select([*key, *bound.needs]), groups, keys, old.take(pa.array(place)))
    made = pa.table(
        [*keys.columns, *merged.values.columns, pa.array(records[starts])],
        names=[*key, *merged.values.column_names, ROW],
    )
    return made if merged.deleted is None else made.filter(pa.array(~merged.deleted))
