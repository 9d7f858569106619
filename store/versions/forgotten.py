"""Forgotten keys: an app's index of the objects that were rewritten without them, and the journal of a forget.

The index maps the key of an old object to the new object, or to None.

Manifests and snapshots never change. The objects that they name are looked up in the index when they are read
(`history`, `snapshot.cut.stored`), so all versions change at once when the app's index gets its next number. An index
is created by put-if-absent, and the newest index contains all earlier replacements. It covers the objects that the
app's own manifests name. In a clone, these include objects in the folder of its source.

A process reads an app's index when it first reads a manifest of the app with SSTs (one listing if nothing was
forgotten), and again whenever a manifest requires a newer index (`Manifest.forgotten`).

While a forget is in progress, operations that would copy its keys wait, or are refused.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from ...common import runtime
from ...errors import CommitConflict
from ..objects.protocol import ObjectStore
from . import checks, codec, keys, limits
from .checks import Violation
from .codec import JsonFolder
from .entries.ssts import Sst
from .manifest import Manifest
from .side_tables import all_ssts, map_ssts


class RemainingRecords(Struct, frozen=True):
    """Object with the records that a forget left of an object with in-flight records."""

    key: limits.Key | None
    """Key of the object with the remaining records; None if no record remains."""
    rows: limits.Bytes = 0
    bytes: limits.Bytes = 0
    checksum: limits.Checksum = ""
    gone: limits.Counts = ()


class ForgottenIndex(Struct, frozen=True):
    """An app's index of objects from which keys were forgotten: maps an object's key to its replacement.

    A replacement never has a replacement.
    """

    app: limits.Name
    number: limits.Version
    time_ms: limits.TimeMs
    by: limits.ShortText
    ssts: dict[limits.Key, Sst | None] = {}
    """New SST by old key. Partition and level come from the manifest's entry for the old SST."""
    records: dict[limits.Key, RemainingRecords] = {}
    snapshots: dict[limits.Name, limits.TimeMs] = {}

    def current_sst(self, sst: Sst) -> Sst | None:
        """Return the SST that replaces `sst`, or `sst` itself; None if no row remains."""
        if sst.object not in self.ssts:
            return sst
        now = self.ssts[sst.object]
        # Versions may have different levels for the same SST, but nothing else differs.
        return None if now is None else replace(now, partition=sst.partition, level=sst.level)

    @property
    def replaced_keys(self) -> tuple[str, ...]:
        """Keys of replaced objects. This store and its copies must delete these objects.

        A copy may delete the objects once it has this index and all objects that the index names.
        """
        return (*self.ssts, *self.records)

    def apply_to(self, manifest: Manifest) -> Manifest:
        """Return the manifest with replaced SSTs; the same object if no SST was replaced."""
        if not self.ssts or not any(sst.object in self.ssts for sst in all_ssts(manifest)):
            return manifest
        return map_ssts(manifest, self.current_sst)

    def current_keys(self, objects: Iterable[str]) -> tuple[str, ...]:
        """Return the current keys of SST objects. Objects without remaining rows are left out."""
        current = (self.ssts.get(key, key) for key in objects)
        return tuple(now if isinstance(now, str) else now.object for now in current if now is not None)

    def with_changes(
        self,
        ssts: dict[str, Sst | None],
        records: dict[str, RemainingRecords],
        snapshots: dict[str, int],
    ) -> "ForgottenIndex":
        """Return the index with more replacements.

        If a replacement is itself replaced now, the original object gets the new replacement.
        """

        def sst_now(sst: Sst | None) -> Sst | None:
            return ssts.get(sst.object, sst) if sst is not None else None

        def records_now(had: RemainingRecords) -> RemainingRecords:
            now = records.get(had.key or "", had)
            return now if now is had else replace(now, gone=add_counts(had.gone, now.gone))

        return replace(
            self,
            ssts={name: sst_now(now) for name, now in self.ssts.items()} | ssts,
            records={name: records_now(now) for name, now in self.records.items()} | records,
            snapshots=self.snapshots | snapshots,
        )


