"""Comparison of the replay of a whole batch with the rows that its version committed and sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from ....errors import Gone, Refused
from ....pipeline.source.spark_types import arrow_schema_of
from ....pipeline.spark.user_errors import as_user_error
from ....snapshot.diff.candidates import changed_keys
from ....snapshot.diff.equality import flag_unmatched_rows
from ....snapshot.diff.key_changes import KeyChanges
from ....state.failing import RECORD
from ....state.kinds.parts import POSITION
from ....state.records import fully_read_input
from ....store.read.multi_get import TableLookUps
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import OP, arrow_schema, visible_columns
from ....store.versions.manifest import Output
from ....store.versions.side_tables import table_name
from .inputs import read_input
from .stage_replay import StageReplay, filter_by_keys

_OWNER = "_owner"


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows that a version sent on one channel."""

    rows: pa.Table | None
    """Rows in no particular order; None if they are not known."""
    unknown_reason: str = ""
    """Reason why the rows are not known; empty if they are known."""


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """Rows of one output whose number of occurrences differs between two runs."""

    missing: pa.Table
    """Rows that the first run sends more often."""
    added: pa.Table
    """Rows that the second run sends more often."""

    @classmethod
    def compare(cls, first: pa.Table, second: pa.Table, largest: float = 0.0) -> Self:
        """Return the differences between two tables with equal columns. The order of rows does not count.

        Rows are compared by `snapshot.diff.equality`.
        """
        missing, added = flag_unmatched_rows(first, second, largest)
        return cls(first.filter(pa.array(missing)), second.filter(pa.array(added)))

    def __bool__(self) -> bool:
        return bool(self.missing.num_rows or self.added.num_rows)


