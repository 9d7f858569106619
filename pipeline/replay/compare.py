"""What a replay of a whole batch gives, beside what the version committed: rows of its table, and rows that it sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark.sql.pandas.types import to_arrow_schema

from ...errors import Gone, Refused
from ...fold.failing import RECORD
from ...fold.records import behind
from ...moments.diff.candidates import changed_keys
from ...moments.diff.key_changes import KeyChanges
from ...moments.query.row_local import differing, only_in
from ...store.sst.hashing import hash_keys
from ...store.sst.types import arrow_schema
from ...store.versions.manifest import Input, Manifest, Output
from ..spark.user_errors import as_user_error
from .inputs import read_inputs
from .stage_replay import StageReplay


@dataclass(frozen=True, slots=True)
class SentRows:
    """What a version sent on one channel."""

    rows: pa.Table | None
    """In no order that means anything; None where nobody knows any more."""
    unknown: str = ""
    """Why not, then."""


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

    Args:
        replay: The batch.
        sent: What it sent on each channel, as `sent_rows` gives it.
        only: Key columns: nothing but these keys' rows is merged and compared, and no channel.

    Raises:
        Refused: The user's code fails. Others as reading records and state does.
    """
    after = replay.after
    read = tuple((records.topic, records.rows.num_rows) for records in replay.records.values())
    batch = (after.app, after.stage, after.version, after.time_ms, read)
    every = None if replay.shape.bound is None else reaching(replay.rows(), only)
    if every is None:
        channels = tuple(_channel(name, sent[name], rows) for name, rows in _outputs(replay))
        return Comparison(*batch, None, 0, None, 0, channels)
    with as_user_error(f"the state of stage {after.stage!r}"):
        new, emitted = replay.merged(every)
    new = reaching(new, only)
    stored = reaching(replay.written(), only)
    keys = _keys(replay, stored, every, new)
    writes = replay.stage.emits_to if only is None else ()
    # One table is for all outputs.
    each = emitted if len(emitted) > 1 else emitted * len(writes)
    outputs = list(zip(writes, each, strict=False))
    if (late := replay.stage.late) is not None and only is None:
        outputs.append((late, replay.late(every)))
    channels = tuple(_channel(one.name, sent[one.name], rows) for one, rows in outputs)
    return Comparison(*batch, stored, new.num_rows, keys, _hidden(replay, stored, new, keys), channels)


def reaching(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """Of rows with a `_hash` those of these keys; all for None."""
    if keys is None:
        return rows
    return rows.filter(pc.is_in(rows["_hash"], pa.array(hash_keys(keys, keys.column_names))))


def sent_rows(replay: StageReplay) -> dict[str, SentRows]:
    """What the version sent on each channel that its stage writes, read from Kafka. Raises as `read_inputs` does."""
    return {one.name: _sent(replay, one.name) for one in replay.stage.writes}


def _sent(replay: StageReplay, name: str) -> SentRows:
    before, after, program = replay.before.outputs.get(name), replay.after.outputs.get(name), replay.program
    if name in replay.after.sinks:
        return SentRows(None, "is a sink, whose rows wait for nobody to compare them")
    if after is None:
        return SentRows(None, f"{replay.after.stage}@v{replay.after.version} wrote no such channel")
    # As a reader takes it that has consumed all before this version, and then this one.
    nothing = (0,) * len(after.ends)
    start = behind(before or Output(after.topic, nothing, nothing), replay.after.stage, replay.before.version)
    end = behind(after, replay.after.stage, replay.after.version)
    schema = to_arrow_schema(replay.shape.emits[name], timezone="UTC")
    try:
        found = read_inputs(
            program.kafka,
            program.store,
            _reads(replay.before, name, start),
            _reads(replay.after, name, end),
            {name: schema},
            patience_s=program.patience_s,
        )
    except Gone as error:
        return SentRows(None, error.message)
    return SentRows(found[name].rows)


def _reads(manifest: Manifest, name: str, at: Input) -> Manifest:
    return replace(manifest, inputs={name: at})


def _outputs(replay: StageReplay) -> Iterator[tuple[str, pa.Table]]:
    """What a stage without state makes for each of its outputs."""
    if not replay.shape.rows:
        rows = replay.rows()
        yield from ((one.name, rows) for one in replay.stage.writes)
        return
    for one in replay.stage.writes:
        yield one.name, replay.for_output(one.name).rows()


def _channel(name: str, committed: SentRows, rows: pa.Table) -> ChannelComparison:
    if committed.rows is None:
        nothing = rows.slice(0, 0)
        return ChannelComparison(name, committed, rows, nothing, nothing)
    if RECORD in rows.column_names:
        rows = rows.drop_columns([RECORD])
    try:
        if set(rows.column_names) != set(committed.rows.column_names):
            raise pa.ArrowInvalid("no cast makes columns")
        rows = rows.select(committed.rows.column_names).cast(committed.rows.schema)
    except pa.ArrowException:
        raise Refused(
            f"the program sends columns ({rows.schema.to_string()}) on {name!r}, and others were sent "
            f"({committed.rows.schema.to_string()})",
            hint="replay with a program that sends the same columns",
        ) from None
    return ChannelComparison(name, committed, rows, only_in(committed.rows, rows), only_in(rows, committed.rows))


def _keys(replay: StageReplay, stored: pa.Table, every: pa.Table, new: pa.Table) -> KeyChanges | None:
    """The keys that either side touches."""
    schema = arrow_schema(replay.table.key)
    touched = pa.concat_tables([rows.select(schema.names).cast(schema) for rows in (stored, every, new)])
    program = replay.program
    return changed_keys(program.store, program.cache, replay.after, replay.manifest_with(new), touched)


def _hidden(replay: StageReplay, stored: pa.Table, new: pa.Table, keys: KeyChanges | None) -> int:
    """How many keys are different although they do not look so."""
    table = replay.table
    names = [column.name for column in (*table.key, *table.values)]
    stored = stored.select([*names, "_op"])
    wrong = differing(stored, new.select(stored.column_names).cast(stored.schema))
    schema = arrow_schema(table.key)
    hashes = hash_keys(wrong.select(schema.names).cast(schema), schema.names)
    seen = hash_keys(keys.changed().keys, schema.names) if keys is not None else np.array([], np.int64)
    return len(np.setdiff1d(hashes, seen))
