"""Appending to an archive: an object is put, and then an index names it."""

from contextlib import suppress

from ..objects.protocol import ObjectStore, exists
from ..versions import horizon
from . import index
from .extents import Extents
from .index import ArchiveIndex
from .objects import ArchiveWriter

_QUICK_S = 600.0
"""Nothing is swept that was put so recently and that no index names."""


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
    clock = horizon.freshness(store)
    began = clock.now()
    one, data = writer.finish(index.new_object(archive), read, read_ms) if writer.num_rows else (None, b"")
    objects = () if one is None else (one,)
    for each in objects:
        store.put(each.object, data)
    update = index.appended(objects, read)
    made = index.change_of(store, archive, update, by=by, now_ms=now_ms)
    for each in objects:
        if each not in made.objects:
            with suppress(OSError):  # nobody names it: a collection takes it otherwise
                store.delete(each.object)
        elif clock.now() - began > _QUICK_S and not exists(store, each.object):
            store.put(each.object, data)
    return made
