"""The log of operations: every snapshot, clone or removal done to an app, who did it and when."""

import getpass
import socket
import sys
from collections.abc import Callable, Iterator
from itertools import islice, takewhile

from msgspec import Struct
from ulid import ULID

from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits
from ...store.versions.notes import Notes


class Operation(Struct, frozen=True):
    """One operation on an app. `id` is a ULID: operations sort by it in the order they were recorded."""

    id: limits.Ulid
    app: limits.Name
    verb: limits.Line
    """What was done, as the command line calls it: `snapshot take`, `clone`."""
    detail: limits.Text
    by: limits.Line
    """user@host."""
    time_ms: limits.TimeMs


OPERATIONS = Notes(Operation, keys.operations, lambda done: done.id)
"""The log, oldest first."""


def record(store: ObjectStore, app: str, verb: str, detail: str, by: str) -> Operation:
    """Add an operation to the app's log. One request."""
    ulid = ULID()
    done = Operation(id=str(ulid), app=app, verb=verb, detail=detail, by=by, time_ms=ulid.milliseconds)
    OPERATIONS.put(store, done, app)
    return done


def record_once(
    store: ObjectStore,
    app: str,
    verb: str,
    detail: str,
    by: str,
    *,
    since_ms: int,
    same: Callable[[str], bool] | None = None,
) -> None:
    """Add an operation, unless the log has it since that time: who repeats a verb may have died before or after it.

    `same` says which details are those of this very operation; by default they must be equal.
    """
    if find_operation(store, app, verb, same or detail.__eq__, since_ms=since_ms) is None:
        record(store, app, verb, detail, by)


def find_operation(
    store: ObjectStore, app: str, verb: str, is_meant: Callable[[str], bool], *, since_ms: int = 0
) -> Operation | None:
    """The newest operation of that verb, since that time, whose detail is meant. One listing, and a read for each."""
    since = _newest_first(store, app, since_ms)
    return next((done for done in since if done.verb == verb and is_meant(done.detail)), None)


def list_operations(store: ObjectStore, app: str, limit: int = 0) -> tuple[Operation, ...]:
    """The newest `limit` operations (0 for all), newest first. One listing, and one read for each shown."""
    return tuple(islice(_newest_first(store, app), min(limit, sys.maxsize) or None))


def _newest_first(store: ObjectStore, app: str, since_ms: int = 0) -> Iterator[Operation]:
    listed = sorted(OPERATIONS.listed(store, app), key=lambda info: info.key, reverse=True)
    # By their keys: what is older is not read, be it damaged.
    since = takewhile(lambda info: _time_ms(info.key) >= since_ms, listed)
    return OPERATIONS.read(store, since, app)


def _time_ms(key: str) -> int:
    try:
        return ULID.from_str(key.rpartition("/")[2].removesuffix(".json")).milliseconds
    except ValueError:
        return 0


def whoami() -> str:
    """user@host of this process, for `by`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container's user id without a name
    return f"{user}@{socket.gethostname()}"
