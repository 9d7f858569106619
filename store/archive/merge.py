"""Putting objects into an archive: what was read, and small objects merged into large ones, so that it has few.

An object is put, and then an index names it. Objects of similar size are merged, the older before the younger, as
universal compaction does it: each record is written again as often as the logarithm of how many small objects there
were. One day's and the next day's are never merged, and what is as large as an object shall be is left alone: retention
lets go of whole objects.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import merge as in_order
from itertools import groupby

import pyarrow as pa

from ...common.durations import DAY_MS
from ..objects.protocol import ObjectStore, exists
from ..versions import horizon
from . import index
from .extents import Extents, union
from .index import ArchiveIndex, ArchiveObject
from .objects import ArchivedRecords, ArchiveWriter

_QUICK_S = 600.0
"""Nothing is swept that was put so recently and that no index names."""


TARGET_BYTES = 64 << 20
"""An object is not merged any more from half of this on."""
_WIDTH = 8
"""So many objects of one size make one of the next."""
_MOST = 64
"""Objects merged at once, each with a row group in memory."""


def pick(archive: ArchiveIndex, span_ms: int = DAY_MS, *, whole: bool = False) -> tuple[ArchiveObject, ...]:
    """The next objects to merge, at least two in the order of the index; none where nothing is to be done.

    `span_ms` is how far apart in time what was read may be for one object. With `whole`, few objects are reason enough.
    """
    small = [each for each in archive.objects if each.bytes < TARGET_BYTES // 2]
    for _, group in groupby(small, key=lambda each: each.read_ms // span_ms):
        some = tuple(group)
        if whole:
            if len(chosen := _fitting(some)) > 1:
                return chosen
            continue
        for _, alike in groupby(some, key=_size):
            if len(chosen := _fitting(tuple(alike))) >= _WIDTH:
                return chosen
    return ()


def _size(one: ArchiveObject) -> int:
    """Objects of the same number are of similar size."""
    return (one.bytes.bit_length() - 1) // 3


def _fitting(some: Sequence[ArchiveObject]) -> tuple[ArchiveObject, ...]:
    """As many of the first as come to no more than an object shall have."""
    total, chosen = 0, list[ArchiveObject]()
    for each in some[:_MOST]:
        total += each.bytes
        if total > TARGET_BYTES:
            break
        chosen.append(each)
    return tuple(chosen)


def merge(
    store: ObjectStore, archive: ArchiveIndex, inputs: Sequence[ArchiveObject], *, by: str, now_ms: int
) -> ArchiveIndex:
    """Put one object in the place of several: the index that has it, or the newest where it has not all of them.

    Raises `Corruption` where one is missing or damaged, which changes nothing, and as `index.change`.
    """
    writer = ArchiveWriter()
    for rows in _records(store, inputs):
        writer.append(rows)
    extents = union(*(each.extents for each in inputs))
    made = writer.finish(index.new_object(archive), extents, max(each.read_ms for each in inputs))
    return _named(store, archive, made, index.merged(inputs, made[0]), by=by, now_ms=now_ms)


def append(
    store: ObjectStore,
    archive: ArchiveIndex,
    writer: ArchiveWriter,
    read: Extents,
    read_ms: int,
    *,
    by: str,
    now_ms: int,
) -> ArchiveIndex:
    """Append what a writer has to the archive, of which `archive` was the newest index; the newest after that.

    `read` is all that was read for it, with or without records, and `read_ms` when the newest version that read of it
    was committed. Where the archive has some of it by then, nothing is appended: see what it lacks, and do it again.

    Raises as `index.change`.
    """
    made = writer.finish(index.new_object(archive), read, read_ms) if writer.num_rows else None
    update = index.appended((made[0],) if made is not None else (), read)
    return _named(store, archive, made, update, by=by, now_ms=now_ms)


def _named(
    store: ObjectStore,
    archive: ArchiveIndex,
    made: tuple[ArchiveObject, bytes] | None,
    update: index.Update,
    *,
    by: str,
    now_ms: int,
) -> ArchiveIndex:
    """Put an object, if there is one, and have the index name it; where it does not, the object goes."""
    clock = horizon.freshness(store)
    began = clock.now()
    if made is None:
        return index.change(store, archive, update, by=by, now_ms=now_ms)
    (one, data) = made
    store.put(one.object, data)
    newest = index.change(store, archive, update, by=by, now_ms=now_ms)
    if one not in newest.objects:
        with suppress(OSError):  # nobody names it: a collection takes it otherwise
            store.delete(one.object)
    elif clock.now() - began > _QUICK_S and not exists(store, one.object):
        store.put(one.object, data)
    return newest


def _records(store: ObjectStore, inputs: Sequence[ArchiveObject]) -> Iterator[pa.Table]:
    """The records of these objects, by partition and offset."""
    opened = [ArchivedRecords(store, each) for each in inputs]
    parts = ([(extent, number) for extent in one.extents] for number, one in enumerate(inputs))
    for extent, number in in_order(*parts):
        yield from opened[number].rows(extent.partition, extent.first, extent.end)
