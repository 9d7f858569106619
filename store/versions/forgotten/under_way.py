"""Note of a forget in progress: operations that would copy its keys wait, or are refused."""

from msgspec import Struct
from msgspec.structs import replace

from ...objects.protocol import ObjectStore
from .. import keys, limits, notes


class Taken(Struct, frozen=True):
    """An object that had forgotten keys, and the number of removed rows."""

    what: limits.Line
    """Kind of the object, as in `operations.erasure.held.Held.what`."""
    of: limits.Line
    """Table, channel or topic."""
    fields: dict[limits.Line, limits.Count]
    """Number of rows or records by the field that matched a key."""
    bytes: limits.Bytes
    written_bytes: limits.Bytes
    """Bytes of the object that replaces it."""


class Forgetting(Struct, frozen=True):
    """Note of a forget in progress, in the app and in each app that shares its SSTs."""

    id: limits.Ulid
    of: limits.Name
    """App for which the forget was requested."""
    by: limits.Line
    time_ms: limits.TimeMs
    salt: limits.Line
    digest: limits.Checksum
    """Salted digest of the keys, to recognise a repeated request. Deleted with the note."""
    message: limits.Line = ""
    taken: dict[limits.Key, Taken] = {}
    """Objects rewritten so far or next, by key, in the requested app. Has no forgotten keys."""


def find(store: ObjectStore, app: str) -> Forgetting | None:
    """Return the note of a forget in progress in an app, or None. Costs one request."""
    return notes.find(store, keys.forgetting(app), Forgetting)


def begin(store: ObjectStore, app: str, note: Forgetting) -> Forgetting:
    """Write the note unless one exists, and return the stored one. Costs one or two requests."""
    return notes.add(store, keys.forgetting(app), note)


def note_taken(store: ObjectStore, app: str, rewritten: dict[str, Taken]) -> None:
    """Add objects to the note before they are rewritten, for the report of a resumed forget. Costs two requests."""
    if rewritten and (note := find(store, app)) is not None and not rewritten.items() <= note.taken.items():
        notes.put(store, keys.forgetting(app), replace(note, taken=note.taken | rewritten))


def end(store: ObjectStore, app: str) -> None:
    store.delete(keys.forgetting(app))
