"""A pair of a join that is bad by the row that had waited: the record of that one, and not of the one that met it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from ....fold.kinds.join import BoundJoin, JoinSide
from ....fold.multi_input import TAG, name_of
from ....instants import now_ms
from ....moments.cut.lineage import Window
from ....moments.diff.key_history import key_changes
from ....moments.diff.stored_rows import StoredKey
from ....moments.diff.versions import VersionList
from ....moments.query.row_local import places_of
from ....search.verdict import Address, Guilty, Hop
from ....store.sst.hashing import hash_keys
from ....store.sst.types import arrow_schema
from ..record import message_at
from ..stage_replay import StageReplay
from .trial import Trial, number_of

MAX_CHANGES = 64
"""Earlier versions in which a waiting row is looked for, the newest that changed its key."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The pair that the bad batch got, as a row of its input."""

    below: StageReplay
    """The bad batch."""
    input: str
    row: pa.Table
    above: StageReplay
    """The batch of the join, in which the later of the two rows came."""
    join: BoundJoin
    number: int
    """Of that row among the records of the join's batch."""

    def side(self, *, later: bool) -> JoinSide:
        """The side of the row that came later, or of the one that had waited."""
        came = self.above.sender(self.number)[0]
        return next(each for each in (self.join.left, self.join.right) if (each.name == came) is later)


def by_the_waiting_row(trial: Trial, guilty: Guilty) -> Guilty:
    """The same, or the record of the row that waited in a join, where its columns are what makes the pair bad.

    Which of the two rows it is, is asked of each: whether the batch is good with the pair without its columns. The
    columns that key the bad table are left: they say whose row it is. Of more than two hops of stages below a join
    nothing is asked. Raises as replays do.
    """
    pair = _pair(trial, guilty)
    if pair is None or not _is_bad(trial, pair, pair.row):
        return guilty
    came, waited = pair.side(later=True), pair.side(later=False)
    if _needs(trial, pair, came) or not _needs(trial, pair, waited):
        return guilty
    for replay in _replays(trial, pair):
        if (number := _made_of(replay, pair, waited)) is not None:
            address = trial.source_of(replay, number)
            return _instead(trial, guilty, replay, number, address) if address is not None else guilty
    reason = f"a row that waited at {pair.above.after.stage} makes the pair bad, and its record is not known"
    return dataclasses.replace(guilty, message=None, reason=reason, proved=False)


def _pair(trial: Trial, guilty: Guilty) -> _Pair | None:
    """The pair by which the bad batch is bad; None where its rows are not those of a join."""
    if len(guilty.hops) < 2 or not guilty.hops[0].alone:
        return None
    lower, upper = guilty.hops[:2]
    below = trial.replay(lower.stage, lower.version)
    if below.shape.bound is None or (at := number_of(below, lower.record)) is None:
        return None
    name = below.sender(at)[0]
    above = trial.replay(upper.stage, upper.version, name)
    number = number_of(above, upper.record)
    if not isinstance(above.shape.bound, BoundJoin) or not above.knows_records or number is None:
        return None
    row = below.inputs(np.array([at]))[name]
    return _Pair(below, name, row, above, above.shape.bound, number)


def _is_bad(trial: Trial, pair: _Pair, row: pa.Table) -> bool:
    """Whether the bad batch is bad with this row as all that it reads."""
    below = pair.below
    inputs = {**below.inputs(np.array([], np.int64)), pair.input: row}
    return trial.bad_with(below.manifest(below.merged(below.run(inputs))[0]))


def _needs(trial: Trial, pair: _Pair, side: JoinSide) -> bool:
    """Whether the pair is good without the columns of a side."""
    key = {column.name for column in pair.below.table.key}
    row = pair.row
    for name in side.columns.names:
        if name in row.column_names and name not in key:
            at = row.column_names.index(name)
            row = row.set_column(at, row.schema.field(at).with_nullable(True), pa.nulls(1, row.schema.field(at).type))
    return not _is_bad(trial, pair, row)


def _replays(trial: Trial, pair: _Pair) -> Iterator[StageReplay]:
    """The join's batches in which the waiting row may have come, the newest first."""
    yield pair.above
    after, program = pair.above.after, trial.program
    key = pair.row.select(list(pair.join.key)).cast(arrow_schema(pair.above.table.key))
    versions = VersionList(program.store, after.app, after.stage, after.stage)
    stored = StoredKey(program.store, program.cache, key, int(hash_keys(key, key.column_names)[0]))
    changes = (each for each in key_changes(versions, stored, now_ms()) if each.version < after.version)
    for change in islice(changes, MAX_CHANGES):
        if change.by_batch:
            yield trial.replay(after.stage, change.version)


def _made_of(replay: StageReplay, pair: _Pair, side: JoinSide) -> int | None:
    """The record of a batch of the join of which a side of the pair was made; None for none."""
    rows = replay.rows()
    mine = np.flatnonzero(rows[TAG].to_numpy() == side.part)
    if not replay.knows_records or not len(mine):
        return None
    names = {name_of(side.part, name): name for name in side.columns.names} | {name: name for name in pair.join.key}
    found = rows.take(pa.array(mine))
    own = found.select(list(names)).rename_columns(list(names.values()))
    wanted = pair.row.select(own.column_names)
    places = places_of(wanted, own)
    return int(replay.record_of(found)[places[0]]) if len(places) else None


def _instead(trial: Trial, guilty: Guilty, replay: StageReplay, number: int, address: Address) -> Guilty:
    """The way to another record: by the bad batch, and the join's batch in which its row came."""
    lower, upper = guilty.hops[:2]
    after = replay.after
    hop = Hop(after.stage, after.version, replay.address(number), replay.count, 1, 0, alone=True)
    window = Window(address.topic, address.partition, address.offset, address.offset + 1)
    return dataclasses.replace(
        guilty,
        hops=(lower, dataclasses.replace(hop, replays=upper.replays)),
        message=message_at(trial.program, address),
        windows=(window,),
        others=None,
        tied=(),
        records=None,
        is_complete=False,
    )
