"""Records in flight, kept: the channel states of a snapshot as Parquet beside it, so that they outlive retention.

An object holds the channel's own columns and each record's address: `_partition`, `_offset` (of the message in the
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
from ulid import ULID

from ...errors import Corruption, Gone, ObjectNotFound, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.read.decode import read_whole
from ...store.versions import keys
from ..cut.in_flight import InFlight
from ..cut.kafka_topics import Topics
from ..cut.stored import Captured, CapturedObject

_OBJECT_BYTES = 64 << 20
"""Arrow bytes of the records in one object: what is held in memory at once."""


def capture(
    store: ObjectStore, app: str, name: str, states: Iterable[InFlight], reader: Topics
) -> tuple[Captured, ...]:
    """Copy records in flight from Kafka to objects of snapshot `name`. Channels that nobody reads are left out.

    Memory holds one object's records at a time. Nothing counts until a snapshot names the objects. Where it fails, what
    it has written is deleted. Raises `Corruption` (there are not as many records as their writers' manifests say), and
    `Refused` (records are gone from Kafka).
    """
    written: list[CapturedObject] = []
    try:
        return tuple(_capture_one(store, app, name, state, reader, written) for state in states if state.receiver)
    except BaseException:
        # Completers try again and again while Kafka is away: they must not pile up objects. The failure itself is what
        # the caller must hear of.
        with suppress(Unavailable):
            for each in written:
                store.delete(each.key)
        raise


def read(store: ObjectStore, captured: Captured, state: InFlight | None = None) -> Iterator[pa.Table]:
    """The records of a captured channel, an object at a time.

    With `state` only those: its receiver may have read further than the one for which they were captured. Raises
    `Corruption` when an object is gone, or is not what was written.
    """
    for each in captured.objects:
        rows = read_object(store, each)
        if state is not None:
            partition, offset = rows["_partition"], rows["_offset"]
            starts, ends = (pa.array(bound, pa.int64()).take(partition) for bound in (state.starts, state.ends))
            rows = rows.filter(pc.and_(pc.greater_equal(offset, starts), pc.less(offset, ends)))
        yield rows


def read_object(store: ObjectStore, each: CapturedObject, *, check_pages: bool = False) -> pa.Table:
    """The records of one object. `check_pages` looks at the checksum of every page, too.

    Raises `Corruption` (it is gone, or is not what was written).
    """
    try:
        data = store.get(each.key)
    except ObjectNotFound:
        raise Corruption(f"{each.key} is missing: these records in flight are gone", object_key=each.key) from None
    wrong = f"{len(data)} bytes; expected {each.bytes}" if len(data) != each.bytes else ""
    if not wrong and (found := xxhash.xxh3_128_hexdigest(data)) != each.checksum:
        wrong = f"checksum {found}; expected {each.checksum}"
    if wrong:
        raise Corruption(f"{each.key} is not what was written: it has {wrong}", object_key=each.key)
    return read_whole(data, check_pages=check_pages)


def count_by_partition(rows: pa.Table, partitions: int) -> npt.NDArray[np.int64]:
    """How many of the records, which have an `ADDRESS`, are of each Kafka partition."""
    return np.bincount(rows["_partition"].to_numpy(), minlength=partitions)


def discard(store: ObjectStore, captured: Iterable[Captured]) -> None:
    """Delete objects that no snapshot names."""
    for one in (one for each in captured for one in each.objects):
        store.delete(one.key)


def put_object(store: ObjectStore, app: str, name: str, rows: pa.Table) -> CapturedObject:
    """Put records in flight that a snapshot of this name keeps."""
    sink, key = BytesIO(), keys.captured(app, name, str(ULID()))
    # Light compression: records must be kept at least as fast as they were written.
    pq.write_table(rows, sink, compression="lz4", write_page_checksum=True)
    data = sink.getvalue()
    store.put(key, data)
    return CapturedObject(key, rows.num_rows, len(data), xxhash.xxh3_128_hexdigest(data))


def _capture_one(
    store: ObjectStore, app: str, name: str, state: InFlight, reader: Topics, written: list[CapturedObject]
) -> Captured:
    """One channel; each object is added to `written` as soon as it is written."""
    counts, before = np.zeros(len(state.ends), np.int64), len(written)
    try:
        for rows in gathered(reader.read(state)):
            counts += count_by_partition(rows, len(counts))
            written.append(put_object(store, app, name, rows))
    except Gone as error:
        raise Gone(
            f"records in flight on {state.channel!r} to {state.receiver!r} cannot be kept: {error.message}",
            hint=f"stage {state.receiver!r} cannot read them any more either: start the app (`slackwater run`), "
            "which says how to go on without them, and take the snapshot then",
        ) from None
    found = tuple(counts.tolist())
    if state.counts and found != state.counts:
        raise Corruption(
            f"channel {state.channel!r} holds {found} records in flight by partition; "
            f"{state.sender} and {state.receiver} say {state.counts}",
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
        counts=found,
        schema=state.schema,
        objects=tuple(written[before:]),
    )


def gathered(chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Chunks put together to tables worth an object each, which one with rows gets."""
    gathered: list[pa.Table] = []
    for chunk in chunks:
        if chunk.num_rows:
            gathered.append(chunk)
        if sum(table.nbytes for table in gathered) >= _OBJECT_BYTES:
            yield pa.concat_tables(gathered)
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered)
