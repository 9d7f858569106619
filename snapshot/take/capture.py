"""Captured in-flight records: channel states of a snapshot as Parquet objects, which outlive Kafka's retention.

An object has the channel's columns and the location of each record: `_partition`, `_offset` (of the message in the
repartition topic) and `_row` (within the message).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from ...common import runtime
from ...errors import Corruption, Gone, ObjectNotFound, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.read.decode import read_whole
from ...store.versions import keys
from ..cut.in_flight import InFlight
from ..cut.kafka_topics import KafkaTopics
from ..cut.stored import Captured, CapturedObject

_OBJECT_BYTES = 64 << 20


def capture_in_flight(
    store: ObjectStore, app: str, name: str, states: Iterable[InFlight], reader: KafkaTopics
) -> tuple[Captured, ...]:
    """Copy in-flight records from Kafka into objects of the snapshot `name`, except records without a receiver.

    Memory use is bounded by one object's records. The objects belong to the snapshot once it names them, and are
    deleted on failure. Raises `Corruption` if there are fewer or more records than the senders' manifests declare, and
    `Refused` if records are gone from Kafka.
    """
    written: list[CapturedObject] = []
    try:
        return tuple(_capture_one(store, app, name, state, reader, written) for state in states if state.receiver)
    except BaseException:
        # Retries while Kafka is unavailable must not leave many objects behind. The original error is raised.
        with suppress(Unavailable):
            for captured_object in written:
                store.delete(captured_object.key)
        raise


def read_captured(store: ObjectStore, captured: Captured, state: InFlight | None = None) -> Iterator[pa.Table]:
    """Yield the records of a captured channel, one object at a time.

    With `state`, yields only records that are also in flight in that channel state: the receiver may have consumed the
    others since the capture. Raises `Corruption` if an object is missing or damaged.
    """
    for captured_object in captured.objects:
        rows = read_captured_object(store, captured_object)
        if state is not None:
            partition, offset = rows["_partition"], rows["_offset"]
            starts, ends = (pa.array(bound, pa.int64()).take(partition) for bound in (state.starts, state.ends))
            rows = rows.filter(pc.and_(pc.greater_equal(offset, starts), pc.less(offset, ends)))
        yield rows


def read_captured_object(store: ObjectStore, captured_object: CapturedObject, *, check_pages: bool = False) -> pa.Table:
    """Read the records of one captured object; with `check_pages`, verify the checksum of every page.

    Raises `Corruption` if the object is missing or damaged.
    """
    try:
        data = store.get(captured_object.key)
    except ObjectNotFound:
        raise Corruption(
            f"{captured_object.key} is missing: its in-flight records are lost", object_key=captured_object.key
        ) from None
    problem = f"{len(data)} bytes; expected {captured_object.bytes}" if len(data) != captured_object.bytes else ""
    if not problem and (checksum := xxhash.xxh3_128_hexdigest(data)) != captured_object.checksum:
        problem = f"checksum {checksum}; expected {captured_object.checksum}"
    if problem:
        raise Corruption(f"{captured_object.key} is damaged: it has {problem}", object_key=captured_object.key)
    return read_whole(data, check_pages=check_pages)


def count_by_partition(rows: pa.Table, partitions: int) -> npt.NDArray[np.int64]:
    return np.bincount(rows["_partition"].to_numpy(), minlength=partitions)


def delete_captured(store: ObjectStore, captured: Iterable[Captured]) -> None:
    for captured_object in (captured_object for channel in captured for captured_object in channel.objects):
        store.delete(captured_object.key)


def put_object(store: ObjectStore, app: str, name: str, rows: pa.Table) -> CapturedObject:
    sink, key = BytesIO(), keys.captured_records(app, name, str(runtime.ulid()))
    # Weak compression, so that records are captured at least as fast as they are produced.
    pq.write_table(rows, sink, compression="lz4", write_page_checksum=True)
    data = sink.getvalue()
    store.put(key, data)
    return CapturedObject(key, rows.num_rows, len(data), xxhash.xxh3_128_hexdigest(data))


def _capture_one(
    store: ObjectStore, app: str, name: str, state: InFlight, reader: KafkaTopics, written: list[CapturedObject]
) -> Captured:
    counts, num_earlier = np.zeros(len(state.ends), np.int64), len(written)
    try:
        for rows in merge_chunks(reader.read(state)):
            counts += count_by_partition(rows, len(counts))
            written.append(put_object(store, app, name, rows))
    except Gone as error:
        raise Gone(
            f"in-flight records on {state.channel!r} to {state.receiver!r} cannot be captured: {error.message}",
            hint=f"stage {state.receiver!r} cannot read them either: start the app (`slackwater run`), which says how "
            "to continue without them, then take the snapshot",
        ) from None
    actual = tuple(counts.tolist())
    if state.counts and actual != state.counts:
        raise Corruption(
            f"channel {state.channel!r} holds {actual} records in flight by partition; "
            f"the manifests of {state.sender} and {state.receiver} count {state.counts}",
            object_key=state.topic,
        )
    return Captured(
        channel=state.channel,
        sender=state.sender,
        receiver=state.receiver,
        topic=state.topic,
        starts=state.starts,
        ends=state.ends,
        after=state.after,
        up_to=state.up_to,
        counts=actual,
        schema=state.schema,
        objects=tuple(written[num_earlier:]),
    )


def merge_chunks(chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate chunks into tables of about one object's size; yields no empty table."""
    pending: list[pa.Table] = []
    for chunk in chunks:
        if chunk.num_rows:
            pending.append(chunk)
        if sum(table.nbytes for table in pending) >= _OBJECT_BYTES:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)
