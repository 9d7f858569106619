"""The log of operations: every snapshot, clone or removal done to an app, who did it and when."""

import getpass
import socket

from msgspec import Struct
from ulid import ULID

from ..store import codec, keys
from ..store import limits as fits
from ..store.errors import ObjectNotFound
from ..store.objects import ObjectStore, documents

__all__ = ["Operation", "list_operations", "record", "whoami"]


class Operation(Struct, frozen=True):
    """One operation on an app. `id` is a ULID: operations sort by it in the order they were recorded."""

    id: fits.Ulid
    app: fits.Name
    verb: fits.Line
    """What was done, as the command line calls it: `snapshot take`, `clone`."""
    detail: fits.Text
    by: fits.Line
    """user@host."""
    time_ms: fits.TimeMs


def record(store: ObjectStore, app: str, verb: str, detail: str, by: str) -> Operation:
    """Add an operation to the app's log. One request."""
    ulid = ULID()
    done = Operation(id=str(ulid), app=app, verb=verb, detail=detail, by=by, time_ms=ulid.milliseconds)
    store.put(keys.operation(app, done.id), codec.encode(done))
    return done


def list_operations(store: ObjectStore, app: str, limit: int = 0) -> tuple[Operation, ...]:
    """The newest `limit` operations (0 for all), newest first. One listing, and one read for each shown."""
    names = sorted((info.key for info in documents(store, keys.operations(app))), reverse=True)
    found: list[Operation] = []
    for key in names[: limit or None]:
        try:
            found.append(codec.read(store, key, Operation, under=lambda done: keys.operation(app, done.id)))
        except ObjectNotFound:
            continue  # removed since the listing
    return tuple(found)


def whoami() -> str:
    """user@host of this process, for `by`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container's user id without a name
    return f"{user}@{socket.gethostname()}"
