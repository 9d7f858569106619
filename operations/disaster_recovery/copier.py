"""Copies objects from one store to another, several at a time, each once; counts what that takes.

Objects never change, and lie under the same key in both: so one that is there in its whole length is that object.

Here too: what lies beside versions and snapshots and goes along, such as notes that versions go by, the log, the input
archive. Whatever folder an app has goes along, but for what is asked of its runners, and what a replica says of itself.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock

from ...errors import Corruption, ObjectExists, ObjectNotFound, Refused
from ...snapshot.gc.inventory import do_all
from ...store.objects.protocol import ObjectInfo, ObjectStore, exists
from ...store.read.fetch import fetch
from ...store.versions import apps, keys
from ...store.versions.forgotten import index as forgotten
from ...store.versions.manifest import Sst

WORKERS = 8
"""Objects at once, where nobody says how many. Each is in memory as a whole."""


@dataclass(slots=True)
class Copier:
    """From `source` to `target`, `workers` objects at once."""

    source: ObjectStore
    target: ObjectStore
    workers: int = WORKERS
    on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None
    """Told how many objects were copied, and of how many bytes."""
    objects: int = 0
    copied_bytes: int = 0
    _sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """What lies in folders of the target, by folder and key: listed once, and kept up to date."""
    _lock: Lock = field(default_factory=Lock)

    def ssts(self, wanted: Iterable[Sst], *, may_be_gone: bool) -> None:
        """Copy SSTs that are not there, each checked against its manifest.

        Raises `Corruption` where one is missing, unless it `may_be_gone`, or is not what was written; `Unavailable`.
        """
        missing = {sst.object: sst for sst in wanted if not self._has(sst.object, sst.bytes)}

        def copy(sst: Sst) -> None:
            try:
                data = fetch(self.source, sst)
            except Corruption:
                if may_be_gone and not exists(self.source, sst.object):
                    return
                raise
            self._put(sst.object, data)

        do_all(copy, missing.values(), self.workers)

    def listed(self, infos: Iterable[ObjectInfo]) -> None:
        """Copy objects that are not there in this length. One that is gone from the source by now is passed over."""
        do_all(lambda info: self.one(info.key), self.missing(infos), self.workers)

    def missing(self, infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        """Those that are not there in this length."""
        return [info for info in infos if not self._has(info.key, info.size_bytes)]

    def changed(self, infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        """Those that are there in another length."""
        return [info for info in self.missing(infos) if info.key in self._sizes[_folder(info.key)]]

    def one(self, key: str) -> bool:
        """Copy one object, whatever was there. Returns whether there is such a one."""
        try:
            data = self.source.get(key)
        except ObjectNotFound:
            return False
        self._put(key, data)
        return True

    def put(self, key: str, data: bytes) -> bool:
        """Put an object where there is none; whether it lies there now, as these bytes."""
        try:
            self.target.put_if_absent(key, data)
        except ObjectExists:
            return self.target.get(key) == data
        self._count(key, data)
        return True

    def forget(self, key: str) -> None:
        """An object of the target was deleted."""
        self._sizes.get(_folder(key), {}).pop(key, None)

    def _put(self, key: str, data: bytes) -> None:
        self.target.put(key, data)
        self._count(key, data)

    def _count(self, key: str, data: bytes) -> None:
        with self._lock:
            self.objects += 1
            self.copied_bytes += len(data)
            self._sizes.get(_folder(key), {})[key] = len(data)
            self.on_progress(self.objects, self.copied_bytes)

    def _has(self, key: str, size_bytes: int) -> bool:
        folder = _folder(key)
        if folder not in self._sizes:
            self._sizes[folder] = {info.key: info.size_bytes for info in self.target.list(folder)}
        return self._sizes[folder].get(key) == size_bytes


def _folder(key: str) -> str:
    return key[: key.rindex("/") + 1]


_OWN = ("stages", "snapshots", "boundaries", "replica", "replicas")
"""Folders that are copied otherwise, or not at all."""
_ASKED = ("requests", "retries", "edits", "runners", "forgetting")
"""What is asked of an app's runners, and says that they live: nobody runs a replica."""
_FIRST = ("migrations",)
"""What versions go by: it is there before they are."""
_FORGOTTEN = "forgotten"
"""What has the rest of objects out of which keys were taken: manifests and snapshots are read by it."""
_INDEX = "/index/"
"""In a key: an object that names others, which are there before it is."""


