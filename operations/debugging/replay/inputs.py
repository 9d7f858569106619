"""Reader of the records that one version read from Kafka, with their positions, times and rejections.

In a user's topic, a record is a message; in a repartition topic, a record is a row. A version processes all records
that it reads and does not reject, and also the rejected records that it retries.
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
from ....pipeline.kafka.columns import MessageColumns
from ....pipeline.kafka.messages import decode_addressed, header_value, read_rows
from ....pipeline.kafka.protocol import Message
from ....pipeline.reject.table import RejectedTable, to_input_rows
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.cut.stored import ADDRESS_COLUMNS
from ....snapshot.diff.equality import find_row_numbers
from ....state import records
from ....state.records import Range
from ....store.objects.protocol import ObjectStore
from ....store.versions import history
from ....store.versions.manifest import Input, Manifest
from ....store.versions.side_tables import rejected_counts
from .program import LoadedProgram

_TIME = "_time"
_VERSION = "_version"
ORIGIN_SCHEMA = pa.schema(
    [
        *zip(ADDRESS_COLUMNS, (pa.int32(), pa.int64(), pa.int32()), strict=True),
        (_TIME, pa.int64()),
        (_VERSION, pa.int64()),
    ]
)
"""Columns with the origin of a record: see `InputRecords.origin`."""


@dataclass(frozen=True, slots=True)
class InputRecords:
    """Records that one version read on one input, in the order of Kafka partitions and offsets.

    Attributes:
        topic: The Kafka topic.
        upstream: Stage that wrote the records; empty for a user's topic.
        rows: Rows as the stage's function receives them.
        origin: For each record, `ADDRESS_COLUMNS` (row 0 for a message), the time of its message in milliseconds, and
            the upstream version that sent it (0 for a user's topic).
    """

    topic: str
    upstream: str
    rows: pa.Table
    origin: pa.Table

    def take(self, rows: npt.NDArray[np.int64]) -> InputRecords:
        chosen = pa.array(rows)
        return InputRecords(self.topic, self.upstream, self.rows.take(chosen), self.origin.take(chosen))

    @property
    def empty(self) -> InputRecords:
        return InputRecords(self.topic, self.upstream, self.rows.slice(0, 0), self.origin.slice(0, 0))

    @property
    def times_ms(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.origin[_TIME].to_numpy(), np.int64)

    @property
    def partitions(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.origin[ADDRESS_COLUMNS[0]].to_numpy(), np.int64)

    @property
    def versions(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.origin[_VERSION].to_numpy(), np.int64)

    def location(self, at: int) -> RecordLocation:
        partition, offset, row = (int(self.origin[name][at].as_py()) for name in ADDRESS_COLUMNS)
        return RecordLocation(self.topic, partition, offset, row if self.upstream else None)

    def index_of(self, record: RecordLocation) -> int | None:
        if record.topic != self.topic:
            return None
        address = zip(ADDRESS_COLUMNS, (record.partition, record.offset, record.row or 0), strict=True)
        matches = np.logical_and.reduce([self.origin[name].to_numpy() == value for name, value in address])
        return int(np.argmax(matches)) if matches.any() else None


def read_input(
    program: LoadedProgram, app: str, name: str, schema: pa.Schema, start: Input | None, end: Input
) -> InputRecords:
    """Return the records that a version read on the input `name`, from its start offsets to its end offsets.

    `schema` has the columns that the stage's function receives. `start` is the input in the previous version, None if
    that version did not read the input; `end` is the input in the version itself.

    Raises:
        Gone: Kafka no longer has all of the records.
        AnotherTopic: The topic was deleted and recreated since, and no archive has the records.
        Corruption: A repartition topic does not match its writer's manifests.
        NotFound: A manifest upstream was collected.
        Refused: The program reads other columns than were sent, or a topic cannot be read.
        Unavailable: The broker has been away for longer than `program.patience_s`.
    """
    no_offsets = (0,) * len(end.offsets)
    starts, starts_passed = (start.offsets, start.rows_passed) if start is not None else (no_offsets, no_offsets)
    parts = records.ranges(starts, end.offsets, starts_passed, end.rows_passed)
    if end.upstream:
        after = start.version if start is not None else 0
        return _read_channel(program, name, schema, end, parts, _attempt_versions(program.store, app, name, end, after))
    chunks = [
        MessageColumns(messages).to_spark_batch(schema)
        for span in parts
        for messages in program.kafka.read(
            end.topic, span.partition, span.first, span.last, patience_s=program.patience_s, topic_id=end.topic_id
        )
    ]
    rows = pa.Table.from_batches(chunks, schema)
    zeros = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    times = rows["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    place = [rows["partition"], rows["offset"], zeros.cast(pa.int32()), times, zeros]
    return InputRecords(end.topic, "", rows, pa.table(place, schema=ORIGIN_SCHEMA))


def _attempt_versions(store: ObjectStore, app: str, name: str, end: Input, after: int) -> dict[str, int]:
    senders = tuple(history.iter_between(store, app, end.upstream, after, end.version))
    attempts = records.sent_messages(name, senders).attempts
    rewinds = {manifest.version for manifest in senders if manifest.rewind is not None}
    # A rewind passes on attempts that earlier versions sent.
    handed_on = {attempt for attempt, version in attempts.items() if version in rewinds}
    earlier = (
        number for last in senders[-1:] for numbers in reversed(last.base_versions()) for number in reversed(numbers)
    )
    for version in earlier:
        if not handed_on:
            break
        output = history.read(store, app, end.upstream, version).outputs.get(name)
        if version not in rewinds and output is not None:
            matches = handed_on.intersection(output.attempts)
            attempts |= dict.fromkeys(matches, version)
            handed_on -= matches
    return attempts


def _read_channel(
    program: LoadedProgram, name: str, schema: pa.Schema, end: Input, parts: Iterator[Range], senders: Mapping[str, int]
) -> InputRecords:
    def decoded(messages: Sequence[Message]) -> Iterator[pa.Table]:
        for message in messages:
            for rows in decode_addressed([message], frozenset(senders)):
                for column, value in ((_TIME, message.timestamp()[1]), (_VERSION, senders[header_value(message)])):
                    rows = rows.append_column(column, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
                yield rows

    kafka, patience_s = program.kafka, program.patience_s
    chunks = [
        rows
        for span in parts
        for rows in read_rows(kafka, end.topic, (span,), decoded, patience_s=patience_s, topic_id=end.topic_id)
    ]
    table = pa.concat_tables(chunks) if chunks else pa.schema([*schema, *ORIGIN_SCHEMA]).empty_table()
    rows = table.drop_columns(ORIGIN_SCHEMA.names)
    if rows.schema.names != schema.names or rows.schema.types != schema.types:
        raise Refused(
            f"the program's {name!r} has columns ({schema.to_string()}), but the rows sent then have "
            f"({rows.schema.to_string()})",
            hint="replay with the program that ran then",
        )
    return InputRecords(end.topic, end.upstream, rows.cast(schema), table.select(ORIGIN_SCHEMA.names))


def split_rejected(
    program: LoadedProgram, previous: Manifest, after: Manifest, stage: Stage, read: dict[str, InputRecords]
) -> tuple[dict[str, InputRecords], dict[str, InputRecords]]:
    """Return two values: the records that a version processed, including retried records, and the records it rejected.

    Reads no SST if the version neither rejected nor retried a record.
    """
    rejected, retried = rejected_counts(after), rejected_counts(after).waiting - rejected_counts(previous).waiting
    if not rejected.rows and retried >= 0:
        return read, {name: records.empty for name, records in read.items()}
    rows = RejectedTable(program.store, program.cache, after.app, after.stage).read_rows(after)
    left_out = rows.filter(pc.equal(rows["version"], after.row_seq))
    retried_rows = rows.filter(pc.fill_null(pc.equal(rows["retried"], after.row_seq), False))
    split = {name: _split_input(records, left_out) for name, records in read.items()}
    processed = {name: _add_retried(records, retried_rows, name, stage) for name, (records, _) in split.items()}
    return processed, {name: records for name, (_, records) in split.items()}


def _split_input(records: InputRecords, rejected: pa.Table) -> tuple[InputRecords, InputRecords]:
    rejected_places = rejected.filter(pc.equal(rejected["topic"], records.topic)).select(["partition", "offset", "row"])
    if not rejected_places.num_rows:
        return records, records.empty
    left_out = find_row_numbers(rejected_places.rename_columns(ORIGIN_SCHEMA.names[:3]), records.origin)
    return records.take(np.setdiff1d(np.arange(records.rows.num_rows), left_out)), records.take(left_out)


def _add_retried(records: InputRecords, retried: pa.Table, name: str, stage: Stage) -> InputRecords:
    input_rows = retried.filter(pc.equal(retried["input"], name))
    if not input_rows.num_rows:
        return records
    rows = to_input_rows(stage, name, input_rows.to_pylist(), records.rows.schema)
    zeros = pa.repeat(pa.scalar(0, pa.int64()), input_rows.num_rows)
    times = input_rows["time"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    placed = pa.table(
        [input_rows["partition"], input_rows["offset"], input_rows["row"], times, zeros], schema=ORIGIN_SCHEMA
    )
    place = pa.concat_tables([records.origin, placed])
    return InputRecords(records.topic, records.upstream, pa.concat_tables([records.rows, rows]), place)
