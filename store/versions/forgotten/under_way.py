"""The note that keys are being forgotten in an app: what could make another copy of them waits, or is refused."""

from msgspec import Struct
from msgspec.structs import replace

from ...objects.protocol import ObjectStore
from .. import keys, limits, notes


class Taken(Struct, frozen=True):
    """An object that held keys, and what went with it."""

    what: limits.Line
    """As `operations.erasure.held.Held.what`."""
    of: limits.Line
    """The table, channel or topic."""
    fields: dict[limits.Line, limits.Count]
    """By the field that equalled a key, rows or records."""
    bytes: limits.Bytes
    written_bytes: limits.Bytes
    """Of the object in its place."""


class Forgetting(Struct, frozen=True):
    """The note that keys are being forgotten in an app, and in those that have its SSTs: each has one."""

    id: limits.Ulid
    of: limits.Name
    """The app that it was asked of."""
    by: limits.Line
    time_ms: limits.TimeMs
    salt: limits.Line
    digest: limits.Checksum
    """Of the keys, with the salt: tells whether the same ones are asked for again. It goes with the note."""
    message: limits.Line = ""
    """Why, in the words of whoever began it."""
    taken: dict[limits.Key, Taken] = {}
    """In the app that it was asked of: by object, all that went so far, or is about to. No key stands here."""


def find(store: ObjectStore, app: str) -> Forgetting | None:
    """The note, where keys are being forgotten in an app. One request."""
    return notes.find(store, keys.forgetting(app), Forgetting)


def begin(store: ObjectStore, app: str, note: Forgetting) -> Forgetting:
    """Write the note, unless there is one; the one that is there. One request, or two."""
    return notes.add(store, keys.forgetting(app), note)


def note_taken(store: ObjectStore, app: str, taken: dict[str, Taken]) -> None:
    """Add objects to the note of what goes, before they do: who finishes it tells of the whole. Two requests."""
    if taken and (note := find(store, app)) is not None and not taken.items() <= note.taken.items():
        notes.put(store, keys.forgetting(app), replace(note, taken=note.taken | taken))


def end(store: ObjectStore, app: str) -> None:
    """Take the note away. One request."""
    store.delete(keys.forgetting(app))