def copy_rules(copier: Copier, app: str) -> None:
    """Copy what versions go by: the app's migrations, what became of names that it has or had, and what was forgotten.

    The objects that this leads to are there before it is.
    """
    for folder in _FIRST:
        copier.listed(copier.source.list(f"{app}/{folder}/"))
    for name in copier.source.list_folders(f"{keys.NAMES}/"):
        if any(app in (each.folder, each.over, each.name) for each in apps.promotions(copier.source, name)):
            _check_name(copier, app, name)
            copier.listed(copier.source.list(keys.names(name)))
    new = copier.missing(copier.source.list(f"{app}/{_FORGOTTEN}/"))
    if new:
        for stage in copier.source.list_folders(keys.stages(app)):
            copier.listed(copier.source.list(keys.ssts(app, stage)))
            # Of edits whose texts had a key.
            copier.listed(copier.changed(copier.source.list(keys.manifests(app, stage))))
        prefix = keys.snapshots(app)
        copier.listed(info for info in copier.source.list(prefix) if "/" in info.key.removeprefix(prefix))
        left = (sst for sst in forgotten.newest(copier.source, app).ssts.values() if sst is not None)
        copier.ssts((sst for sst in left if not sst.object.startswith(f"{app}/")), may_be_gone=True)
        copier.listed(new)


def _check_name(copier: Copier, app: str, name: str) -> None:
    """Raise `Refused` where another app has a name in the target that went over in the source, or had it there."""
    source, target = copier.source, copier.target
    here, there = apps.NAMES.all(source, name), apps.NAMES.all(target, name)
    others = {name, *(folder for each in here for folder in (each.folder, each.over))} - {app} if not there else ()
    if there == here[: len(there)] and all(_is_copy(source, target, other) for other in others):
        return
    raise Refused(
        f"{app} of {source.url} has to do with the name {name!r}, and {target.url} has another app of that name",
        hint="choose another root: names of apps go along, and are each one app's",
    )


def _is_copy(source: ObjectStore, target: ObjectStore, app: str) -> bool:
    """Whether an app of the target, if there is one of that name, is a copy of the one of the source."""
    there, here = apps.find_app(target, app), apps.find_app(source, app)
    return there is None or (here is not None and here.created_ms == there.created_ms)


def was_forgotten(store: ObjectStore, app: str) -> str:
    """The newest that was written about what was forgotten of an app; empty for nothing. One listing."""
    return max((info.key for info in store.list(f"{app}/{_FORGOTTEN}/")), default="")


def copy_others(copier: Copier, app: str) -> None:
    """Copy everything else that lies beside versions."""
    for folder in others(copier.source, app):
        prefix = f"{app}/{folder}/"
        # What an index names was there before it: so it is in a listing that comes after that of the index.
        indexes = [info for info in copier.source.list(prefix) if _INDEX in info.key]
        copier.listed(info for info in copier.source.list(prefix) if _INDEX not in info.key)
        copier.listed(indexes)
    for key in (keys.channels(app), keys.protected(app)):
        _copy_document(copier, key)


def others(store: ObjectStore, app: str) -> Iterator[str]:
    """The folders of an app that go along as they are."""
    left_out = {*_OWN, *_ASKED, *_FIRST, _FORGOTTEN}
    return (name for name in store.list_folders(f"{app}/") if name not in left_out)


def gone_from(store: ObjectStore, target: ObjectStore, app: str) -> Iterator[ObjectInfo]:
    """Objects of these folders that the target has and the app has not any more."""
    for folder in (*others(target, app), _FORGOTTEN):
        prefix = f"{app}/{folder}/"
        there = list(target.list(prefix))
        left = {info.key for info in store.list(prefix)} if there else set()
        yield from (info for info in there if info.key not in left)


def _copy_document(copier: Copier, key: str) -> None:
    """Copy one that may be written over; where the app has none, the target has none."""
    try:
        data = copier.source.get(key)
    except ObjectNotFound:
        data = b""
    try:
        had = copier.target.get(key)
    except ObjectNotFound:
        had = b""
    if data and data != had:
        copier.one(key)
    elif had and not data:
        copier.target.delete(key)
