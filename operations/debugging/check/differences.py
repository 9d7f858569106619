"""Differences between two runs of a version: rows of tables and sent rows, by `snapshot.diff.equality`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ....pipeline.api.topic import Repartition
from ....snapshot.diff.candidates import changed_keys
from ....snapshot.diff.equality import Flags, in_order, unlike
from ....snapshot.diff.key_changes import KeyChanges
from ....store.sst.hashing import hash_keys, normalise_keys
from ....store.sst.ttl import BEFORE_ALL_MS
from ..replay.compare import UnlikeRows, as_sent
from ..replay.stage_replay import StageReplay
from .outcomes import RunOutcome


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between two runs of a version; empty where nothing does."""

    keys: KeyChanges | None = None
    """The keys whose rows differ, with their rows after the first run and after the second; None where none do."""
    sent: dict[str, UnlikeRows] = field(default_factory=dict)
    """By output, where rows differ."""
    failed: str = ""
    """Why the second run failed, where it did."""

    def __bool__(self) -> bool:
        return bool(self.keys or self.sent or self.failed)


def differences(replay: StageReplay, first: RunOutcome, second: RunOutcome) -> Differences:
    """What differs of what is known of both, where nothing that is promised does.

    Floats are compared by `snapshot.diff.equality`. Where the second run has several batches, what the stage emits is
    compared by what its kind of state says (`Kind.emission`): the rows of its table that a batch changed are those of
    the table. Of what a function emits, which may be a row for each batch, the rows of each key's last batch must be
    among those of the first run.
    """
    largest = max(first.largest, second.largest)
    keys = None
    if first.keys is not None and second.keys is not None:
        keys = _keys(replay, first, second, largest)
    sent = {}
    for name in first.sent.keys() & second.sent.keys():
        if different := _sent(replay, name, first.sent[name], second.sent[name], largest):
            sent[name] = different
    return Differences(keys or None, dict(sorted(sent.items())))


def _keys(replay: StageReplay, first: RunOutcome, second: RunOutcome, largest: float) -> KeyChanges | None:
    every = pa.concat_tables([one.keys for one in (first, second) if one.keys is not None])
    # What has expired by now, was there when the batch had merged it.
    before, after = (
        replace(replay.after, table=replay.table, ssts=one.ssts, clock_ms=BEFORE_ALL_MS) for one in (first, second)
    )
    found = changed_keys(replay.program.store, replay.program.cache, before, after, every)
    assert found is not None  # noqa: S101  it has a table
    state = replay.stage.state
    arranged = in_order if state is not None and state.in_any_order else lambda rows: rows
    rows = [
        pa.Table.from_arrays([*found.keys.columns, *arranged(side).columns, pa.array(there)], names=_names(found))
        for side, there in ((found.before, found.was), (found.after, found.is_there))
    ]
    found = found.take(np.flatnonzero(unlike(rows[0], rows[1], largest)[0])).changed()
    return found.in_order() if len(found) else None


def _names(found: KeyChanges) -> list[str]:
    return [str(at) for at in range(found.keys.num_columns + found.before.num_columns + 1)]


def _sent(
    replay: StageReplay, name: str, first: Sequence[pa.Table], second: Sequence[pa.Table], largest: float
) -> UnlikeRows:
    ours = pa.concat_tables(first)
    batches = [as_sent(each, ours.schema, name) for each in second]
    theirs, state = pa.concat_tables(batches), replay.stage.state
    late = replay.stage.late
    is_by_batch = state is not None and len(batches) > 1 and (late is None or late.name != name)
    if state is not None and is_by_batch and state.emission == "table":
        return UnlikeRows(ours.slice(0, 0), ours.slice(0, 0))
    found = UnlikeRows.of(ours, theirs, largest)
    if found and state is not None and is_by_batch and state.emission == "function":
        output = next(one for one in replay.stage.writes if one.name == name)
        candidates = [[column.name for column in replay.table.key]]
        candidates += [list(output.key)] if isinstance(output, Repartition) else []
        key = next((names for names in candidates if {*names} <= {*ours.column_names}), [])
        theirs = _of_last_batches(batches, key)
        alone = ours.filter(pa.array(_of_no_key(ours, theirs, key)))
        return UnlikeRows(alone, UnlikeRows.of(ours, theirs, largest).added)
    return found


def _of_last_batches(batches: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Of each key the rows of the last batch that sent any."""
    found = [batches[-1]]
    for rows in reversed(batches[:-1]):
        found.append(rows.filter(pa.array(_of_no_key(rows, pa.concat_tables(found), key))))
    return pa.concat_tables(reversed(found))


def _of_no_key(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> Flags:
    """Which rows are of a key of which there are no others."""
    if not key:
        return np.full(rows.num_rows, not others.num_rows)
    hashes = [hash_keys(normalise_keys(each.select(list(key)), key), key) for each in (rows, others)]
    return ~np.asarray(pc.is_in(pa.array(hashes[0]), pa.array(hashes[1])))
