"""Audit log of operations on an app: who did what and when, the changed versions, and the user's reason."""

import getpass
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice, takewhile

from msgspec import Struct
from ulid import ULID

from ...common import runtime
from ...common.arguments import check_arguments
from ...common.validation import nearest_hint
from ...errors import Usage
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits
from ...store.versions.codec import JsonFolder


class Operation(Struct, frozen=True):
    """Operation on an app. Ids are ULIDs in the order of recording."""

    id: limits.Ulid
    app: limits.Name
    verb: limits.ShortText
    detail: limits.Text
    by: limits.ShortText
    time_ms: limits.TimeMs
    message: limits.ShortText = ""
    before: dict[limits.Name, limits.Seq] = {}
    after: dict[limits.Name, limits.Version] = {}

    def has_verb(self, verb: str) -> bool:
        """Return True if `verb` is the operation's verb, or the first word of that verb, such as `snapshot`."""
        return verb in _names_of(self.verb)

    def is_by(self, person: str) -> bool:
        return person in (self.by, self.by.partition("@")[0])


VERBS = (
    *("clone", "clone refresh", "promote", "rewind", "reset", "edit", "repair", "forget", "migrate"),
    *("rescale", "retire", "compact", "replicate", "recover", "recover --drill", "gc", "archive", "init", "app rm"),
    *("attach", "adopt", "protect", "protect --off", "rejected --retry", "watch"),
    *("token add", "token rm"),
    *("snapshot take", "snapshot rm", "snapshot failed", "export"),
)


def _names_of(verb: str) -> tuple[str, str]:
    return verb, verb.partition(" ")[0]


def check_verb(verb: str) -> None:
    """Raise `Usage`, with the nearest verb, unless the log may contain `verb`."""
    names = {name for listed in VERBS for name in _names_of(listed)}
    if verb not in names:
        raise Usage(
            f"{verb!r} is not a verb of the audit log{nearest_hint(verb, names)}", hint=f"verbs: {', '.join(VERBS)}"
        )


_WHY: ContextVar[str] = ContextVar("why", default="")


def operation_message() -> str:
    return _WHY.get()


@check_arguments
@contextmanager
def because(message: str) -> Iterator[None]:
    """Context manager that sets the user's reason for all operations that this thread records inside the block.

    Raises `Usage` if the message is longer than 4,096 characters, or is not valid UTF-8.
    """
    try:
        message.encode()
    except UnicodeEncodeError:
        raise Usage("the message is not UTF-8; expected text") from None
    if len(message) > limits.MAX_SHORT_TEXT:
        raise Usage(
            f"the message has {len(message):,} characters; expected at most {limits.MAX_SHORT_TEXT:,}",
            hint="name a ticket or a page with the details",
        )
    token = _WHY.set(message)
    try:
        yield
    finally:
        _WHY.reset(token)


OPERATIONS = JsonFolder(Operation, keys.operations, lambda done: done.id)


ChangedVersions = Mapping[str, tuple[int, int]]


def record_operation(
    store: ObjectStore,
    app: str,
    verb: str,
    detail: str,
    by: str,
    versions: ChangedVersions | None = None,
    *,
    id_: str = "",
    message: str | None = None,
) -> Operation:
    """Add an operation to the app's audit log. One request.

    Idempotent if `id_`, a ULID, and `message` are given, with equal values in each call.
    """
    ulid, changed = ULID.from_str(id_) if id_ else runtime.ulid(), versions or {}
    done = Operation(
        id=str(ulid),
        app=app,
        verb=verb,
        detail=detail,
        by=by,
        time_ms=ulid.milliseconds,
        message=operation_message() if message is None else message,
        before={stage: old for stage, (old, _) in changed.items()},
        after={stage: new for stage, (_, new) in changed.items()},
    )
    return OPERATIONS.add(store, done, app)


def record_operation_once(
    store: ObjectStore,
    app: str,
    verb: str,
    detail: str,
    by: str,
    versions: ChangedVersions | None = None,
    *,
    since_ms: int,
    is_same_detail: Callable[[str], bool] | None = None,
    message: str | None = None,
) -> None:
    """Add an operation to the audit log, unless an interrupted call added it since `since_ms`.

    `is_same_detail` is a function that returns True if the detail of an entry describes this operation. By default, the
    detail must equal `detail`.
    """
    if find_operation(store, app, verb, is_same_detail or detail.__eq__, since_ms=since_ms) is None:
        record_operation(store, app, verb, detail, by, versions, message=message)


def find_operation(
    store: ObjectStore, app: str, verb: str, is_match: Callable[[str], bool], *, since_ms: int = 0
) -> Operation | None:
    """Return the newest operation of `verb` since `since_ms` whose detail satisfies `is_match`; None for none.

    Makes one list request, and one read for each operation.
    """
    recent = _newest_first(store, app, since_ms)
    return next((done for done in recent if done.verb == verb and is_match(done.detail)), None)


def list_operations(
    store: ObjectStore,
    app: str,
    limit: int = 0,
    *,
    is_match: Callable[[Operation], bool] = lambda _done: True,
    since_ms: int = 0,
) -> tuple[Operation, ...]:
    """Return the newest `limit` matching operations (0 for all), newest first.

    Makes one list request, and one read for each operation.
    """
    matches = filter(is_match, _newest_first(store, app, since_ms))
    return tuple(islice(matches, min(limit, sys.maxsize) or None))


def newest_operation(store: ObjectStore, app: str) -> str:
    return max((info.key for info in OPERATIONS.listed(store, app)), default="")


def _newest_first(store: ObjectStore, app: str, since_ms: int = 0) -> Iterator[Operation]:
    listed = sorted(OPERATIONS.listed(store, app), key=lambda info: info.key, reverse=True)
    # Filter by key, so that older entries are not read, even if they are damaged.
    recent = takewhile(lambda info: _time_ms(info.key) >= since_ms, listed)
    return OPERATIONS.read(store, recent, app)


def _time_ms(key: str) -> int:
    try:
        return ULID.from_str(key.rpartition("/")[2].removesuffix(".json")).milliseconds
    except ValueError:
        return 0


def whoami() -> str:
    """Return the user and host of this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container with an unnamed user id
    return f"{user}@{socket.gethostname()}"
