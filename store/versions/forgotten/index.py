"""What became of objects that held keys which were forgotten: which ones have the rest of them now, if any has.

Manifests and snapshots are never changed. What they name is looked up here when they are read (`history`, and
`snapshot.cut.stored`), so all versions, old and new, change in one moment: when the app's index gets its next number.
An index is made where there is none of its number, and is the whole: the newest counts. It has what the app's own
manifests name, be it in the folder of another app whose SSTs a clone shares.

A process reads an app's index when it first reads one of its manifests with SSTs, one listing where nothing was
forgotten; and again where a manifest says that there is a newer one (`Manifest.forgotten`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from threading import Lock
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from ....errors import CommitConflict
from ...objects.protocol import ObjectStore
from .. import checks, keys, limits
from ..checks import Wrong
from ..manifest import Manifest, Sst
from ..notes import Notes
from ..side_tables import all_ssts, each_sst


class RecordsLeft(Struct, frozen=True):
    """What is left of an object with records in flight."""

    key: limits.Key | None
    """The object that has them; None where nothing is left."""
    rows: limits.Bytes = 0
    bytes: limits.Bytes = 0
    checksum: limits.Checksum = ""
    gone: limits.Counts = ()
    """How many records were forgotten, by Kafka partition, in this object since it was captured."""


class ForgottenIndex(Struct, frozen=True):
    """All that became of an app's objects: by the key of one that held a key, what has the rest of it, None for none.

    No name leads to another that leads on.
    """

    app: limits.Name
    number: limits.Version
    """From 1."""
    time_ms: limits.TimeMs
    by: limits.Line
    ssts: dict[limits.Key, Sst | None] = {}
    """As the app's manifests have it, but for partition and level, which are those that each manifest says."""
    records: dict[limits.Key, RecordsLeft] = {}
    """Records in flight that snapshots keep."""
    snapshots: dict[limits.Name, limits.TimeMs] = {}
    """The snapshots that held such a key, and when it was taken out of them last."""

    def sst(self, sst: Sst) -> Sst | None:
        """What has the rows of this SST now; None where none is left."""
        if sst.object not in self.ssts:
            return sst
        now = self.ssts[sst.object]
        # A version may have moved an SST to another level, and nothing else.
        return None if now is None else replace(now, partition=sst.partition, level=sst.level)

    @property
    def replaced(self) -> tuple[str, ...]:
        """The objects that are to be nowhere any more. Whoever copies an app's objects takes them out of the copy.

        That is, once this index is there too, and what it names.
        """
        return (*self.ssts, *self.records)

    def of(self, manifest: Manifest) -> Manifest:
        """A version with the SSTs that have its rows now; the very same where it names none that held a key."""
        if not self.ssts or not any(sst.object in self.ssts for sst in all_ssts(manifest)):
            return manifest
        return each_sst(manifest, self.sst)

    def names(self, objects: Iterable[str]) -> tuple[str, ...]:
        """The objects that manifests which name these SSTs mean by it."""
        return tuple(name for each in objects if (name := self._name(each)))

    def _name(self, name: str) -> str:
        if name not in self.ssts:
            return name
        now = self.ssts[name]
        return "" if now is None else now.object

    def with_changes(
        self,
        ssts: dict[str, Sst | None],
        records: dict[str, RecordsLeft],
        snapshots: dict[str, int],
    ) -> "ForgottenIndex":
        """With what became of further objects, or of those that took the place of others. Pure."""

        def sst_now(sst: Sst | None) -> Sst | None:
            return ssts.get(sst.object, sst) if sst is not None else None

        def records_now(had: RecordsLeft) -> RecordsLeft:
            now = records.get(had.key or "", had)
            return now if now is had else replace(now, gone=added(had.gone, now.gone))

        return replace(
            self,
            ssts={name: sst_now(now) for name, now in self.ssts.items()} | ssts,
            records={name: records_now(now) for name, now in self.records.items()} | records,
            snapshots=self.snapshots | snapshots,
        )


