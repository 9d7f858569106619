"""Concurrent copying of immutable objects between stores.

An object counts as copied if the target has its full length.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import xxhash

from ...common import runtime
from ...common.runtime import Lock
from ...errors import Corruption, ObjectExists, ObjectNotFound
from ..objects.many import for_each_concurrently
from ..objects.protocol import ObjectInfo, ObjectStore, exists
from ..versions.entries.ssts import Sst
from .fetch import fetch

WORKERS = 8


@dataclass(slots=True)
class Copier:
    """Copies objects from the store `source` to `target` with `workers` threads, and counts objects and bytes."""

    source: ObjectStore
    target: ObjectStore
    workers: int = WORKERS
    on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None
    objects: int = 0
    copied_bytes: int = 0
    _sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=runtime.lock)

    def copy_ssts(self, ssts: Iterable[Sst], *, may_be_missing: bool) -> None:
        """Copy the SSTs that the target lacks. Each SST is verified against its manifest entry.

        With `may_be_missing`, SSTs that the source lacks are skipped. Raises `Corruption` for a damaged or missing SST.
        """
        missing = {sst.object: sst for sst in ssts if not self._has(sst.object, sst.bytes)}

        def copy(sst: Sst) -> None:
            try:
                data = fetch(self.source, sst)
            except Corruption:
                if may_be_missing and not exists(self.source, sst.object):
                    return
                raise
            self._put(sst.object, data)

        for_each_concurrently(copy, missing.values(), self.workers)

    def copy_sst_to(self, sst: Sst, key: str) -> None:
        """Copy an SST to a key, unless the target already has the same bytes under this key. Raises `Corruption`."""
        if not (self._has(key, sst.bytes) and xxhash.xxh3_128_hexdigest(self.target.get(key)) == sst.checksum):
            self._put(key, fetch(self.source, sst))

    def copy_listed(self, infos: Iterable[ObjectInfo]) -> None:
        """Copy the objects that the target lacks, or has with another length. Deleted objects are skipped."""
        for_each_concurrently(lambda info: self.copy_object(info.key), self.missing(infos), self.workers)

    def missing(self, infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        return [info for info in infos if not self._has(info.key, info.size_bytes)]

    def different(self, infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        return [info for info in self.missing(infos) if info.key in self._sizes[_folder(info.key)]]

    def copy_new(self, immutable: Iterable[str]) -> None:
        """Copy the objects under keys that the target lacks."""
        missing = {key: None for key in immutable if not self._has(key)}
        for_each_concurrently(self.copy_object, missing, self.workers)

    def copy_object(self, key: str) -> bool:
        try:
            data = self.source.get(key)
        except ObjectNotFound:
            return False
        self._put(key, data)
        return True

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object in the target. Returns True if the target then has these bytes under the key."""
        try:
            self.target.put_if_absent(key, data)
        except ObjectExists:
            return self.target.get(key) == data
        self._count(key, data)
        return True

    def record_deletion(self, key: str) -> None:
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

    def _has(self, key: str, size_bytes: int | None = None) -> bool:
        folder = _folder(key)
        with self._lock:  # concurrent callers list a folder only once
            if folder not in self._sizes:
                self._sizes[folder] = {info.key: info.size_bytes for info in self.target.list(folder)}
            size = self._sizes[folder].get(key)
            return size is not None and size_bytes in (None, size)


def _folder(key: str) -> str:
    return key[: key.rindex("/") + 1]
