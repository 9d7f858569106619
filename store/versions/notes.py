"""Small JSON objects beside an app's history: put, listed, read and removed, each kind in its own folder.

Used for snapshots, requests, the log of operations, heartbeats, migrations and boundaries. The content of a note
determines its key, so an object under another key is reported as corrupt.
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
    """Return the object under a key; None if there is none. Raises `Corruption` and `Unavailable`."""
    try:
        return codec.read(store, key, kind, under=under)
    except ObjectNotFound:
        return None


def put(store: ObjectStore, key: str, note: Struct) -> None:
    store.put(key, codec.encode(note))


def add(store: ObjectStore, key: str, note: T, *, under: Callable[[T], str] | None = None) -> T:
    """Create an object unless one exists, and return the stored one. Raises `Corruption` and `Unavailable`."""
    data = codec.encode(note)
    while True:
        try:
            store.put_if_absent(key, data)
        except ObjectExists:
            if (existing := find(store, key, type(note), under=under)) is not None:
                return existing
        else:
            return note


@dataclass(frozen=True, slots=True)
class Notes(Generic[T]):
    """One kind of note. `of` identifies the folder's owner: an app, or a stage's sink, as in `folder`."""

    kind: type[T]
    folder: Callable[..., str]
    """Function that returns the prefix of the keys."""
    name: Callable[[T], str | int]
    """Function that returns a note's name in the folder. Integers sort numerically."""
    app: Callable[[T], str] | None = None
    """Function that returns the folder's owner from a note, for kinds that contain it."""

    def key(self, note: T, *of: str) -> str:
        return keys.note(self.folder(*((self.app(note),) if self.app is not None else of)), self.name(note))

    def put(self, store: ObjectStore, note: T, *of: str) -> None:
        """Write or overwrite a note. Costs one request."""
        put(store, self.key(note, *of), note)

    def add(self, store: ObjectStore, note: T, *of: str) -> T:
        """Create a note unless one of its name exists, and return the stored one. Costs one or two requests."""
        return add(store, self.key(note, *of), note, under=lambda existing: self.key(existing, *of))

    def remove(self, store: ObjectStore, name: str | int, *of: str) -> None:
        """Delete a note; no error if it does not exist. Costs one request."""
        store.delete(keys.note(self.folder(*of), name))

    def find(self, store: ObjectStore, name: str | int, *of: str) -> T | None:
        """Return the note of that name, or None. Costs one request. Raises `Corruption` if it cannot be read."""
        return find(store, keys.note(self.folder(*of), name), self.kind, under=lambda note: self.key(note, *of))

    def listed(self, store: ObjectStore, *of: str, after: str | int = "") -> tuple[ObjectInfo, ...]:
        """Return the objects of this kind by name, those after `after` if given. Costs one listing."""
        folder = self.folder(*of)
        return tuple(documents(store, folder, keys.note(folder, after) if after else ""))

    def read(self, store: ObjectStore, listed: Iterable[ObjectInfo], *of: str) -> Iterator[T]:
        """Yield the listed notes, in order, without those deleted since. Costs one request each.

        Raises `Corruption` if one cannot be read, or belongs under another key.
        """
        for info in listed:
            with suppress(ObjectNotFound):
                yield codec.read(store, info.key, self.kind, under=lambda note: self.key(note, *of))

    def all(self, store: ObjectStore, *of: str, since_ms: int = 0) -> tuple[T, ...]:
        """Return all notes written at `since_ms` or later, by storage's clock. Costs a listing and one request each."""
        return tuple(self.read(store, (info for info in self.listed(store, *of) if info.modified_ms >= since_ms), *of))

    def newest(self, store: ObjectStore, *of: str, after: str | int = "") -> T | None:
        """Return the note whose name sorts last, above `after`, or None. Costs a listing and at most a read."""
        while listed := self.listed(store, *of, after=after):
            for note in self.read(store, listed[-1:], *of):
                return note
            # It was replaced by a newer note since the listing: list again.
        return None

    def sweep(self, store: ObjectStore, listed: Iterable[ObjectInfo], is_old: Callable[[ObjectInfo], bool]) -> None:
        """Delete the listed notes that are old. Costs one request each."""
        for info in filter(is_old, listed):
            store.delete(info.key)
