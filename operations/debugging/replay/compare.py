"""What a replay of a whole batch gives, beside what the version committed: rows of its table, and rows that it sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from ....errors import Gone, Refused
from ....pipeline.source.spark_types import arrow_of
from ....pipeline.spark.user_errors import as_user_error
from ....snapshot.diff.candidates import changed_keys
from ....snapshot.diff.equality import unlike
from ....snapshot.diff.key_changes import KeyChanges
from ....state.failing import RECORD
from ....state.records import behind
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import arrow_schema
from ....store.versions.manifest import Output
from .inputs import read_input
from .stage_replay import StageReplay, of_keys


@dataclass(frozen=True, slots=True)
class SentRows:
    """What a version sent on one channel."""

    rows: pa.Table | None
    """In no order that means anything; None where nobody knows any more."""
    unknown: str = ""
    """Why not, then."""


@dataclass(frozen=True, slots=True)
class UnlikeRows:
    """Rows of one output that only one of two runs sends, or more often than the other."""

    missing: pa.Table
    """Rows that only the first run sends."""
    added: pa.Table
    """Rows that only the second run sends."""

    @classmethod
    def of(cls, first: pa.Table, second: pa.Table, largest: float = 0.0) -> Self:
        """Compare rows of the same columns, in any order, by `snapshot.diff.equality`."""
        missing, added = unlike(first, second, largest)
        return cls(first.filter(pa.array(missing)), second.filter(pa.array(added)))

    def __bool__(self) -> bool:
        return bool(self.missing.num_rows or self.added.num_rows)


@dataclass(frozen=True, slots=True)
class ChannelComparison:
    """What was sent on one channel, then and by the replay."""

    name: str
    committed: SentRows
    replayed: pa.Table
    missing: pa.Table
    """Rows that were sent then, and not by the replay; as often as they are missing."""
    added: pa.Table
    """Rows that the replay sends, and that were not sent then."""

    @property
    def same(self) -> bool:
        """Whether nothing is known to differ."""
        return not self.missing.num_rows and not self.added.num_rows


@dataclass(frozen=True, slots=True)
class Comparison:
    """A replay beside the version that it is of."""

    app: str
    stage: str
    version: int
    time_ms: int
    """When the version was committed."""
    read: tuple[tuple[str, int], ...]
    """Of each input its topic, and how many records of it were replayed."""
    committed: pa.Table | None
    """The rows that the version wrote, as its SSTs hold them; None for a stage without a table."""
    num_replayed: int
    """How many keys the replay writes."""
    keys: KeyChanges | None
    """The keys that either writes: their visible rows as committed (`before`), and by the replay (`after`)."""
    hidden: int
    """Keys whose rows look the same, but are not: internal columns differ, or only one of both wrote them."""
    channels: tuple[ChannelComparison, ...]
    """What was sent on each; none where one key was asked for."""

    @property
    def different(self) -> KeyChanges | None:
        """Of `keys` those whose visible rows differ."""
        return self.keys.changed() if self.keys is not None else None

    @property
    def same(self) -> bool:
        """Whether the replay gives what was committed, as far as that is known."""
        return not self.different and not self.hidden and all(each.same for each in self.channels)

    @property
    def ref(self) -> str:
        """A ref to the version."""
        return f"{self.app}/{self.stage}@v{self.version}"


def compare(replay: StageReplay, sent: Mapping[str, SentRows], only: pa.Table | None = None) -> Comparison:
    """Replay a batch, and compare: one Spark job, or one for each output of a stage without state.

    `sent` is what `sent_rows` gives. With `only`, key columns, nothing but these keys' rows is merged and compared, and
    no channel. Raises `Refused` where the user's code fails, and as reading records and state does.
    """
    after = replay.after
    read = tuple((records.topic, records.rows.num_rows) for records in replay.records.values())
    batch = (after.app, after.stage, after.version, after.time_ms, read)
    every = None if replay.shape.bound is None else of_keys(replay.rows(), only)
    if every is None:
        outputs = [
            # Where each output has rows of its own, they are those of a job of its own.
            (one, (replay.of_output(one.name) if replay.shape.rows else replay).rows())
            for one in replay.stage.writes
        ]
        channels = tuple(_channel(one.name, sent[one.name], rows) for one, rows in outputs)
        return Comparison(*batch, None, 0, None, 0, channels)
    with as_user_error(f"the state of stage {after.stage!r}"):
        new, emitted = replay.merged(every)
    new, stored = of_keys(new, only), of_keys(replay.written(), only)
    # The keys that either side touches.
    key, program = arrow_schema(replay.table.key), replay.program
    touched = pa.concat_tables([rows.select(key.names).cast(key) for rows in (stored, every, new)])
    keys = changed_keys(program.store, program.cache, after, replay.manifest(new), touched)
    seen = hash_keys(keys.changed().keys, key.names) if keys is not None else np.array([], np.int64)
    hidden = len(np.setdiff1d(replay.differing_keys(stored, new), seen))
    writes = replay.stage.emits_to if only is None else ()
    # One table is for all outputs.
    each = emitted if len(emitted) > 1 else emitted * len(writes)
    outputs = list(zip(writes, each, strict=False))
    if (late := replay.stage.late) is not None and only is None:
        outputs.append((late, replay.late(every)))
    channels = tuple(_channel(one.name, sent[one.name], rows) for one, rows in outputs)
    return Comparison(*batch, stored, new.num_rows, keys, hidden, channels)


def sent_rows(replay: StageReplay) -> dict[str, SentRows]:
    """What the version sent on each channel that its stage writes, read from Kafka. Raises as `read_input` does."""
    return {one.name: _sent(replay, one.name) for one in replay.stage.writes}


def _sent(replay: StageReplay, name: str) -> SentRows:
    before, after = replay.before, replay.after
    if name in after.sinks:
        return SentRows(None, "is a sink, whose rows wait for nobody to compare them")
    if (output := after.outputs.get(name)) is None:
        return SentRows(None, f"{after.stage}@v{after.version} wrote no such channel")
    # As a reader takes it that has consumed all before this version, and then this one.
    nothing = (0,) * len(output.ends)
    start = behind(before.outputs.get(name) or Output(output.topic, nothing, nothing), after.stage, before.version)
    end = behind(output, after.stage, after.version)
    schema = arrow_of(replay.shape.emits[name])
    try:
        return SentRows(read_input(replay.program, after.app, name, schema, start, end).rows)
    except Gone as error:
        return SentRows(None, error.message)


def _channel(name: str, committed: SentRows, rows: pa.Table) -> ChannelComparison:
    if committed.rows is None:
        nothing = rows.slice(0, 0)
        return ChannelComparison(name, committed, rows, nothing, nothing)
    rows = as_sent(rows, committed.rows.schema, name)
    unlike_rows = UnlikeRows.of(committed.rows, rows)
    return ChannelComparison(name, committed, rows, unlike_rows.missing, unlike_rows.added)


def without_record(rows: pa.Table) -> pa.Table:
    """Rows of a stage's function without the numbers of their records."""
    return rows.drop_columns([RECORD]) if RECORD in rows.column_names else rows


def as_sent(rows: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Rows for an output with the columns of the other side. Raises `Refused` where they have others."""
    rows = without_record(rows)
    try:
        if set(rows.column_names) != set(schema.names):
            raise pa.ArrowInvalid("no cast makes columns")
        return rows.select(schema.names).cast(schema)
    except pa.ArrowException:
        raise Refused(
            f"the program sends columns ({rows.schema.to_string()}) on {name!r}, and others were sent "
            f"({schema.to_string()})",
            hint="name the program that ran, one that sends the same columns, or a clone that runs this one",
        ) from None
