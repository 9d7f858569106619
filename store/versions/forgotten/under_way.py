"""The note that keys are being forgotten in an app: what could make another copy of them waits, or is refused."""

from msgspec import Struct

from .... import instants
from ....errors import Refused
from ...objects.protocol import ObjectStore
from .. import keys, limits, notes


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


def find(store: ObjectStore, app: str) -> Forgetting | None:
    """The note, where keys are being forgotten in an app. One request."""
    return notes.find(store, keys.forgetting(app), Forgetting)


def begin(store: ObjectStore, app: str, note: Forgetting) -> Forgetting:
    """Write the note, unless there is one; the one that is there. One request, or two."""
    return notes.add(store, keys.forgetting(app), note)


def end(store: ObjectStore, app: str) -> None:
    """Take the note away. One request."""
    store.delete(keys.forgetting(app))


def check_none(store: ObjectStore, app: str, what: str) -> None:
    """Raise `Refused` where keys are being forgotten in an app; `what` cannot be done meanwhile. One request."""
    if (note := find(store, app)) is not None:
        raise Refused(
            f"{note.by} forgets keys of {note.of} since {instants.iso(note.time_ms)}: {what} meanwhile",
            hint="let that end, and try again; if it broke off, `slackwater forget` with the same keys finishes it, "
            f"and `slackwater forget {note.of} --give-up` ends it for those who do not have them",
        )
