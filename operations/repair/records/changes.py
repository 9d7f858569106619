"""Changed input of a past batch, and the rows that a stage's function makes from this input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ....pipeline.batch.rerun import RecordNumbers
from ....snapshot.diff.equality import pair_equal_rows
from ....state.failing import RECORD
from ....store.sst.schema import HASH
from ...debugging.replay.stage_replay import StageReplay

_NONE: RecordNumbers = np.empty(0, np.int64)


@dataclass
class BatchChange:
    """Change of a batch's input: records to remove, and rows to add for the function."""

    dropped: RecordNumbers = field(default_factory=lambda: _NONE)
    added: dict[str, pa.Table] = field(default_factory=dict)
    """Added rows for the stage's function, by input."""

    def drop(self, numbers: RecordNumbers) -> None:
        self.dropped = np.union1d(self.dropped, numbers)

    def add(self, name: str, rows: pa.Table) -> None:
        self.added[name] = pa.concat_tables([*([self.added[name]] if name in self.added else ()), rows])


def changed_rows(replay: StageReplay, change: BatchChange) -> pa.Table:
    """Return the rows that a stage's function makes from the changed input. Added records need a Spark job."""
    every = replay.rows()
    left = np.setdiff1d(np.arange(replay.count), change.dropped)
    if not replay.knows_records:
        inputs = _with_added(replay.inputs(left), change.added)
        return replay.run(inputs) if any(rows.num_rows for rows in inputs.values()) else every.slice(0, 0)
    kept = replay.rows(left)
    if not change.added:
        return kept
    new = replay.run(_with_added(replay.inputs(_NONE), change.added))
    return pa.concat_tables([kept, new.select(kept.column_names).cast(kept.schema)])


def _with_added(inputs: Mapping[str, pa.Table], added: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    return {name: pa.concat_tables([rows, added[name]]) if name in added else rows for name, rows in inputs.items()}


def parting_rows(before: pa.Table, after: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return two tables: rows that only `before` has, and rows that only `after` has, without record numbers."""
    names = [name for name in before.column_names if name != RECORD]
    before, after = before.select(names), after.select(names).cast(before.select(names).schema)
    shown = [name for name in names if name != HASH]
    pairs = pair_equal_rows(before.select(shown), after.select(shown))
    alone = (np.setdiff1d(np.arange(rows.num_rows), own) for rows, own in zip((before, after), pairs, strict=True))
    return before.take(pa.array(next(alone))), after.take(pa.array(next(alone)))


def shown_rows(rows: pa.Table) -> pa.Table:
    """Return sent rows without their internal columns."""
    return rows.select([name for name in rows.column_names if name not in (HASH, RECORD)])
