"""Merge of one key's records in memory, to replay many subsets without SSTs and Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from ....pipeline.batch.rerun import RecordNumbers
from ....snapshot.diff.equality import has_floats, pair_similar_rows
from ....store.versions.manifest import Manifest
from ..replay.batches import OpenBatches, ReplayBatch, SubsetReplay
from ..replay.known_rows import known_schema, merge_known
from ..replay.stage_replay import StageReplay, filter_by_keys
from ..replay.what_if import ChosenRecords


@dataclass(frozen=True, slots=True)
class KeyFold:
    """Replays of the batches that wrote a key's row, with subsets of the source records."""

    batches: OpenBatches
    steps: tuple[tuple[ReplayBatch, pa.Table], ...]
    """Batches of the key's stage, ascending, each with the rows that the function returned for the key."""

    @classmethod
    def open(cls, batches: OpenBatches, newest: Manifest, key: pa.Table) -> Self | None:
        """Return the fold of a key up to the version `newest`; None if its row depends on more than its records.

        The row depends on more if a function mixes records or hides their numbers, if an upstream stage has state, if
        rows expire or fall due, or if the state has tables of parts.
        """
        opened = sorted(batches.opened.items(), key=lambda item: item[0])
        own = [batch for (stage, _), batch in opened if stage == newest.stage]
        others = [batch for (stage, _), batch in opened if stage != newest.stage]
        is_traced = all(part.sender is None or part.trace is not None for _, batch in opened for part in batch.parts)
        if not is_traced or any(batch.replay.shape.bound is not None for batch in others):
            return None
        if not all(_is_simple(batch.replay) for batch in own) or not all(b.replay.knows_records for _, b in opened):
            return None
        steps = ((batch, filter_by_keys(batch.replay.step.split_late(batch.replay.rows())[0], key)) for batch in own)
        return cls(batches, tuple(steps))

    def row(self, chosen: ChosenRecords) -> pa.Table:
        """Return the key's row after all batches, computed from the chosen source records only: at most one row."""
        subset = SubsetReplay(self.batches, chosen)
        row = known_schema(self.steps[0][0].replay.table).empty_table()
        for batch, rows in self.steps:
            replay = batch.replay
            present = rows.filter(pa.array(np.isin(replay.record_of(rows), _processed(replay, subset.numbers(batch)))))
            if present.num_rows:
                row = merge_known(replay, present, row)[1]
        return row

    def gives(self, expected: pa.Table, chosen: ChosenRecords) -> bool:
        """Return True if the chosen records give the row `expected`, within the tolerance.

        An empty `expected` means no row.
        """
        row = self.row(chosen).select(expected.column_names)
        if row.num_rows != expected.num_rows or not row.num_rows:
            return bool(row.num_rows == expected.num_rows)
        row = row.cast(expected.schema).combine_chunks()
        if bool(row.equals(expected.combine_chunks())):
            return True
        return any(map(has_floats, row.schema.types)) and len(pair_similar_rows(expected, row)[0]) == 1


def _is_simple(replay: StageReplay) -> bool:
    return replay.table.ttl is None and replay.due is None and not replay.look_ups


def _processed(replay: StageReplay, numbers: RecordNumbers) -> RecordNumbers:
    return numbers[numbers < replay.count]
