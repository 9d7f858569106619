"""The input archive without a key: its objects once more, and an index that names these instead."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from ... import instants
from ...errors import CommitConflict, ObjectNotFound
from ...moments.cut.moments import heads_of, stages_of
from ...moments.status import lag
from ...moments.status.lag import archives_of
from ...store.archive import index, objects
from ...store.archive.index import INDEXES, ArchiveIndex, ArchiveObject
from ...store.read.decode import read_whole
from ...store.versions.manifest import Manifest
from .family import Member
from .held import Held, Search
from .words import holding_any, taken

_ROUNDS = 100
"""Of which in each somebody else has changed the archive meanwhile."""
_PAUSES = 20
"""Until it is said instead what is to come: a runner archives every few seconds."""


def holders(search: Search) -> Iterator[tuple[ArchiveIndex, ArchiveObject]]:
    """The objects of all archives of an app that hold a key and were not seen yet. Raises `Corruption`, `Unavailable`.

    Those that hold none are known as `Search.clean` from then on.
    """
    for archive in index.all_of(search.member.store, search.member.app):
        for one in archive.objects:
            if one.object in search.clean:
                continue
            search.looked_into += 1
            if _holds(search, one):
                yield archive, one
            else:
                search.clean.add(one.object)


def take_out(search: Search, *, by: str, now_ms: Callable[[], int]) -> Iterator[tuple[ArchiveObject, int, int]]:
    """Have no index of an app name an object that holds a key; each that did, records that went, bytes in its place.

    Raises `CommitConflict` where others kept changing an archive, `Corruption` and `Unavailable`.
    """
    store = search.member.store
    for _ in range(_ROUNDS):
        by_archive: dict[str, tuple[ArchiveIndex, dict[str, ArchiveObject | None]]] = {}
        taken: list[tuple[ArchiveObject, int, int]] = []
        for archive, one in holders(search):
            made, rows = _rewritten(search, archive, one)
            by_archive.setdefault(archive.prefix, (archive, {}))[1][one.object] = made
            taken.append((one, rows, made.bytes if made is not None else 0))
        if not taken:
            return
        for archive, changes in by_archive.values():
            # It changes nothing where one of them was merged meanwhile: then all are looked at again.
            index.change(store, archive, index.exchanged(changes), by=by, now_ms=now_ms())
        yield from taken
    raise CommitConflict(
        f"the input archive of {search.member.app} kept changing while keys were to be forgotten", version=0
    )


def unnamed(search: Search) -> Iterator[tuple[Held, bool]]:
    """Objects in the archives' folders that hold a key, or cannot be decoded, and that the newest index does not name.

    And whether an earlier one names it: then nobody will any more. Else it was put a moment ago, or is litter.
    """
    store, app = search.member.store, search.member.app
    for archive in index.all_of(store, app):
        listed = [info for info in store.list(archive.prefix) if info.key.endswith(".parquet")]
        # After the listing: what was appended in between is named.
        indexes = [frozenset(one.object for one in each.objects) for each in INDEXES.all(store, archive.prefix)]
        earlier = frozenset().union(*indexes)
        for info in listed:
            if info.key not in indexes[-1] and _of_bytes(search, info.key):
                held = Held(app, store.url, info.key, "input archive", archive.topic, info.size_bytes, named=False)
                yield held, info.key in earlier


def await_appended(searches: Sequence[Search], pause: Callable[[], None]) -> None:
    """Wait for runners that are yet to archive what their apps have read by now, for some rounds of theirs.

    A record that was read before the keys went, and is archived afterwards, would bring one back.
    """
    waiting = [(search.member, tuple(_heads(search.member))) for search in searches]
    for _ in range(_PAUSES):
        waiting = [(each, heads) for each, heads in waiting if owed(each, heads) and _runs(each)]
        if not waiting:
            return
        pause()


def owed(member: Member, heads: Sequence[Manifest] = ()) -> dict[str, int]:
    """Offsets by topic that an app has read, by its newest versions or these, and that are to come into its archive."""
    found = archives_of(member.store, member.app, heads or _heads(member))
    return {each.topic: each.behind for each in found if each.behind}


def _heads(member: Member) -> Iterable[Manifest]:
    return heads_of(member.store, member.app, stages_of(member.store, member.app)).values()


def _runs(member: Member) -> bool:
    return bool(lag.beats(member.store, member.app, instants.now_ms()))


def _holds(search: Search, one: ArchiveObject) -> bool:
    return any(holding_any(rows, search.words, key="key") for rows in _rows(search, one))


def _rows(search: Search, one: ArchiveObject) -> Iterable[pa.Table]:
    return objects.ArchivedRecords(search.member.store, one).all()


def _of_bytes(search: Search, key: str) -> bool:
    try:
        return holding_any(read_whole(search.member.store.get(key)), search.words, key="key")
    except ObjectNotFound:
        return False
    except (pa.ArrowException, OSError):
        return True  # who knows


def _rewritten(search: Search, archive: ArchiveIndex, one: ArchiveObject) -> tuple[ArchiveObject | None, int]:
    """The object without the records that hold a key, put under a new name; None where none is left. And how many went.

    What it covers stays: these offsets were read, and nothing is to be read there any more.
    """
    writer, gone = objects.ArchiveWriter(), 0
    for rows in _rows(search, one):
        left, count = taken(rows, search.words)
        gone += count
        writer.append(left)
    if not writer.num_rows:
        return None, gone
    made, data = writer.finish(index.new_object(archive), one.extents, one.read_ms)
    search.member.store.put(made.object, data)
    return made, gone
