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
    """Differences between two runs of a version; empty if there are none."""

    keys: KeyChanges | None = None
    """Keys whose rows differ, with their rows after the first run and after the second; None if there are none."""
    sent: dict[str, UnlikeRows] = field(default_factory=dict)
    """Differing rows by output."""
    failed: str = ""
    """Error of the second run; empty if it succeeded."""

    def __bool__(self) -> bool:
        return bool(self.keys or self.sent or self.failed)


def differences(replay: StageReplay, first: RunOutcome, second: RunOutcome) -> Differences:
    """Return the differences of two runs that the guarantees do not allow.

    Floats are compared by `snapshot.diff.equality`. If the second run has several batches, emitted rows are compared by
    the state's kind (`Kind.emission`). Rows that are those of the table are compared through the table. If a function
    emits a row for each batch, the rows of each key's last batch must be among those of the first run.
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
    touched = pa.concat_tables([run.keys for run in (first, second) if run.keys is not None])
    # Rows that have expired by now were visible when the batch merged them.
    first_version, second_version = (
        replace(replay.after, table=replay.table, ssts=run.ssts, clock_ms=BEFORE_ALL_MS) for run in (first, second)
    )
    changes = changed_keys(replay.program.store, replay.program.cache, first_version, second_version, touched)
    assert changes is not None  # noqa: S101  it has a table
    state = replay.stage.state
    arrange = in_order if state is not None and state.in_any_order else lambda rows: rows
    rows = [
        pa.Table.from_arrays([*changes.keys.columns, *arrange(side).columns, pa.array(present)], names=_names(changes))
        for side, present in ((changes.before, changes.was), (changes.after, changes.is_there))
    ]
    changes = changes.take(np.flatnonzero(unlike(rows[0], rows[1], largest)[0])).changed()
    return changes.in_order() if len(changes) else None


def _names(changes: KeyChanges) -> list[str]:
    return [str(at) for at in range(changes.keys.num_columns + changes.before.num_columns + 1)]


def _sent(
    replay: StageReplay, name: str, first: Sequence[pa.Table], second: Sequence[pa.Table], largest: float
) -> UnlikeRows:
    first_rows = pa.concat_tables(first)
    batches = [as_sent(batch, first_rows.schema, name) for batch in second]
    second_rows, state = pa.concat_tables(batches), replay.stage.state
    late = replay.stage.late
    is_by_batch = state is not None and len(batches) > 1 and (late is None or late.name != name)
    if state is not None and is_by_batch and state.emission == "table":
        return UnlikeRows(first_rows.slice(0, 0), first_rows.slice(0, 0))
    unlike_rows = UnlikeRows.of(first_rows, second_rows, largest)
    if unlike_rows and state is not None and is_by_batch and state.emission == "function":
        output = next(candidate for candidate in replay.stage.writes if candidate.name == name)
        candidates = [[column.name for column in replay.table.key]]
        candidates += [list(output.key)] if isinstance(output, Repartition) else []
        key = next((names for names in candidates if {*names} <= {*first_rows.column_names}), [])
        second_rows = _of_last_batches(batches, key)
        alone = first_rows.filter(pa.array(_without_match(first_rows, second_rows, key)))
        return UnlikeRows(alone, UnlikeRows.of(first_rows, second_rows, largest).added)
    return unlike_rows


def _of_last_batches(batches: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Return the rows of each key from the last batch that sent any."""
    parts = [batches[-1]]
    for rows in reversed(batches[:-1]):
        parts.append(rows.filter(pa.array(_without_match(rows, pa.concat_tables(parts), key))))
    return pa.concat_tables(reversed(parts))


def _without_match(rows: pa.Table, other_rows: pa.Table, key: Sequence[str]) -> Flags:
    """Return flags for the rows whose key has no row in `others`."""
    if not key:
        return np.full(rows.num_rows, not other_rows.num_rows)
    hashes = [hash_keys(normalise_keys(side.select(list(key)), key), key) for side in (rows, other_rows)]
    return ~np.asarray(pc.is_in(pa.array(hashes[0]), pa.array(hashes[1])))
