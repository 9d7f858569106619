"""Writes objects of an archive: appends new records, and merges small objects into large ones.

An object is put before an index names it. As in universal compaction, objects of similar size are merged in order, so
each record is rewritten O(log of the number of small objects) times. Objects of different days are never merged, and
large objects are not merged, because retention deletes whole objects.
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

_MAX_UNCHECKED_S = 600.0


TARGET_BYTES = 64 << 20
"""Target size of a merged object. Objects of half this size or more are not merged."""
_MERGE_WIDTH = 8
_MAX_INPUTS = 64


def pick_inputs(
    archive: ArchiveIndex, period_ms: int = DAY_MS, *, all_sizes: bool = False
) -> tuple[ArchiveObject, ...]:
    """Return the next objects to merge, in index order; none if there is nothing to merge.

    All returned objects are small, and their `read_ms` lie in one period of length `period_ms`. A merge takes eight or
    more objects of similar size; with `all_sizes`, two or more of any size.
    """
    small = [item for item in archive.objects if item.bytes < TARGET_BYTES // 2]
    for _, group in groupby(small, key=lambda item: item.read_ms // period_ms):
        period = tuple(group)
        if all_sizes:
            if len(chosen := _fitting_prefix(period)) > 1:
                return chosen
            continue
        for _, same_size in groupby(period, key=_size_class):
            if len(chosen := _fitting_prefix(tuple(same_size))) >= _MERGE_WIDTH:
                return chosen
    return ()


def _size_class(item: ArchiveObject) -> int:
    return (item.bytes.bit_length() - 1) // 3


def _fitting_prefix(items: Sequence[ArchiveObject]) -> tuple[ArchiveObject, ...]:
    total, chosen = 0, list[ArchiveObject]()
    for item in items[:_MAX_INPUTS]:
        total += item.bytes
        if total > TARGET_BYTES:
            break
        chosen.append(item)
    return tuple(chosen)


def merge(
    store: ObjectStore, archive: ArchiveIndex, inputs: Sequence[ArchiveObject], *, by: str, now_ms: int
) -> ArchiveIndex:
    """Replace several objects of an archive by one object. Returns the archive's newest index.

    Nothing is replaced if an input is no longer in the archive. Raises `Corruption`, before any change, if an input is
    missing or damaged, and `CommitConflict`.
    """
    writer = ArchiveWriter()
    for rows in _read_in_order(store, inputs):
        writer.append(rows)
    extents = union(*(item.extents for item in inputs))
    output = writer.finish(index.new_object_key(archive), extents, max(item.read_ms for item in inputs))
    update = index.replace_update(dict.fromkeys(item.object for item in inputs) | {inputs[0].object: output[0]})
    return _commit_object(store, archive, output, update, by=by, now_ms=now_ms)


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
    """Append the records of a writer to an archive. Returns the newest index.

    `archive` is an index that was the newest. `read` has all offsets that were read, including offsets without a
    record. `read_ms` is the commit time of the newest version that read any of the records. If the archive already
    covers some of the offsets, nothing is appended: the caller must recompute what to append, and retry. Raises
    `CommitConflict` and `Corruption`.
    """
    output = writer.finish(index.new_object_key(archive), read, read_ms) if writer.num_rows else None
    update = index.append_update((output[0],) if output is not None else (), read)
    return _commit_object(store, archive, output, update, by=by, now_ms=now_ms)


def _commit_object(
    store: ObjectStore,
    archive: ArchiveIndex,
    output: tuple[ArchiveObject, bytes] | None,
    update: index.Update,
    *,
    by: str,
    now_ms: int,
) -> ArchiveIndex:
    clock = horizon.freshness(store)
    began = clock.now()
    if output is None:
        return index.change(store, archive, update, by=by, now_ms=now_ms)
    (item, data) = output
    store.put(item.object, data)
    newest = index.change(store, archive, update, by=by, now_ms=now_ms)
    if item not in newest.objects:
        with suppress(OSError):  # otherwise garbage collection deletes the object
            store.delete(item.object)
    elif clock.now() - began > _MAX_UNCHECKED_S and not exists(store, item.object):
        store.put(item.object, data)
    return newest


def _read_in_order(store: ObjectStore, inputs: Sequence[ArchiveObject]) -> Iterator[pa.Table]:
    opened = [ArchivedRecords(store, item) for item in inputs]
    parts = ([(extent, number) for extent in item.extents] for number, item in enumerate(inputs))
    for extent, number in in_order(*parts):
        yield from opened[number].rows(extent.partition, extent.first, extent.end)
