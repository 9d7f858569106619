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

from ...errors import Refused
from ...fold import records
from ...fold.records import Range
from ...moments.cut.stored import ADDRESS
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.aside import rejected_of
from ...store.versions.manifest import Input, Manifest
from ..api.stage import Stage
from ..kafka.messages import decode_addressed, header_of, read_rows, topic_columns
from ..kafka.protocol import Kafka, Message
from ..reject.table import RejectedTable, rows_of
from .program import Program

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

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """A column of `place`."""
        return np.asarray(self.place[name].to_numpy(), np.int64)

    @property
    def times_ms(self) -> npt.NDArray[np.int64]:
        """When the records' messages were made, by their timestamps."""
        return self.column(_TIME)

    @property
    def versions(self) -> npt.NDArray[np.int64]:
        """The upstream versions that sent them."""
        return self.column(_VERSION)


def read_inputs(
    kafka: Kafka,
    store: ObjectStore,
    before: Manifest | None,
    after: Manifest,
    schemas: Mapping[str, pa.Schema],
    *,
    patience_s: float,
) -> dict[str, Records]:
    """What a version read, by the input's declared name.

    Args:
        kafka: Kafka, opened.
        store: The store of the app.
        before: The version before it.
        after: The version.
        schemas: The columns that the stage's function gets, by the input's declared name.
        patience_s: How long the broker may be away.

    Raises:
        Gone: Kafka does not have all of it any more.
        Corruption: A repartition topic holds something else than its writer's manifests say.
        NotFound: A manifest upstream was collected.
        Refused: The program reads other columns than were sent; or a topic cannot be read.
        Unavailable: The broker has been away for longer than `patience_s`.
    """
    found = {}
    for name, schema in schemas.items():
        end = after.inputs[name]
        start = before.inputs.get(name) if before is not None else None
        reader = _Reader(kafka, name, schema, start, end, patience_s)
        found[name] = reader.channel(store, after.app) if end.upstream else reader.topic()
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one input from where one version stood to where the next did."""

    kafka: Kafka
    name: str
    schema: pa.Schema
    start: Input | None
    end: Input
    patience_s: float

    def topic(self) -> Records:
        """The records of a user's topic."""
        chunks = [
            pa.Table.from_arrays(topic_columns(messages), schema=self.schema)
            for one in self._ranges()
            for messages in self.kafka.read(
                self.end.topic, one.partition, one.first, one.last, patience_s=self.patience_s
            )
        ]
        rows = pa.concat_tables(chunks) if chunks else self.schema.empty_table()
        nothing = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
        times = rows["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        place = [rows["partition"], rows["offset"], nothing.cast(pa.int32()), times, nothing]
        return Records(self.end.topic, "", rows, pa.table(place, schema=PLACE))

    def channel(self, store: ObjectStore, app: str) -> Records:
        """The rows of a repartition topic."""
        after = self.start.version if self.start is not None else 0
        versions = range(after + 1, self.end.version + 1)
        senders = records.sent(
            self.name, (history.read(store, app, self.end.upstream, version) for version in versions)
        ).attempts

        def decoded(messages: Sequence[Message]) -> Iterator[pa.Table]:
            for message in messages:
                for rows in decode_addressed([message], frozenset(senders)):
                    for name, value in ((_TIME, message.timestamp()[1]), (_VERSION, senders[header_of(message)])):
                        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
                    yield rows

        chunks = [
            rows
            for one in self._ranges()
            for rows in read_rows(
                self.kafka,
                self.end.topic,
                one.partition,
                one.first,
                one.last,
                one.rows,
                decoded,
                patience_s=self.patience_s,
            )
        ]
        found = pa.concat_tables(chunks) if chunks else pa.schema([*self.schema, *PLACE]).empty_table()
        rows = found.drop_columns(PLACE.names)
        if rows.schema.names != self.schema.names or rows.schema.types != self.schema.types:
            raise Refused(
                f"the program's {self.name!r} has columns ({self.schema.to_string()}), and others were sent "
                f"({rows.schema.to_string()})",
                hint="replay with the program that ran then",
            )
        return Records(self.end.topic, self.end.upstream, rows.cast(self.schema), found.select(PLACE.names))

    def _ranges(self) -> Iterator[Range]:
        """Where there is anything."""
        start, nothing = self.start, (0,) * len(self.end.offsets)
        starts, passed = (start.offsets, start.passed) if start is not None else (nothing, nothing)
        return records.ranges(starts, self.end.offsets, passed, self.end.passed)


def as_taken(
    program: Program,
    before: Manifest,
    after: Manifest,
    stage: Stage,
    schemas: Mapping[str, pa.Schema],
    read: dict[str, Records],
) -> dict[str, Records]:
    """The records that a version's function and state got, of those that it read. Reads no SST where all were taken."""
    rejected, retried = rejected_of(after), rejected_of(after).waiting - rejected_of(before).waiting
    if not rejected.rows and retried >= 0:
        return read
    rows = RejectedTable(program.store, program.cache, after.app, after.stage).rows(after)
    left_out = rows.filter(pc.equal(rows["version"], after.row_seq))
    again = rows.filter(pc.fill_null(pc.equal(rows["retried"], after.row_seq), False))
    return {
        name: _with(_without(records, left_out), again, name, stage, schemas[name]) for name, records in read.items()
    }


def _without(records: Records, rejected: pa.Table) -> Records:
    mine = rejected.filter(pc.equal(rejected["topic"], records.topic))
    if not mine.num_rows or not records.rows.num_rows:
        return records
    partition, offset, row = PLACE.names[:3]
    out = {tuple(each.values()) for each in mine.select(["partition", "offset", "row"]).to_pylist()}
    offsets = np.isin(records.column(offset), [each[1] for each in out])
    keep = np.ones(records.rows.num_rows, bool)
    for place in np.flatnonzero(offsets).tolist():
        address = tuple(records.place[name][place].as_py() for name in (partition, offset, row))
        keep[place] = address not in out
    return records.take(np.flatnonzero(keep))


def _with(records: Records, retried: pa.Table, name: str, stage: Stage, schema: pa.Schema) -> Records:
    mine = retried.filter(pc.equal(retried["input"], name))
    if not mine.num_rows:
        return records
    rows = rows_of(stage, name, mine.to_pylist(), schema)
    nothing = pa.repeat(pa.scalar(0, pa.int64()), mine.num_rows)
    times = mine["time"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    placed = pa.table([mine["partition"], mine["offset"], mine["row"], times, nothing], schema=PLACE)
    place = pa.concat_tables([records.place, placed])
    return Records(records.topic, records.upstream, pa.concat_tables([records.rows, rows]), place)
