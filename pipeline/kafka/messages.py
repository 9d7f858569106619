"""Encoding of messages of repartition topics: an Arrow stream with one batch, or a marker.

Every message of a repartition topic carries one header, `slackwater: <attempt>`, or `slackwater: marker <snapshot>`.
Readers keep only messages whose attempt a manifest names. A row's location is `topic[partition]@offset+row`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Corruption, Gone, KeysForgotten
from ...snapshot.cut.stored import ADDRESS_COLUMNS
from ...state.records import Range
from ...store.sst.schema import can_read_rows_of
from .protocol import HEADER_NAME, MAX_RECORD_BYTES, Kafka, Message, Offsets, Record

_MARKER = "marker "
_MESSAGE_ROWS = 32_768
_MESSAGE_BYTES = 512 << 10
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)
_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def encode_rows(rows: pa.RecordBatch | pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_IPC_OPTIONS) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


class RowTooLarge(Exception):
    """Error for a row that exceeds the maximum size of a message. Holds the row and its encoded size in bytes."""

    def __init__(self, row: pa.RecordBatch, size: int) -> None:
        super().__init__(f"a row of {size:,} bytes")
        self.row, self.size = row, size


def _encode_halving(rows: pa.RecordBatch) -> Iterator[bytes]:
    value = encode_rows(rows)
    if len(value) <= MAX_RECORD_BYTES:
        yield value
        return
    half = rows.num_rows // 2
    if not half:
        raise RowTooLarge(rows, len(value))
    yield from _encode_halving(rows.slice(0, half))
    yield from _encode_halving(rows.slice(half))


def split_into_messages(rows: pa.Table, partitions: npt.NDArray[np.integer]) -> Iterator[tuple[int, bytes]]:
    """Split rows into messages of at most a few hundred KB for each row's partition. Yields (partition, value).

    A larger row becomes a message of its own, up to `MAX_RECORD_BYTES`; beyond that limit, raises `RowTooLarge`.
    """
    if rows.num_rows == 0:
        return
    order = np.argsort(partitions, kind="stable")
    counts = np.bincount(partitions)
    sorted_rows = rows.take(pa.array(order)).combine_chunks()
    per_row = max(1, sorted_rows.nbytes // rows.num_rows)
    step = int(max(1, min(_MESSAGE_ROWS, _MESSAGE_BYTES // per_row)))
    start = 0
    for partition, count in enumerate(counts.tolist()):
        for first in range(start, start + count, step):
            for batch in sorted_rows.slice(first, min(step, start + count - first)).to_batches():
                yield from ((partition, value) for value in _encode_halving(batch))
        start += count


def send_messages(
    kafka: Kafka, topic: str, messages: Iterable[tuple[int, bytes]], header: bytes, *, patience_s: float
) -> dict[int, int]:
    """Write (partition, value) messages with slackwater's header. Return the end offset of each written partition.

    If the call fails, readers skip the messages already written, because no manifest names their attempt. Raises
    `Refused`, `SendFailed` or `Unavailable`.
    """
    records = (Record(value, partition, headers=((HEADER_NAME, header),)) for partition, value in messages)
    return kafka.send(topic, records, patience_s=patience_s)


def write_markers(kafka: Kafka, topic: str, partitions: int, snapshot: str, patience_s: float) -> Offsets:
    """Write a snapshot's marker to each partition, after the version's own messages. Return the markers' offsets.

    A marker counts only if a manifest names its offset. So markers of a writer that fails before its commit are
    skipped. Raises `Unavailable` if the broker does not answer for longer than `patience_s`.
    """
    messages = [(partition, b"") for partition in range(partitions)]
    ends = send_messages(kafka, topic, messages, marker_header(snapshot), patience_s=patience_s)
    return tuple(ends[partition] - 1 for partition in range(partitions))


def marker_header(snapshot: str) -> bytes:
    return f"{_MARKER}{snapshot}".encode()


def snapshot_of_marker(header: str) -> str:
    return header.removeprefix(_MARKER) if header.startswith(_MARKER) else ""


def header_value(message: Message) -> str:
    for name, value in message.headers() or ():
        if name == HEADER_NAME and value is not None:
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return ""


def filter_by_attempts(messages: Iterable[Message], attempts: frozenset[str]) -> Iterator[Message]:
    return (message for message in messages if header_value(message) in attempts)


def decode_rows(messages: Sequence[Message], attempts: frozenset[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the messages that these attempts wrote, with the columns of the schema.

    Rows sent before a migration may lack columns, which become null, or have extra columns, which are dropped. Raises
    `Corruption` for rows that cannot be converted to the schema.
    """
    for message in filter_by_attempts(messages, attempts):
        for rows in _batches(message):
            if rows.schema.names == schema.names and rows.schema.types == schema.types:
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
                continue
            if not can_read_rows_of(rows.schema, schema):
                sent, expected = (", ".join(f"{col.name} {col.type}" for col in kind) for kind in (rows.schema, schema))
                raise Corruption(
                    f"message {_record_location(message)} has rows of ({sent}); expected ({expected})",
                    object_key=_record_location(message),
                    hint="the sending stage was changed while records were in flight: run its old code until they are "
                    "consumed, then the new code",
                )
            names = set(rows.schema.names)
            columns = [
                rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def decode_addressed(messages: Sequence[Message], attempts: frozenset[str]) -> Iterator[pa.Table]:
    """Yield the rows that these attempts wrote, each with its Kafka partition, offset and position in its message.

    The other columns are as sent. Raises `Corruption` for messages that are not an Arrow stream.
    """
    for message in filter_by_attempts(messages, attempts):
        rows = rows_of(message)
        address_columns = (
            pa.repeat(pa.scalar(message.partition(), pa.int32()), rows.num_rows),
            pa.repeat(pa.scalar(message.offset(), pa.int64()), rows.num_rows),
            pa.array(np.arange(rows.num_rows, dtype=np.int32)),
        )
        for name, column in zip(ADDRESS_COLUMNS, address_columns, strict=True):
            rows = rows.append_column(name, column)
        yield rows


def rows_of(message: Message) -> pa.Table:
    return pa.Table.from_batches(_batches(message))


def read_rows(
    kafka: Kafka,
    topic: str,
    parts: Sequence[Range],
    decode_run: Callable[[Sequence[Message]], Iterator[_Rows]],
    *,
    patience_s: float,
    topic_id: str = "",
) -> Iterator[_Rows]:
    """Read ranges of different partitions of a repartition topic, and yield the decoded rows.

    `decode_run` converts messages of one partition to batches. If `topic_id` is given, the topic must have this id.
    Deleted offsets are accepted if all expected rows were read. Raises `Corruption` if the number of rows of a range is
    known and differs. Raises `AnotherTopic`, `Gone`, `Refused` and `Unavailable` if the read fails.
    """
    num_rows = dict.fromkeys((part.partition for part in parts), 0)
    gone: dict[int, list[Gone]] = {partition: [] for partition in num_rows}
    lost = None if any(part.rows is None for part in parts) else gone
    for chunk in kafka.read_ranges(topic, parts, patience_s=patience_s, deletion_errors=lost, topic_id=topic_id):
        for run in chunk:
            for rows in decode_run(run):
                num_rows[run[0].partition()] += rows.num_rows
                yield rows
    for part in parts:
        check_row_count(topic, part, num_rows[part.partition], gone[part.partition])


def _batches(message: Message) -> list[pa.RecordBatch]:
    address = _record_location(message)
    try:
        with pa.ipc.open_stream(message.value() or b"") as reader:
            batches = list(reader)
    except (pa.ArrowException, OSError) as error:
        # Arrow raises OSError for a truncated stream, even for one in memory.
        raise Corruption(f"message {address} is not an Arrow stream: {error}", object_key=address) from error
    if not batches:
        raise Corruption(f"message {address} is an Arrow stream without a record batch", object_key=address)
    return batches


def _record_location(message: Message) -> str:
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"


def check_row_count(topic: str, part: Range, num_rows: int, deletion_errors: Sequence[Gone]) -> None:
    """Check that a range had the number of rows that its writers' manifests state.

    If the manifests state no number, nothing is checked.

    Fewer rows are accepted if there are deletion errors and all are `KeysForgotten`. Any other difference raises the
    last deletion error of another class, or `Corruption` if there is none.
    """
    sent = part.rows
    if sent is None or num_rows == sent:
        return
    if lost_ranges := [error for error in deletion_errors if not isinstance(error, KeysForgotten)]:
        raise lost_ranges[-1]
    if not deletion_errors or num_rows > sent:
        address = f"{topic}[{part.partition}]@{part.first}..{part.last}"
        raise Corruption(
            f"{address} holds {num_rows} rows of committed attempts, but the manifests say {sent}",
            object_key=address,
            hint="did another program write to the topic, or delete records from it?",
        )