@dataclass(frozen=True, slots=True)
class ChannelComparison:
    """Comparison of the rows that a version sent on one channel, or wrote to a table of parts, with the replay."""

    name: str
    committed: SentRows
    replayed: pa.Table
    missing: pa.Table
    added: pa.Table

    @property
    def same(self) -> bool:
        return not self.missing.num_rows and not self.added.num_rows


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a version with the replay of its batch."""

    app: str
    stage: str
    version: int
    time_ms: int
    read: tuple[tuple[str, int], ...]
    committed: pa.Table | None
    """Rows that the version wrote, with the columns of SSTs; None for a stage without a table."""
    num_replayed: int
    keys: KeyChanges | None
    """Keys that the version or the replay writes, with the committed row as `before` and the replayed row as `after`.

    Contains visible rows only. None for a stage without a table.
    """
    hidden: int
    """Number of keys with equal visible rows whose internal columns differ, or that only one side wrote."""
    channels: tuple[ChannelComparison, ...]
    """Comparison of each channel; empty if the comparison is limited to some keys."""
    parts: tuple[ChannelComparison, ...] = ()
    """Comparison of the rows written to each table of parts, with `_op`: 1 for a removed part."""

    @property
    def different(self) -> KeyChanges | None:
        return self.keys.changed() if self.keys is not None else None

    @property
    def same(self) -> bool:
        return not self.different and not self.hidden and all(rows.same for rows in (*self.channels, *self.parts))

    @property
    def ref(self) -> str:
        return f"{self.app}/{self.stage}@v{self.version}"


def compare(replay: StageReplay, sent: Mapping[str, SentRows], only: pa.Table | None = None) -> Comparison:
    """Replay a batch and compare the result. Runs one Spark job; for a stage without state, one job per output.

    `sent` is the result of `read_sent_rows`. With `only`, a table of keys, only rows of these keys are merged and
    compared, and channels are not compared. Raises `Refused` if the user's code fails, and the errors of reading
    records and state.
    """
    after = replay.after
    read = tuple((records.topic, records.rows.num_rows) for records in replay.records.values())
    batch = (after.app, after.stage, after.version, after.time_ms, read)
    function_rows = None if replay.shape.bound is None else filter_by_keys(replay.rows(), only)
    if function_rows is None:
        outputs = [
            # If each output has rows of its own, each needs its own job.
            (output, (replay.for_output(output.name) if replay.shape.output_schemas else replay).rows())
            for output in replay.stage.writes
        ]
        channels = tuple(_compare_channel(output.name, sent[output.name], rows) for output, rows in outputs)
        return Comparison(*batch, None, 0, None, 0, channels)
    with as_user_error(f"the state of stage {after.stage!r}"):
        result = replay.merge(function_rows)
    emitted = result.emitted
    new_rows, stored = filter_by_keys(result.new, only), filter_by_keys(replay.written_rows(), only)
    key, program = arrow_schema(replay.table.key), replay.program
    touched = pa.concat_tables([rows.select(key.names).cast(key) for rows in (stored, function_rows, new_rows)])
    replayed = replay.manifest(dataclasses.replace(result, new=new_rows))
    keys = changed_keys(program.store, program.cache, after, replayed, touched)
    visible_hashes = hash_keys(keys.changed().keys, key.names) if keys is not None else np.array([], np.int64)
    hidden = len(np.setdiff1d(replay.differing_keys(stored, new_rows), visible_hashes))
    writes = replay.stage.emits_to if only is None else ()
    # A single table goes to all outputs.
    tables = emitted if len(emitted) > 1 else emitted * len(writes)
    outputs = list(zip(writes, tables, strict=False))
    if (late := replay.stage.late_output) is not None and only is None:
        outputs.append((late, replay.late_rows(function_rows)))
    channels = tuple(_compare_channel(output.name, sent[output.name], rows) for output, rows in outputs)
    parts = tuple(_compare_parts(replay, name, result.parts.get(name), only) for name in replay.look_ups)
    return Comparison(*batch, stored, new_rows.num_rows, keys, hidden, channels, parts)


def read_sent_rows(replay: StageReplay) -> dict[str, SentRows]:
    """Read from Kafka the rows that the version sent on each channel. Raises the errors of `read_input`."""
    return {output.name: _read_sent(replay, output.name) for output in replay.stage.writes}


def _read_sent(replay: StageReplay, name: str) -> SentRows:
    previous, after = replay.before, replay.after
    if name in after.sinks:
        return SentRows(None, "is a sink, whose rows are not kept for comparison")
    if (output := after.outputs.get(name)) is None:
        return SentRows(None, f"{after.stage}@v{after.version} wrote no such channel")
    # Read like a consumer that has consumed all earlier versions and now consumes this version.
    zeros = (0,) * len(output.ends)
    start = fully_read_input(
        previous.outputs.get(name) or Output(output.topic, zeros, zeros), after.stage, previous.version
    )
    end = fully_read_input(output, after.stage, after.version)
    schema = arrow_schema_of(replay.shape.emits[name])
    try:
        return SentRows(read_input(replay.program, after.app, name, schema, start, end).rows)
    except Gone as error:
        return SentRows(None, error.message)


def _compare_channel(name: str, committed: SentRows, rows: pa.Table) -> ChannelComparison:
    if committed.rows is None:
        nothing = rows.slice(0, 0)
        return ChannelComparison(name, committed, rows, nothing, nothing)
    rows = cast_to_sent(rows, committed.rows.schema, name)
    unlike_rows = RowDifferences.compare(committed.rows, rows)
    return ChannelComparison(name, committed, rows, unlike_rows.missing, unlike_rows.added)


def _compare_parts(
    replay: StageReplay, name: str, replayed: pa.Table | None, only: pa.Table | None
) -> ChannelComparison:
    committed = filter_by_keys(replay.written_parts(name), only)
    names = [*(column.name for column in replay.look_ups[name].table.columns), OP]
    committed = committed.select(names)
    rows = committed.slice(0, 0) if replayed is None else filter_by_keys(replayed, only).select(names)
    unlike_rows = RowDifferences.compare(committed, rows.cast(committed.schema))
    table = table_name(replay.after.stage, name)
    return ChannelComparison(table, SentRows(committed), rows, unlike_rows.missing, unlike_rows.added)


def keys_with_other_parts(replay: StageReplay, keys: pa.Table) -> pa.Table:
    """Return the `keys` whose lists or maps have different elements in the replay and in the version.

    Lists are compared by the order of their elements, not by stored positions, because user code sees only the order.
    """
    merged = replay.manifest(replay.merge(replay.rows()))
    different = np.zeros(keys.num_rows, np.bool_)
    for name, look_ups in replay.look_ups.items():
        first, second = (
            _visible_parts(dataclasses.replace(look_ups, ssts=version.side_tables[name].ssts), keys)
            for version in (replay.after, merged)
        )
        unlike = RowDifferences.compare(first, second)
        different[[*unlike.missing[_OWNER].to_pylist(), *unlike.added[_OWNER].to_pylist()]] = True
    return keys.filter(pa.array(different))


def _visible_parts(look_ups: TableLookUps, keys: pa.Table) -> pa.Table:
    owners, parts = look_ups.get_parts(keys)
    rows = parts.select([column.name for column in visible_columns(look_ups.table)][keys.num_columns :])
    if POSITION in rows.column_names:
        starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])) if len(owners) else owners
        ranks = np.arange(len(owners)) - np.repeat(starts, np.diff(np.append(starts, len(owners))))
        rows = rows.set_column(0, POSITION, pa.array(ranks, pa.int64()))
    return rows.append_column(_OWNER, pa.array(owners, pa.int64()))


def drop_record_numbers(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([RECORD]) if RECORD in rows.column_names else rows


def cast_to_sent(rows: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Cast rows of the output `name` to the columns of `schema`. Raises `Refused` if the columns differ."""
    rows = drop_record_numbers(rows)
    try:
        if set(rows.column_names) != set(schema.names):
            raise pa.ArrowInvalid("no cast makes columns")
        return rows.select(schema.names).cast(schema)
    except pa.ArrowException:
        raise Refused(
            f"the program sends columns ({rows.schema.to_string()}) on {name!r}, but the rows sent then have "
            f"({schema.to_string()})",
            hint="replay with the program that ran, or with one that sends the same columns",
        ) from None
