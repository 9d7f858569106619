"""Tokens of a store: made, listed and removed; each names apps, tables and verbs, and is kept as a hash."""

import hashlib
import secrets
from collections.abc import Collection, Iterator
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from ...common.durations import DAY_MS
from ...common.validation import nearest
from ...errors import NotFound, Refused, Usage
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.take.audit_log import record, why
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, checks, keys, limits
from ...store.versions.codec import Notes
from ...store.versions.side_tables import columns_of, may_have

ALL = "*"
"""What stands for any app, or any table."""
PREFIX = "slackwater_"
"""How each token begins, so that those who search for secrets that leaked know one."""
Verb = Literal["read", "sql", "bisect", "snapshot", "values"]
"""What a token may name: rows by key and histories; queries; searches for the commit that made something wrong; asking
for a snapshot; and for agents, values as they are."""
VERBS: tuple[Verb, ...] = get_args(Verb)
_Names = Annotated[tuple[limits.Line, ...], Meta(max_length=1_000, description="at most 1,000 names")]


class Token(Struct, frozen=True):
    """What whoever has it may do."""

    name: limits.Name
    digest: limits.Checksum = ""
    """SHA-256 of what is sent, hexadecimal: it is as long as a key, so nobody tries all. Empty for who comes with a
    certificate of that common name instead."""
    apps: _Names = (ALL,)
    tables: _Names = (ALL,)
    verbs: tuple[Verb, ...] = ("read",)
    per_s: Annotated[int, Meta(ge=0, le=1_000_000, description="requests a second, or 0")] = 0
    """Requests that each instance answers it in a second; 0 for any number."""
    until_ms: limits.TimeMs = 0
    """When it ends; 0 for never."""
    created_ms: limits.TimeMs = 0
    by: limits.Line = ""
    message: limits.Line = ""


TOKENS = Notes(Token, lambda: keys.TOKENS, lambda token: token.name)


@checks.relations.register
def _(value: Token) -> Iterator[checks.Wrong]:
    yield from checks.checksum_is_wrong("digest", value.digest) if value.digest else ()


def digest(token: str) -> str:
    """What is kept of a token that is sent."""
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
    """Make a token; what is to be sent as it is told here and nowhere else, empty for a certificate.

    Raises `Usage` (the name is malformed, or there is no such verb), `NotFound` (there is no such app or table) and
    `Refused` (there is one of that name).
    """
    keys.check_name("token", name)
    for verb in verbs:
        if verb not in VERBS:
            raise Usage(f"{verb!r} is no verb of a token{nearest(verb, VERBS)}", hint=f"there are: {', '.join(VERBS)}")
    named = [apps.read_app(store, apps.folder_of(store, app)).name for app in apps_ if app != ALL]
    if ALL not in apps_:
        _check_tables(store, named, tables)
    if TOKENS.find(store, name) is not None:
        raise Refused(f"there is a token {name!r} already", hint=f"another name, or first: slackwater token rm {name}")
    sent = "" if certificate else f"{PREFIX}{secrets.token_urlsafe(32)}"
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
        why(),
    )
    if not dry_run:
        if TOKENS.add(store, token) != token:
            raise Refused(f"somebody else has just made a token {name!r}")
        _record(store, token, "token add", by)
    return token, sent


def _check_tables(store: ObjectStore, folders: Collection[str], tables: Collection[str]) -> None:
    """Raise `NotFound` for a table that none of these apps can have: of a stage, or beside one, as far as names say."""
    heads = {folder: heads_of(store, folder, stages_of(store, folder)) for folder in folders}
    if not all(heads.values()):
        return  # one has not begun: it may come to have any
    stages = [stage for each in heads.values() for stage in each]
    for table in tables:
        if table != ALL and not may_have(table, stages):
            known = {name for each in heads.values() for name in columns_of(each)}
            raise NotFound(f"table of {', '.join(folders)}", table, known)


def remove(store: ObjectStore, name: str, *, by: str, dry_run: bool) -> Token:
    """Remove a token: instances hear of it within seconds. Raises `NotFound`."""
    token = TOKENS.find(store, name)
    if token is None:
        raise NotFound("token", name, (each.name for each in TOKENS.all(store)))
    if not dry_run:
        TOKENS.remove(store, name)
        _record(store, token, "token rm", by)
    return token


def _record(store: ObjectStore, token: Token, verb: str, by: str) -> None:
    """In the log of each app that it is of."""
    for app in apps.list_apps(store) if ALL in token.apps else token.apps:
        detail = f"{token.name}: {', '.join(token.verbs)} of {', '.join(token.tables)}"
        record(store, apps.folder_of(store, app), verb, detail, by)
