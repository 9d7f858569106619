"""Messages of repartition topics, which are streams of one Arrow batch each, or markers.

Every message of a repartition topic carries one header, `slackwater: <attempt>`, or `slackwater: marker <snapshot>`.
Readers take the messages of the attempts that manifests name and pass over all others. A row's address is
`topic[partition]@offset+row`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Corruption, Gone, KeysForgotten
from ...snapshot.cut.stored import ADDRESS
from ...store.sst.evolution import fits
from .protocol import HEADER, MOST_RECORD, Kafka, Message, Offsets, Record

_MARKER = "marker "
_MESSAGE_ROWS = 32_768
_MESSAGE_BYTES = 512 << 10
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def encode(rows: pa.RecordBatch) -> bytes:
    """One message's value."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


class RowTooLarge(Exception):
    """A row that no message has room for: the row, and the bytes that it takes."""

    def __init__(self, row: pa.RecordBatch, size: int) -> None:
        super().__init__(f"a row of {size:,} bytes")
        self.row, self.size = row, size


def _encoded(rows: pa.RecordBatch) -> Iterator[bytes]:
    value = encode(rows)
    if len(value) <= MOST_RECORD:
        yield value
        return
    half = rows.num_rows // 2
    if not half:
        raise RowTooLarge(rows, len(value))
    yield from _encoded(rows.slice(0, half))
    yield from _encoded(rows.slice(half))