def added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The sum of two counts by Kafka partition, either of which may be shorter, or empty for nothing."""
    return tuple(has + more for has, more in zip_longest(one, other, fillvalue=0))


INDEXES = Notes(ForgottenIndex, keys.forgotten, lambda each: each.number, app=lambda each: each.app)
"""The newest counts."""


@checks.relations.register
def _(value: ForgottenIndex) -> Iterator[Wrong]:
    for name, sst in value.ssts.items():
        if sst is not None and sst.object in value.ssts:
            yield Wrong(f"ssts[{name!r}].object", sst.object, "an object that leads to no other")
    for name, each in value.records.items():
        if each.key is not None and each.key in value.records:
            yield Wrong(f"records[{name!r}].key", each.key, "an object that leads to no other")


def none_of(app: str) -> ForgottenIndex:
    """The index of an app of which nothing was forgotten; it is not stored."""
    return ForgottenIndex(app, 0, 0, "")


# By store, as `history` keeps manifests.
_known: WeakKeyDictionary[ObjectStore, dict[str, ForgottenIndex]] = WeakKeyDictionary()
_looked_for: WeakKeyDictionary[ObjectStore, dict[str, int]] = WeakKeyDictionary()
_lock = Lock()


def peek(store: ObjectStore, app: str) -> ForgottenIndex:
    """An app's index as this process knows it by now, without a request."""
    with _lock:
        return _known.get(store, {}).get(app) or none_of(app)


def newest(store: ObjectStore, app: str) -> ForgottenIndex:
    """An app's index as it is stored now. A listing, and a read if there is one."""
    found = INDEXES.newest(store, app) or none_of(app)
    with _lock:
        known = _known.setdefault(store, {})
        # Another thread may have read a newer one.
        if app not in known or known[app].number <= found.number:
            known[app] = found
        return known[app]


def known(store: ObjectStore, app: str, at_least: int = 0) -> ForgottenIndex:
    """An app's index as this process knows it, which is read if that is not known, or has a lower number than that."""
    with _lock:
        found = _known.get(store, {}).get(app)
        looked_for = _looked_for.setdefault(store, {})
        if found is not None and max(found.number, looked_for.get(app, 0)) >= at_least:
            return found
        looked_for[app] = at_least  # where it is missing, not with each manifest again
    return newest(store, app)


def sweep(store: ObjectStore, app: str, before_ms: int) -> None:
    """Delete the indexes that a newer one took the place of, written at that time or before. A listing, rarely more."""
    INDEXES.sweep(store, INDEXES.listed(store, app)[:-1], lambda info: info.modified_ms <= before_ms)


def drop(store: ObjectStore, app: str) -> None:
    """Know nothing any more of an app that was removed: another one of its name may have an index of that number."""
    with _lock:
        _known.get(store, {}).pop(app, None)
        _looked_for.get(store, {}).pop(app, None)


def resolved(store: ObjectStore, manifest: Manifest) -> Manifest:
    """A version with the SSTs that have its rows now; the very same where it names none that held a forgotten key.

    Raises as `newest`.
    """
    if not all_ssts(manifest):
        return manifest
    return known(store, manifest.app, manifest.forgotten).of(manifest)


_ATTEMPTS = 100


def change(
    store: ObjectStore, app: str, update: Callable[[ForgottenIndex], ForgottenIndex | None], *, by: str, now_ms: int
) -> ForgottenIndex:
    """Make the next index of the newest, by put-if-absent; after a lost race, of the next newest. Returns the newest.

    `update` is pure, and gives None where nothing is to be changed. Raises `CommitConflict` where others kept winning
    the race, and `Unstorable` where it would be too large.
    """
    for _ in range(_ATTEMPTS):
        head = newest(store, app)
        made = update(head)
        if made is None:
            return head
        made = replace(made, number=head.number + 1, time_ms=now_ms, by=by)
        # Numbers of indexes that were swept are free again: whoever was asleep may have taken such a one.
        if INDEXES.add(store, made) == made and newest(store, app).number == made.number:
            return made
    raise CommitConflict(f"others kept forgetting keys of {app} at the same moment", version=0, hint="try again")
