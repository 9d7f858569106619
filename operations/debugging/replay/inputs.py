"""What one version read, record by record, from Kafka: each record with its address and its time; and what it took.

Of a user's topic a record is a message; of a repartition topic it is a row. A version took what it read without what it
rejected, and with what it retried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import Refused
from ....pipeline.api.stage import Stage
from ....pipeline.kafka.columns import Columns
from ....pipeline.kafka.messages import decode_addressed, header_of, read_rows
from ....pipeline.kafka.protocol import Message
from ....pipeline.reject.table import RejectedTable, rows_of
from ....snapshot.cut.stored import ADDRESS
from ....snapshot.diff.equality import places_of
from ....state import records
from ....state.records import Range
from ....store.objects.protocol import ObjectStore
from ....store.versions import history
from ....store.versions.manifest import Input, Manifest
from ....store.versions.side_tables import rejected_of
from .program import LoadedProgram

_TIME = "_time"
_VERSION = "_version"
PLACE = pa.schema(
    [*zip(ADDRESS, (pa.int32(), pa.int64(), pa.int32()), strict=True), (_TIME, pa.int64()), (_VERSION, pa.int64())]
)
"""The columns that say where a record is from: see `Records.place`."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records that one version read on one input, in the order of Kafka's partitions and offsets.

    Attributes:
        topic: The Kafka topic.
        upstream: The stage that wrote them; empty for a user's topic.
        rows: As the stage's function gets them.
        place: Of each record: its `ADDRESS` (of a message, the row is 0), the time of its message in ms, and the
            version of the upstream stage that sent it (0 for a user's topic).
    """

    topic: str
    upstream: str
    rows: pa.Table
    place: pa.Table

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """Some of them, in this order."""
        chosen = pa.array(rows)
        return Records(self.topic, self.upstream, self.rows.take(chosen), self.place.take(chosen))

    @property
    def none(self) -> Records:
        """No records of the same topic."""
        return Records(self.topic, self.upstream, self.rows.slice(0, 0), self.place.slice(0, 0))

    @property
    def times_ms(self) -> npt.NDArray[np.int64]:
        """When the records' messages were made, by their timestamps."""
        return np.asarray(self.place[_TIME].to_numpy(), np.int64)

    @property
    def partitions(self) -> npt.NDArray[np.int64]:
        """Their Kafka partitions."""
        return np.asarray(self.place[ADDRESS[0]].to_numpy(), np.int64)

    @property
    def versions(self) -> npt.NDArray[np.int64]:
        """The upstream versions that sent them."""
        return np.asarray(self.place[_VERSION].to_numpy(), np.int64)


def read_input(
    program: LoadedProgram, app: str, name: str, schema: pa.Schema, start: Input | None, end: Input
) -> Records:
    """What was read of one input, by its declared name, between where two versions stood.

    `schema` has the columns that the stage's function gets; `start` is None where the first did not read the input.

    Raises:
        Gone: Kafka does not have all of it any more.
        AnotherTopic: the topic was deleted and made again since, and no archive has what was read.
        Corruption: A repartition topic holds something else than its writer's manifests say.
        NotFound: A manifest upstream was collected.
        Refused: The program reads other columns than were sent; or a topic cannot be read.
        Unavailable: The broker has been away for longer than `program.patience_s`.
    """
    nothing = (0,) * len(end.offsets)
    starts, passed = (start.offsets, start.passed) if start is not None else (nothing, nothing)
    parts = records.ranges(starts, end.offsets, passed, end.passed)
    if end.upstream:
        after = start.version if start is not None else 0
        return _of_channel(program, name, schema, end, parts, _sent(program.store, app, name, end, after))
    chunks = [
        Columns(messages).source(schema)
        for one in parts
        for messages in program.kafka.read(
            end.topic, one.partition, one.first, one.last, patience_s=program.patience_s, topic_id=end.topic_id
        )
    ]
    rows = pa.Table.from_batches(chunks, schema)
    zeros = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    times = rows["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    place = [rows["partition"], rows["offset"], zeros.cast(pa.int32()), times, zeros]
    return Records(end.topic, "", rows, pa.table(place, schema=PLACE))


def _sent(store: ObjectStore, app: str, name: str, end: Input, after: int) -> dict[str, int]:
    """The attempts whose rows a reader got of a channel's versions above one, each with the version that sent it."""
    senders = tuple(history.between(store, app, end.upstream, after, end.version))
    attempts = records.sent(name, senders).attempts
    rewinds = {each.version for each in senders if each.rewind is not None}
    # A rewind hands on what earlier versions sent.
    handed_on = {attempt for attempt, version in attempts.items() if version in rewinds}
    earlier = (each for last in senders[-1:] for numbers in reversed(last.follows()) for each in reversed(numbers))
    for version in earlier:
        if not handed_on:
            break
        output = history.read(store, app, end.upstream, version).outputs.get(name)
        if version not in rewinds and output is not None:
            found = handed_on.intersection(output.attempts)
            attempts |= dict.fromkeys(found, version)
            handed_on -= found
    return attempts


def _of_channel(
    program: LoadedProgram, name: str, schema: pa.Schema, end: Input, parts: Iterator[Range], senders: Mapping[str, int]
) -> Records:
    """The rows of a repartition topic that these attempts sent, each of a version."""

    def decoded(messages: Sequence[Message]) -> Iterator[pa.Table]:
        for message in messages:
            for rows in decode_addressed([message], frozenset(senders)):
                for column, value in ((_TIME, message.timestamp()[1]), (_VERSION, senders[header_of(message)])):
                    rows = rows.append_column(column, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
                yield rows

    kafka, patience_s = program.kafka, program.patience_s
    chunks = [
        rows
        for one in parts
        for rows in read_rows(
            kafka,
            end.topic,
            one.partition,
            one.first,
            one.last,
            one.rows,
            decoded,
            patience_s=patience_s,
            topic_id=end.topic_id,
        )
    ]
    found = pa.concat_tables(chunks) if chunks else pa.schema([*schema, *PLACE]).empty_table()
    rows = found.drop_columns(PLACE.names)
    if rows.schema.names != schema.names or rows.schema.types != schema.types:
        raise Refused(
            f"the program's {name!r} has columns ({schema.to_string()}), and others were sent "
            f"({rows.schema.to_string()})",
            hint="replay with the program that ran then",
        )
    return Records(end.topic, end.upstream, rows.cast(schema), found.select(PLACE.names))


def as_taken(
    program: LoadedProgram, before: Manifest, after: Manifest, stage: Stage, read: dict[str, Records]
) -> tuple[dict[str, Records], dict[str, Records]]:
    """The records that a version's function and state got, of those that it read; and those that it rejected.

    Reads no SST where all were taken.
    """
    rejected, retried = rejected_of(after), rejected_of(after).waiting - rejected_of(before).waiting
    if not rejected.rows and retried >= 0:
        return read, {name: records.none for name, records in read.items()}
    rows = RejectedTable(program.store, program.cache, after.app, after.stage).rows(after)
    left_out = rows.filter(pc.equal(rows["version"], after.row_seq))
    taken_later = rows.filter(pc.fill_null(pc.equal(rows["retried"], after.row_seq), False))
    split = {name: _split(records, left_out) for name, records in read.items()}
    taken = {name: _with(records, taken_later, name, stage) for name, (records, _) in split.items()}
    return taken, {name: records for name, (_, records) in split.items()}


def _split(records: Records, rejected: pa.Table) -> tuple[Records, Records]:
    """The records that were taken, and those that were rejected."""
    mine = rejected.filter(pc.equal(rejected["topic"], records.topic)).select(["partition", "offset", "row"])
    if not mine.num_rows:
        return records, records.none
    left_out = places_of(mine.rename_columns(PLACE.names[:3]), records.place)
    return records.take(np.setdiff1d(np.arange(records.rows.num_rows), left_out)), records.take(left_out)


def _with(records: Records, retried: pa.Table, name: str, stage: Stage) -> Records:
    mine = retried.filter(pc.equal(retried["input"], name))
    if not mine.num_rows:
        return records
    rows = rows_of(stage, name, mine.to_pylist(), records.rows.schema)
    zeros = pa.repeat(pa.scalar(0, pa.int64()), mine.num_rows)
    times = mine["time"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    placed = pa.table([mine["partition"], mine["offset"], mine["row"], times, zeros], schema=PLACE)
    place = pa.concat_tables([records.place, placed])
    return Records(records.topic, records.upstream, pa.concat_tables([records.rows, rows]), place)
