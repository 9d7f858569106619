"""Access tokens of a store root. A token names apps, tables and verbs; only a hash of its secret is stored."""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from ...common import runtime
from ...common.durations import DAY_MS
from ...common.validation import nearest_hint
from ...errors import NotFound, Refused, Usage
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.take.audit_log import Operation, find_operation, operation_message, record_operation_once
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, checks, keys, limits
from ...store.versions.codec import JsonFolder
from ...store.versions.side_tables import possible_owners, table_declarations

ALL = "*"
"""Value of `Token.apps` and `Token.tables` that stands for every app or every table."""
PREFIX = "slackwater_"
"""First characters of each token, by which scanners for leaked secrets recognise it."""
Verb = Literal["read", "sql", "bisect", "snapshot", "values"]
"""Permission of a token: read rows and histories, run SQL, bisect, request snapshots, unmasked values (for agents)."""
VERBS: tuple[Verb, ...] = get_args(Verb)
_Names = Annotated[tuple[limits.ShortText, ...], Meta(max_length=1_000, description="at most 1,000 names")]


class Token(Struct, frozen=True):
    """An access token: its name, and the apps, tables and verbs that it permits."""

    name: limits.Name
    digest: limits.Checksum = ""
    """SHA-256 of the secret in hexadecimal; empty for a client certificate with the token's name as common name.

    No salt is needed, since the secret is too long to be guessed.
    """
    apps: _Names = (ALL,)
    tables: _Names = (ALL,)
    verbs: tuple[Verb, ...] = ("read",)
    per_s: Annotated[int, Meta(ge=0, le=1_000_000, description="requests a second, or 0")] = 0
    """Maximum number of requests per second that each server answers; 0 for no limit."""
    until_ms: limits.TimeMs = 0
    created_ms: limits.TimeMs = 0
    by: limits.ShortText = ""
    message: limits.ShortText = ""


TOKENS = JsonFolder(Token, lambda: keys.TOKENS, lambda token: token.name)


@checks.find_violations.register
def _(value: Token) -> Iterator[checks.Violation]:
    yield from checks.checksum_violations("digest", value.digest) if value.digest else ()


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def add(
    store: ObjectStore,
    name: str,
    *,
    apps_: Collection[str],
    tables: Collection[str],
    verbs: Collection[Verb],
    per_s: int,
    days: int,
    certificate: bool,
    by: str,
    now_ms: int,
    dry_run: bool,
) -> tuple[Token, str]:
    """Create a token. Returns the token and its secret; the secret is empty for a client certificate.

    The secret is not stored. Raises `Usage` (the name is malformed, or a verb does not exist), `NotFound` (an app or a
    table does not exist) and `Refused` (the token exists already).
    """
    keys.check_name("token", name)
    for verb in verbs:
        if verb not in VERBS:
            raise Usage(
                f"{verb!r} is not a verb of a token{nearest_hint(verb, VERBS)}", hint=f"verbs: {', '.join(VERBS)}"
            )
    named = [apps.read_app(store, apps.folder_of(store, app)).name for app in apps_ if app != ALL]
    if ALL not in apps_:
        _check_tables(store, named, tables)
    if TOKENS.find(store, name) is not None:
        raise Refused(
            f"token {name!r} already exists", hint=f"choose another name, or first: slackwater token rm {name}"
        )
    sent = "" if certificate else f"{PREFIX}{urlsafe_b64encode(runtime.random_bytes(32)).rstrip(b'=').decode()}"
    until_ms = now_ms + days * DAY_MS if days else 0
    token = Token(
        name,
        digest(sent) if sent else "",
        tuple(apps_),
        tuple(tables),
        tuple(dict.fromkeys(verbs)),
        per_s,
        until_ms,
        now_ms,
        by,
        operation_message(),
    )
    if not dry_run:
        if TOKENS.add(store, token) != token:
            raise Refused(f"another process has just added token {name!r}")
        _record(store, token, "token add", by)
    return token, sent


def _check_tables(store: ObjectStore, folders: Collection[str], tables: Collection[str]) -> None:
    heads = {folder: heads_of(store, folder, stages_of(store, folder)) for folder in folders}
    if not all(heads.values()):
        return  # any table may be named for an app that has no version yet
    stages = [stage for stage_heads in heads.values() for stage in stage_heads]
    for table in tables:
        if table != ALL and not possible_owners(table, stages):
            existing = {name for stage_heads in heads.values() for name in table_declarations(stage_heads)}
            raise NotFound(f"table of {', '.join(folders)}", table, existing)


def remove(store: ObjectStore, name: str, *, by: str, dry_run: bool) -> Token | Operation:
    """Remove a token. Running servers notice within seconds. Safe to repeat after an interruption.

    Returns the removed token. If an earlier call removed it, returns that operation from an audit log. Raises
    `NotFound`.
    """
    token = TOKENS.find(store, name)
    if token is None:
        logs = (find_operation(store, app, "token rm", _is_of(name)) for app in apps.list_apps(store))
        if (earlier := next(filter(None, logs), None)) is not None:
            return earlier
        raise NotFound("token", name, (token_.name for token_ in TOKENS.all(store)))
    if not dry_run:
        # Recorded first, so that a retry of an interrupted call differs from a misspelled name.
        _record(store, token, "token rm", by)
        TOKENS.remove(store, name)
    return token


def _is_of(name: str) -> Callable[[str], bool]:
    return lambda detail: detail.startswith(f"{name}: ")


def _record(store: ObjectStore, token: Token, verb: str, by: str) -> None:
    for app in apps.list_apps(store) if ALL in token.apps else token.apps:
        detail = f"{token.name}: {', '.join(token.verbs)} of {', '.join(token.tables)}"
        record_operation_once(store, apps.folder_of(store, app), verb, detail, by, since_ms=token.created_ms)
