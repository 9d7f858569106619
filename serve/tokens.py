"""Authentication and authorization: bearer tokens, client certificates, loopback without a token; rate limits."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cachetools import LRUCache
from starlette.types import Scope

from ..client import Client
from ..common import runtime
from ..common.instants import now_ms
from ..operations.maintenance.tokens import Verb
from .errors import Denied, NotKnown, TooOften
from .health.store_watch import StoreWatch, store_unavailable

_TOKEN_CACHE_S = 5.0
"""Maximum seconds for which a removed token is still accepted."""
STREAM_RECHECK_S = 1.0
"""Maximum seconds for which open streams of a removed token continue."""
_OUTAGE_TOKEN_CACHE_S = 60.0
"""Maximum seconds for which a removed token is still accepted while the store does not answer."""
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
ALL = "*"
VIEWS_OF_ALL_TABLES = ("stages", "the timeline", "the log", "lineage", "rejected records", "operations", "cost")


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions of a caller."""

    name: str
    """Name of the token; empty for a loopback client without a token."""
    apps: frozenset[str] = frozenset({ALL})
    tables: frozenset[str] = frozenset({ALL})
    verbs: frozenset[Verb] = frozenset({"read", "sql", "bisect"})
    per_s: int = 0
    """Maximum number of requests per second; 0 for no limit."""

    def with_verb(self, verb: Verb) -> "Grant":
        return replace(self, verbs=self.verbs | {verb})

    def check_verb(self, verb: Verb | None) -> None:
        if verb is not None and verb not in self.verbs:
            who = f"token {self.name!r}" if self.name else "a client without a token"
            raise Denied(
                f"{who} may not {verb}", hint=f"slackwater token add NAME --verb {verb} … creates one that may"
            )

    def check_app(self, app: str) -> None:
        if not self.may_read_app(app):
            raise Denied(f"token {self.name!r} may not read app {app!r}")

    def may_read_app(self, app: str) -> bool:
        return bool({ALL, app} & self.apps)

    def check_all_tables(self, view: str) -> None:
        """Raise `Denied` unless all tables may be read; `view` is the name of a view of all tables."""
        if ALL not in self.tables:
            raise Denied(
                f"token {self.name!r} may read only {_listed(self.tables)}, and {view} covers all tables",
                hint="slackwater token add NAME without --table creates a token for all tables",
            )

    @property
    def hidden(self) -> tuple[str, ...]:
        """Descriptions of everything that the caller may not read. They show that an answer may be partial."""
        apps = () if ALL in self.apps else (f"apps other than {_listed(self.apps)}",)
        if ALL in self.tables:
            return apps
        return (
            *apps,
            f"tables other than {_listed(self.tables)}",
            f"views of all tables: {', '.join(VIEWS_OF_ALL_TABLES)}",
        )

    def check_table(self, table: str) -> None:
        if not self.may_read_table(table):
            raise Denied(f"token {self.name!r} may not read table {table!r}")

    def may_read_table(self, table: str) -> bool:
        return bool({ALL, table} & self.tables)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


class Authenticator:
    """Authenticates requests by the store's tokens. Belongs to one event loop.

    Args:
        client: Client that reads the tokens.
        watch: Watch on the store.
        is_open: True to admit loopback clients without a token.
        anonymous_grant: Permissions of clients without a token.
    """

    def __init__(self, client: Client, watch: StoreWatch, *, is_open: bool, anonymous_grant: Grant) -> None:
        self._client, self._is_open, self._anonymous_grant = client, is_open, anonymous_grant
        self._by_digest: dict[str, tuple[Grant, int]] = {}
        self._by_name: dict[str, tuple[Grant, int]] = {}
        self._read_s = -math.inf
        self._token_check = watch.shared_check(self._read)
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(10_000)

    async def admit(self, headers: Mapping[str, str], scope: Scope) -> Grant:
        """Return the permissions of a request, and apply the rate limit.

        Tokens are cached for a minute while the store does not answer. Raises `NotKnown`, `Denied`, `TooOften`, and
        `Unavailable` if the store does not answer for longer.
        """
        grant = await self.authenticate(headers, scope, _TOKEN_CACHE_S)
        self._apply_rate_limit(grant)
        return grant

    async def authenticate(self, headers: Mapping[str, str], scope: Scope, age_s: float = STREAM_RECHECK_S) -> Grant:
        """Return the permissions that the token or certificate of a request grants; apply no rate limit.

        Tokens that were read more than `age_s` ago are used only while the store does not answer. For open streams,
        this method is called repeatedly. Raises `NotKnown`, `Denied`, and `Unavailable` if the store does not answer.
        """
        authorization = headers.get("authorization", "")
        certificate = scope.get("extensions", {}).get("tls", {}).get("client_cert_name", "")
        if not authorization and not certificate:
            return self._admit_anonymous(headers)
        is_away = self._age_s > age_s and not await self._token_check.is_answered()
        if is_away and self._age_s > _OUTAGE_TOKEN_CACHE_S:
            raise store_unavailable("the store, which holds the tokens, does not answer")
        if authorization:
            scheme, _, token = authorization.partition(" ")
            entry = self._by_digest.get(self._client.digest_of(token.strip())) if scheme.lower() == "bearer" else None
        else:
            entry = self._by_name.get(certificate)
        if entry is None or 0 < entry[1] < now_ms():
            raise NotKnown("the token or certificate is unknown", hint="slackwater token add NAME creates a token")
        return entry[0]

    @property
    def _age_s(self) -> float:
        return runtime.monotonic() - self._read_s

    def _admit_anonymous(self, headers: Mapping[str, str]) -> Grant:
        if not self._is_open:
            raise NotKnown(
                "a token is required", hint="send Authorization: Bearer TOKEN; slackwater token add NAME creates one"
            )
        # DNS rebinding: a malicious page can make its own name resolve to this machine, and send requests from the
        # user's browser.
        host = headers.get("host", "")
        if (host if host.endswith("]") else host.rpartition(":")[0] or host) not in _LOOPBACK_HOSTS:
            raise Denied(f"without a token, the Host header must be {_LOOPBACK_HOSTS[0]}; found {host[:100]!r}")
        # Cross-site requests: a malicious page can also send requests to this address without reading the answer.
        if (origin := headers.get("origin")) and _ORIGIN.fullmatch(origin) is None:
            raise Denied(f"without a token, pages of other hosts are refused; found the origin {origin[:100]!r}")
        return self._anonymous_grant

    def _read(self) -> None:
        by_digest, by_name = {}, {}
        for token in self._client.tokens():
            grant = Grant(
                token.name, frozenset(token.apps), frozenset(token.tables), frozenset(token.verbs), token.per_s
            )
            if token.digest:
                by_digest[token.digest] = grant, token.until_ms
            else:
                by_name[token.name] = grant, token.until_ms
        self._by_digest, self._by_name, self._read_s = by_digest, by_name, runtime.monotonic()

    def _apply_rate_limit(self, grant: Grant) -> None:
        if not grant.per_s:
            return
        now_s = runtime.monotonic()
        remaining, at_s = self._buckets.get(grant.name, (float(grant.per_s), now_s))
        remaining = min(grant.per_s, remaining + (now_s - at_s) * grant.per_s)
        if remaining < 1:
            raise TooOften(
                f"token {grant.name!r} is limited to {grant.per_s} requests per second",
                after_s=(1 - remaining) / grant.per_s,
            )
        self._buckets[grant.name] = remaining - 1, now_s