def split(rows: pa.Table, partitions: npt.NDArray[np.integer]) -> Iterator[tuple[int, bytes]]:
    """Messages of at most a few hundred KB, as (partition, value), for rows and each one's partition.

    A message with a row that is larger may have `MOST_RECORD` bytes. Raises `RowTooLarge` for one beyond that.
    """
    if rows.num_rows == 0:
        return
    order = np.argsort(partitions, kind="stable")
    counts = np.bincount(partitions)
    sorted_rows = rows.take(pa.array(order)).combine_chunks()
    per_row = max(1, sorted_rows.nbytes // rows.num_rows)
    step = int(max(1, min(_MESSAGE_ROWS, _MESSAGE_BYTES // per_row)))
    at = 0
    for partition, count in enumerate(counts.tolist()):
        for first in range(at, at + count, step):
            for batch in sorted_rows.slice(first, min(step, at + count - first)).to_batches():
                yield from ((partition, value) for value in _encoded(batch))
        at += count


def send(
    kafka: Kafka, topic: str, messages: Iterable[tuple[int, bytes]], header: bytes, *, patience_s: float
) -> dict[int, int]:
    """Write messages of ours, (partition, value) each. Returns and raises as `Kafka.send`.

    What did get written before an error nobody will read, as no manifest will name this attempt.
    """
    records = (Record(value, partition, headers=((HEADER, header),)) for partition, value in messages)
    return kafka.send(topic, records, patience_s=patience_s)


def write_markers(kafka: Kafka, topic: str, partitions: int, snapshot: str, patience_s: float) -> Offsets:
    """Write a snapshot's marker to each partition, after all that the version wrote there; its offset in each.

    A marker counts when a manifest names its offset: that of a writer which fails before its commit is passed over.
    Raises `Unavailable` when the broker has been away for longer than `patience_s`.
    """
    messages = [(partition, b"") for partition in range(partitions)]
    ends = send(kafka, topic, messages, marker_header(snapshot), patience_s=patience_s)
    return tuple(ends[partition] - 1 for partition in range(partitions))


def marker_header(snapshot: str) -> bytes:
    """Header of the marker of a snapshot; its message has no value."""
    return f"{_MARKER}{snapshot}".encode()


def marker_of(header: str) -> str:
    """The snapshot whose marker has this header; empty when it is not a marker's."""
    return header.removeprefix(_MARKER) if header.startswith(_MARKER) else ""


def header_of(message: Message) -> str:
    """What the message says of itself; empty when it is not ours."""
    for name, value in message.headers() or ():
        if name == HEADER and value is not None:
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return ""


def of_attempts(messages: Iterable[Message], attempts: frozenset[str]) -> Iterator[Message]:
    """Those of the messages that these attempts wrote."""
    return (message for message in messages if header_of(message) in attempts)


def decode(messages: Sequence[Message], attempts: frozenset[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the messages that these attempts wrote, in the columns of the schema.

    Rows that were sent before a migration may lack columns, which are null then, or have further ones. Raises
    `Corruption` for rows of which nobody knows how they fit.
    """
    for message in of_attempts(messages, attempts):
        for rows in _batches(message):
            if rows.schema.names == schema.names and rows.schema.types == schema.types:
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
                continue
            if not fits(rows.schema, schema):
                sent, expected = (", ".join(f"{one.name} {one.type}" for one in each) for each in (rows.schema, schema))
                raise Corruption(
                    f"message {_address(message)} has rows of ({sent}); expected ({expected})",
                    object_key=_address(message),
                    hint="the stage that writes it was changed while records were in flight: run its old code until "
                    "they are consumed, then the new",
                )
            there = set(rows.schema.names)
            columns = [
                rows.column(each.name).cast(each.type) if each.name in there else pa.nulls(rows.num_rows, each.type)
                for each in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def decode_addressed(messages: Sequence[Message], attempts: frozenset[str]) -> Iterator[pa.Table]:
    """The rows of the messages that these attempts wrote, each with its `ADDRESS`, in the columns that were sent.

    Raises `Corruption`.
    """
    for message in of_attempts(messages, attempts):
        rows = rows_of(message)
        place = (
            pa.repeat(pa.scalar(message.partition(), pa.int32()), rows.num_rows),
            pa.repeat(pa.scalar(message.offset(), pa.int64()), rows.num_rows),
            pa.array(np.arange(rows.num_rows, dtype=np.int32)),
        )
        for name, column in zip(ADDRESS, place, strict=True):
            rows = rows.append_column(name, column)
        yield rows


def rows_of(message: Message) -> pa.Table:
    """The rows of one message. Raises `Corruption`."""
    return pa.Table.from_batches(_batches(message))


def read_rows(
    kafka: Kafka,
    topic: str,
    partition: int,
    start: int,
    end: int,
    sent: int | None,
    decoded: Callable[[Sequence[Message]], Iterator[_Rows]],
    *,
    patience_s: float,
    topic_id: str = "",
) -> Iterator[_Rows]:
    """What `decoded` makes of the messages at offsets start to end - 1 of one partition of a repartition topic.

    `sent` is how many rows there must be, None where that is not known. With a `topic_id`, it must be that topic.
    Raises `Corruption` where they are more or fewer, and as `Kafka.read`; what is gone does not matter where no row of
    it was.
    """
    found = 0
    gone: list[Gone] = []
    where = (topic, partition, start, end)
    for chunk in kafka.read(*where, patience_s=patience_s, gone=None if sent is None else gone, topic_id=topic_id):
        for rows in decoded(chunk):
            found += rows.num_rows
            yield rows
    check_count(*where, found, sent, gone)


def _batches(message: Message) -> list[pa.RecordBatch]:
    address = _address(message)
    try:
        with pa.ipc.open_stream(message.value() or b"") as reader:
            batches = list(reader)
    except (pa.ArrowException, OSError) as error:
        # Arrow reports a stream that was cut short as an error of I/O, also where there is no file.
        raise Corruption(f"message {address} is not an Arrow stream: {error}", object_key=address) from error
    if not batches:
        raise Corruption(f"message {address} is an Arrow stream without a record batch", object_key=address)
    return batches


def _address(message: Message) -> str:
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"


def check_count(
    topic: str, partition: int, start: int, end: int, found: int, sent: int | None, gone: Sequence[Gone]
) -> None:
    """See that a range held as many rows as its writers' manifests say. Raises `Corruption`, or what is `gone`.

    Fewer are right where keys of them were forgotten.
    """
    if sent is None or found == sent:
        return
    if lost := [each for each in gone if not isinstance(each, KeysForgotten)]:
        raise lost[-1]
    if not gone or found > sent:
        address = f"{topic}[{partition}]@{start}..{end}"
        raise Corruption(
            f"{address} holds {found} rows of the attempts that count; their manifests say {sent}",
            object_key=address,
            hint="was the topic written to by something else, or were records deleted from it?",
        )
