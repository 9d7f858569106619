"""Small JSON objects beside an app's history: put, listed, read and removed, each kind in a folder of its own.

Snapshots, requests, the log of operations, signs of life, migrations, boundaries: what one says decides its name, so
whatever lies under another was not written there.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from ...errors import ObjectExists, ObjectNotFound
from ..objects.protocol import ObjectInfo, ObjectStore, documents
from . import codec, keys

T = TypeVar("T", bound=Struct)


def find(store: ObjectStore, key: str, kind: type[T], *, under: Callable[[T], str] | None = None) -> T | None:
    """What lies under a key; None when nothing does. Raises as `codec.read`."""
    try:
        return codec.read(store, key, kind, under=under)
    except ObjectNotFound:
        return None


def put(store: ObjectStore, key: str, note: Struct) -> None:
    """Write an object, whatever was there. One request."""
    store.put(key, codec.encode(note))


def add(store: ObjectStore, key: str, note: T, *, under: Callable[[T], str] | None = None) -> T:
    """Put an object where there is none; the one that lies there then. Raises as `find`."""
    data = codec.encode(note)
    while True:
        try:
            store.put_if_absent(key, data)
        except ObjectExists:
            if (found := find(store, key, type(note), under=under)) is not None:
                return found
        else:
            return note


@dataclass(frozen=True, slots=True)
class Notes(Generic[T]):
    """One kind. `of` is what the folder is of: an app, or a stage's sink, as `folder` takes it."""

    kind: type[T]
    folder: Callable[..., str]
    """Prefix of the keys."""
    name: Callable[[T], str | int]
    """What one is called in it. Numbers sort as such."""
    app: Callable[[T], str] | None = None
    """The app, or whatever the folder is of, that it says it is of, for kinds that do."""

    def key(self, note: T, *of: str) -> str:
        """Under which key it belongs."""
        return keys.note(self.folder(*((self.app(note),) if self.app is not None else of)), self.name(note))

    def put(self, store: ObjectStore, note: T, *of: str) -> None:
        """Write it, whatever was there. One request."""
        put(store, self.key(note, *of), note)

    def add(self, store: ObjectStore, note: T, *of: str) -> T:
        """Write it where there is none of its name; the one that is there then. One request, or two."""
        return add(store, self.key(note, *of), note, under=lambda found: self.key(found, *of))

    def remove(self, store: ObjectStore, name: str | int, *of: str) -> None:
        """Delete one; no error when it is gone. One request."""
        store.delete(keys.note(self.folder(*of), name))

    def find(self, store: ObjectStore, name: str | int, *of: str) -> T | None:
        """The one of that name, if there is one. One request. Raises as `all`."""
        return find(store, keys.note(self.folder(*of), name), self.kind, under=lambda note: self.key(note, *of))

    def listed(self, store: ObjectStore, *of: str, after: str | int = "") -> tuple[ObjectInfo, ...]:
        """The objects, by name, above one if that is said. One listing."""
        folder = self.folder(*of)
        return tuple(documents(store, folder, keys.note(folder, after) if after else ""))

    def read(self, store: ObjectStore, listed: Iterable[ObjectInfo], *of: str) -> Iterator[T]:
        """What these hold, in their order, without those that are gone since they were listed. A read for each.

        Raises `Corruption` where one cannot be read, or belongs elsewhere.
        """
        for info in listed:
            with suppress(ObjectNotFound):
                yield codec.read(store, info.key, self.kind, under=lambda note: self.key(note, *of))

    def all(self, store: ObjectStore, *of: str, since_ms: int = 0) -> tuple[T, ...]:
        """All that were written at that time or later, by storage's clock. One listing, and a read for each."""
        return tuple(self.read(store, (each for each in self.listed(store, *of) if each.modified_ms >= since_ms), *of))

    def newest(self, store: ObjectStore, *of: str, after: str | int = "") -> T | None:
        """The one whose name sorts last, above `after`. One listing, and a read if there is one. Raises as `read`."""
        while listed := self.listed(store, *of, after=after):
            for found in self.read(store, listed[-1:], *of):
                return found
            # Else a newer one has replaced it since the listing.
        return None

    def sweep(self, store: ObjectStore, listed: Iterable[ObjectInfo], is_old: Callable[[ObjectInfo], bool]) -> None:
        """Delete those that are old. A request for each."""
        for info in filter(is_old, listed):
            store.delete(info.key)