def add_counts(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(has + more for has, more in zip_longest(first, second, fillvalue=0))


INDEXES = JsonFolder(ForgottenIndex, keys.forgotten, lambda index: index.number, owner_of=lambda index: index.app)


@checks.find_violations.register
def _(value: ForgottenIndex) -> Iterator[Violation]:
    for name, sst in value.ssts.items():
        if sst is not None and sst.object in value.ssts:
            yield Violation(f"ssts[{name!r}].object", sst.object, "an object that is not replaced itself")
    for name, records in value.records.items():
        if records.key is not None and records.key in value.records:
            yield Violation(f"records[{name!r}].key", records.key, "an object that is not replaced itself")


def empty_index(app: str) -> ForgottenIndex:
    return ForgottenIndex(app, 0, 0, "")


_indexes: WeakKeyDictionary[ObjectStore, dict[str, tuple[ForgottenIndex, int]]] = WeakKeyDictionary()
"""Cache by store and app: the newest index that was read, and the largest index number that a reader required."""
_lock = runtime.lock()


def newest(store: ObjectStore, app: str, at_least: int = 0) -> ForgottenIndex:
    """Return an app's newest index from the store. Costs a listing, and a read if there is an index."""
    stored = INDEXES.newest(store, app) or empty_index(app)
    with _lock:
        cached = _indexes.setdefault(store, {})
        # Another thread may have read a newer index.
        known, looked_for = cached.get(app, (stored, 0))
        newer = known if known.number > stored.number else stored
        cached[app] = newer, max(at_least, looked_for)
        return newer


def cached_index(store: ObjectStore, app: str, at_least: int | None = 0) -> ForgottenIndex:
    """Return an app's index from the cache. If it is not cached, or its number is below `at_least`, it is read.

    With `at_least` None, nothing is read, and the index is empty if it is not cached.
    """
    with _lock:
        index, looked_for = _indexes.get(store, {}).get(app, (None, 0))
    if at_least is None:
        return index or empty_index(app)
    # A missing index is not read again for each manifest.
    return index if index is not None and max(index.number, looked_for) >= at_least else newest(store, app, at_least)


def cache_missing_index(store: ObjectStore, app: str) -> None:
    """Cache that an app has no index, as the caller has seen in a listing. Does nothing if an index is cached."""
    with _lock:
        _indexes.setdefault(store, {}).setdefault(app, (empty_index(app), 0))


def delete_replaced(store: ObjectStore, app: str, before_ms: int) -> None:
    """Delete an app's superseded indexes that were written at `before_ms` or earlier. Usually costs a listing."""
    INDEXES.sweep(store, INDEXES.listed(store, app)[:-1], lambda info: info.modified_ms <= before_ms)


def drop_cached(store: ObjectStore, app: str) -> None:
    """Drop a removed app's index from the cache: a new app of this name may reuse the numbers."""
    with _lock:
        _indexes.get(store, {}).pop(app, None)


_ATTEMPTS = 100


def change(
    store: ObjectStore, app: str, update: Callable[[ForgottenIndex], ForgottenIndex | None], *, by: str, now_ms: int
) -> ForgottenIndex:
    """Commit a change to an app's index: create the next index by put-if-absent, and retry after a lost race.

    `update` is pure, and returns None to change nothing. Raises `CommitConflict` after many lost races, and
    `Unstorable` if the index would be too large.
    """
    for _ in range(_ATTEMPTS):
        head = newest(store, app)
        new = update(head)
        if new is None:
            return head
        new = replace(new, number=head.number + 1, time_ms=now_ms, by=by)
        # Numbers of deleted indexes are free again, and a delayed put may have used such a number.
        if INDEXES.add(store, new) == new and newest(store, app).number == new.number:
            return new
    raise CommitConflict(
        f"keys of {app} could not be forgotten: other processes kept forgetting keys at the same time",
        version=0,
        hint="try again",
    )


class RewrittenObject(Struct, frozen=True):
    """An object that a forget rewrote, with the number of removed rows."""

    what: limits.ShortText
    """Kind of object, in words (`operations.erasure.held.HeldObject.what`)."""
    of: limits.ShortText
    fields: dict[limits.ShortText, limits.Count]
    bytes: limits.Bytes
    written_bytes: limits.Bytes


class ForgetJournal(Struct, frozen=True):
    """Journal of a forget in progress. It is stored in the app, and in each app that shares SSTs with it."""

    id: limits.Ulid
    of: limits.Name
    by: limits.ShortText
    time_ms: limits.TimeMs
    salt: limits.ShortText
    digest: limits.Checksum
    """Salted digest of the keys, to recognise a repeated request. Deleted together with the journal."""
    message: limits.ShortText = ""
    taken: dict[limits.Key, RewrittenObject] = {}
    """Objects of the requested app that were or will be rewritten, by key. Contains no forgotten keys."""


def find_journal(store: ObjectStore, app: str) -> ForgetJournal | None:
    """Return the journal of a forget in progress in an app, or None. Costs one request."""
    return codec.find(store, keys.forget_journal(app), ForgetJournal)


def begin_journal(store: ObjectStore, app: str, note: ForgetJournal) -> ForgetJournal:
    """Write the journal of a forget, unless a journal exists. Returns the stored journal. Makes one or two requests."""
    return codec.add(store, keys.forget_journal(app), note)


def record_rewritten(store: ObjectStore, app: str, rewritten: dict[str, RewrittenObject]) -> None:
    """Add objects to the journal before they are rewritten. Costs two requests."""
    if rewritten and (note := find_journal(store, app)) is not None and not rewritten.items() <= note.taken.items():
        codec.put(store, keys.forget_journal(app), replace(note, taken=note.taken | rewritten))


def delete_journal(store: ObjectStore, app: str) -> None:
    store.delete(keys.forget_journal(app))
