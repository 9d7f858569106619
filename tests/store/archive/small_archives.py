"""Small input archives for tests, and records for them."""

from collections.abc import Iterable

import pyarrow as pa
from slackwater.store.archive import columns, index
from slackwater.store.archive.extents import Extent, Extents
from slackwater.store.archive.index import ArchiveIndex, ArchiveObject
from slackwater.store.archive.objects import ArchiveWriter
from slackwater.store.objects.protocol import ObjectStore

TOPIC = "orders"
BY = "somebody@here"


def records(partition: int, offsets: Iterable[int], *, topic: str = TOPIC, size: int = 0) -> pa.Table:
    """Return a record at each of these offsets, with a value that identifies it."""
    at = list(offsets)
    values = [f"{partition}:{offset}".encode().ljust(size, b".") for offset in at]
    made = [
        pa.array([topic] * len(at), pa.string()),
        pa.array([partition] * len(at), pa.int32()),
        pa.array(at, pa.int64()),
        pa.array([1_000 + offset for offset in at], columns.TIME),
        pa.array([0] * len(at), pa.int32()),
        pa.array([b"k%d" % (offset % 5) for offset in at], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([[{"key": "h", "value": b"x"}] if offset % 3 == 0 else None for offset in at], columns.HEADERS),
    ]
    return pa.Table.from_arrays(made, schema=columns.SCHEMA)


def write(
    store: ObjectStore, archive: ArchiveIndex, rows: Iterable[pa.Table], extents: Extents, read_ms: int
) -> ArchiveObject:
    """Write these records as one object."""
    writer = ArchiveWriter()
    for each in rows:
        writer.append(each)
    made, data = writer.finish(index.new_object_key(archive), extents, read_ms)
    store.put(made.object, data)
    return made


def put(
    store: ObjectStore,
    archive: ArchiveIndex,
    *extents: Extent,
    read_ms: int = 1,
    gaps: frozenset[int] = frozenset(),
    **of: int,
) -> ArchiveObject:
    """Write one object with a record at each of these offsets, without those in `gaps`."""
    rows = [
        records(each.partition, (at for at in range(each.first, each.end) if at not in gaps), topic=archive.topic, **of)
        for each in extents
    ]
    return write(store, archive, rows, extents, read_ms)


def append(
    store: ObjectStore, app: str, *extents: Extent, topic: str = TOPIC, read_ms: int = 1, **of: int
) -> ArchiveIndex:
    """Append these offsets to an archive, as one object."""
    archive = index.newest(store, app, topic) or index.empty_index(app, topic)
    one = put(store, archive, *extents, read_ms=read_ms, **of)
    return index.change(
        store, index.empty_index(app, topic), index.append_update((one,), extents), by=BY, now_ms=read_ms
    )
