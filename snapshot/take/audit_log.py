"""The log of operations: every snapshot, clone, rewind or removal done to an app: who did it, when, and why."""

import getpass
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice, takewhile

from msgspec import Struct
from ulid import ULID

from ...common.argument_types import checked
from ...common.validation import nearest
from ...errors import Usage
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
    message: limits.Line = ""
    """Why, in the words of whoever did it."""
    before: dict[limits.Name, limits.Seq] = {}
    """Of the stages that it changed, the newest version before it; 0 for none."""
    after: dict[limits.Name, limits.Version] = {}
    """And the version that it made, the last one where there were several."""

    def is_of(self, verb: str) -> bool:
        """Whether a verb did it, or one of a group of verbs, as `snapshot` is."""
        return verb in _names_of(self.verb)

    def is_by(self, person: str) -> bool:
        """Whether it was done by user@host, or by a user wherever."""
        return person in (self.by, self.by.partition("@")[0])


VERBS = (
    *("clone", "clone refresh", "promote", "rewind", "reset", "edit", "forget", "migrate"),
    *("rescale", "retire", "compact", "replicate", "recover", "recover --drill", "gc", "archive", "init", "app rm"),
    *("attach", "adopt", "protect", "protect --off", "rejected --retry", "watch"),
    *("token add", "token rm"),
    *("snapshot take", "snapshot rm", "snapshot failed", "export"),
)
"""What the log calls all that is recorded."""


def _names_of(verb: str) -> tuple[str, str]:
    return verb, verb.partition(" ")[0]


def check_verb(verb: str) -> None:
    """Raise `Usage`, which tells the nearest, for one that nothing is recorded under."""
    known = {name for each in VERBS for name in _names_of(each)}
    if verb not in known:
        raise Usage(
            f"{verb!r} is no verb of the log of operations{nearest(verb, known)}", hint=f"there are: {', '.join(VERBS)}"
        )


_WHY: ContextVar[str] = ContextVar("why", default="")


def why() -> str:
    """What the innermost `because` around the caller says; empty without one."""
    return _WHY.get()


@checked
@contextmanager
def because(message: str) -> Iterator[None]:
    """Say why something is done: what is recorded inside, by this thread, has the message.

    Raises `Usage` where it is longer than 4,096 characters, or no text that can be stored.
    """
    try:
        message.encode()
    except UnicodeEncodeError:
        raise Usage("the message is not UTF-8; expected text") from None
    if len(message) > limits.MAX_LINE:
        raise Usage(
            f"the message has {len(message):,} characters; expected at most {limits.MAX_LINE:,}",
            hint="name a ticket or a page that says the rest",
        )
    token = _WHY.set(message)
    try:
        yield
    finally:
        _WHY.reset(token)


OPERATIONS = Notes(Operation, keys.operations, lambda done: done.id)
"""The log, oldest first."""


Versions = Mapping[str, tuple[int, int]]
"""By stage, the version before an operation and the one after it."""


def record(
    store: ObjectStore,
    app: str,
    verb: str,
    detail: str,
    by: str,
    versions: Versions | None = None,
    *,
    id_: str = "",
    message: str | None = None,
) -> Operation:
    """Add an operation to the app's log. One request.

    What has an `id_`, a ULID, and a `message` from when it was decided is there once, whoever records it and how often.
    """
    ulid, changed = ULID.from_str(id_) if id_ else ULID(), versions or {}
    done = Operation(
        id=str(ulid),
        app=app,
        verb=verb,
        detail=detail,
        by=by,
        time_ms=ulid.milliseconds,
        message=why() if message is None else message,
        before={stage: before for stage, (before, _) in changed.items()},
        after={stage: after for stage, (_, after) in changed.items()},
    )
    return OPERATIONS.add(store, done, app)


def record_once(
    store: ObjectStore,
    app: str,
    verb: str,
    detail: str,
    by: str,
    versions: Versions | None = None,
    *,
    since_ms: int,
    same: Callable[[str], bool] | None = None,
    message: str | None = None,
) -> None:
    """Add an operation, unless the log has it since that time: who repeats a verb may have died before or after it.

    `same` says which details are those of this very operation; by default they must be equal.
    """
    if find_operation(store, app, verb, same or detail.__eq__, since_ms=since_ms) is None:
        record(store, app, verb, detail, by, versions, message=message)


def find_operation(
    store: ObjectStore, app: str, verb: str, is_meant: Callable[[str], bool], *, since_ms: int = 0
) -> Operation | None:
    """The newest operation of that verb, since that time, whose detail is meant. One listing, and a read for each."""
    since = _newest_first(store, app, since_ms)
    return next((done for done in since if done.verb == verb and is_meant(done.detail)), None)


def list_operations(
    store: ObjectStore,
    app: str,
    limit: int = 0,
    *,
    is_meant: Callable[[Operation], bool] = lambda _done: True,
    since_ms: int = 0,
) -> tuple[Operation, ...]:
    """The newest `limit` operations (0 for all) that are meant, newest first. One listing, and a read for each."""
    found = filter(is_meant, _newest_first(store, app, since_ms))
    return tuple(islice(found, min(limit, sys.maxsize) or None))


def newest_operation(store: ObjectStore, app: str) -> str:
    """The key of the newest operation; empty for none. One listing."""
    return max((info.key for info in OPERATIONS.listed(store, app)), default="")


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
