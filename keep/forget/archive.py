"""The input archive without a key: its objects once more, and an index that names these instead."""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from ...errors import CommitConflict
from ...store.archive import index, objects
from ...store.archive.index import INDEXES, ArchiveIndex, ArchiveObject
from ...store.read.decode import read_whole
from ...store.versions import keys
from .held import Search
from .words import holding

_ROUNDS = 100
"""Of which in each somebody else has changed the archive meanwhile."""


def holders(search: Search) -> Iterator[tuple[ArchiveIndex, ArchiveObject]]:
    """The objects of all archives of an app that hold a key. Raises `Corruption` and `Unavailable`."""
    yield from _holders(search, set())


def _holders(search: Search, clean: set[str]) -> Iterator[tuple[ArchiveIndex, ArchiveObject]]:
    """Those that are not known to be `clean`, to which the others are added."""
    for archive in index.all_of(search.member.store, search.member.app):
        for one in archive.objects:
            if one.object in clean:
                continue
            search.looked_into += 1
            if _holds(search, one):
                yield archive, one
            else:
                clean.add(one.object)


def take_out(search: Search, *, by: str, now_ms: Callable[[], int]) -> Iterator[tuple[ArchiveObject, int, int]]:
    """Have no index of an app name an object that holds a key; each that did, records that went, bytes in its place.

    Raises `CommitConflict` where others kept changing an archive, `Corruption` and `Unavailable`.
    """
    store, app, clean = search.member.store, search.member.app, set[str]()
    for _ in range(_ROUNDS):
        by_archive: dict[tuple[str, int], dict[str, ArchiveObject | None]] = {}
        taken: list[tuple[ArchiveObject, int, int]] = []
        for archive, one in _holders(search, clean):
            made, rows = _rewritten(search, archive, one)
            by_archive.setdefault((archive.topic, archive.life), {})[one.object] = made
            taken.append((one, rows, made.bytes if made is not None else 0))
        if not taken:
            return
        for (topic, life), changes in by_archive.items():
            # It changes nothing where one of them was merged meanwhile: then all are looked at again.
            index.change(store, app, topic, index.exchanged(changes), life=life, by=by, now_ms=now_ms())
        yield from taken
    raise CommitConflict(f"the input archive of {app} kept changing while keys were to be forgotten", version=0)


def replaced(search: Search) -> Iterator[str]:
    """Objects that an earlier index names and the newest does not: nothing will name them any more."""
    store, app = search.member.store, search.member.app
    for archive in index.all_of(store, app):
        named = {one.object for one in archive.objects}
        there = {info.key for info in store.list(keys.archive(app, archive.folder))}
        earlier = {one.object for each in INDEXES.all(store, keys.archive(app, archive.folder)) for one in each.objects}
        for key in sorted((earlier - named) & there):
            if _of_bytes(search, store.get(key)):
                yield key


def _holds(search: Search, one: ArchiveObject) -> bool:
    return any(holding(rows, search.words, key="key").any() for rows in _rows(search, one))


def _rows(search: Search, one: ArchiveObject) -> Iterable[pa.Table]:
    return objects.ArchivedRecords(search.member.store, one).all()


def _of_bytes(search: Search, data: bytes) -> bool:
    return bool(holding(read_whole(data), search.words, key="key").any())


def _rewritten(search: Search, archive: ArchiveIndex, one: ArchiveObject) -> tuple[ArchiveObject | None, int]:
    """The object without the records that hold a key, put under a new name; None where none is left. And how many went.

    What it covers stays: these offsets were read, and nothing is to be read there any more.
    """
    writer, gone = objects.ArchiveWriter(), 0
    for rows in _rows(search, one):
        mine = holding(rows, search.words, key="key")
        gone += int(mine.sum())
        writer.append(rows.filter(pa.array(~mine)))
    if not writer.num_rows:
        return None, gone
    made, data = writer.finish(index.new_object(archive), one.extents, one.read_ms)
    search.member.store.put(made.object, data)
    return made, gone
