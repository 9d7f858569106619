"""Who asks: by a bearer token, by a certificate, or somebody on this machine; and how often they may."""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cachetools import LRUCache
from starlette.types import Scope

from ..client import Client
from ..common.instants import now_ms
from ..operations.maintenance.tokens import Verb
from .errors import Denied, NotKnown, TooOften
from .health.store_watch import StoreWatch, away

_KNOWN_S = 5.0
"""So long after a token was removed it may still be taken."""
STREAM_KNOWN_S = 1.0
"""The same for a stream that is open."""
_KNOWN_WITHOUT_STORE_S = 60.0
"""And while the store does not answer."""
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
ALL = "*"
OF_ALL_TABLES = ("stages", "the timeline", "the log", "lineage", "rejected records", "operations", "cost")


@dataclass(frozen=True, slots=True)
class Grant:
    """What whoever asks may do."""

    name: str
    """Of the token; empty for somebody on this machine."""
    apps: frozenset[str] = frozenset({ALL})
    tables: frozenset[str] = frozenset({ALL})
    verbs: frozenset[Verb] = frozenset({"read", "sql", "bisect"})
    per_s: int = 0
    """Requests a second; 0 for any number."""

    def also(self, verb: Verb) -> "Grant":
        """The same with one more verb."""
        return replace(self, verbs=self.verbs | {verb})

    def check(self, verb: Verb | None) -> None:
        """Raise `Denied` unless it may do that."""
        if verb is not None and verb not in self.verbs:
            who = f"token {self.name!r}" if self.name else "whoever has no token"
            raise Denied(f"{who} may not {verb}", hint=f"slackwater token add NAME --verb {verb} … makes one that may")

    def check_app(self, app: str) -> None:
        """Raise `Denied` unless it may read the app."""
        if not self.may_read_app(app):
            raise Denied(f"token {self.name!r} may not read app {app!r}")

    def may_read_app(self, app: str) -> bool:
        """Whether it may read the app."""
        return bool({ALL, app} & self.apps)

    def check_all_tables(self, what: str) -> None:
        """Raise `Denied` unless it may read any table, as `what` tells of all."""
        if ALL not in self.tables:
            raise Denied(
                f"token {self.name!r} may read {_listed(self.tables)} only, and {what} tells of all tables",
                hint="slackwater token add NAME without --table makes a token for all tables",
            )

    @property
    def hidden(self) -> tuple[str, ...]:
        """What it may not see, should it be there, in words: an answer without these is not the whole."""
        apps = () if ALL in self.apps else (f"apps other than {_listed(self.apps)}",)
        if ALL in self.tables:
            return apps
        return (
            *apps,
            f"tables other than {_listed(self.tables)}",
            f"what tells of all tables: {', '.join(OF_ALL_TABLES)}",
        )

    def check_table(self, table: str) -> None:
        """Raise `Denied` unless it may read tables of that name."""
        if not self.may_read(table):
            raise Denied(f"token {self.name!r} may not read table {table!r}")

    def may_read(self, table: str) -> bool:
        """Whether it may read tables of that name."""
        return bool({ALL, table} & self.tables)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


class Doorkeeper:
    """Knows the tokens of a store. Of one event loop.

    Args:
        client: reads them.
        watch: of the store.
        is_open: whether somebody without a token is admitted.
        anybody: what that one may do.
    """

    def __init__(self, client: Client, watch: StoreWatch, *, is_open: bool, anybody: Grant) -> None:
        self._client, self._is_open, self._anybody = client, is_open, anybody
        self._by_digest: dict[str, tuple[Grant, int]] = {}
        self._by_name: dict[str, tuple[Grant, int]] = {}
        self._read_s = -math.inf
        self._reading = watch.look(self._read)
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(10_000)

    async def admit(self, headers: Mapping[str, str], scope: Scope) -> Grant:
        """What whoever asks may do. Raises `NotKnown`, `Denied`, `TooOften`, and `Unavailable` while the store is away.

        Tokens that were read a minute ago count while the store does not answer.
        """
        grant = await self.known(headers, scope, _KNOWN_S)
        self._count(grant)
        return grant

    async def known(self, headers: Mapping[str, str], scope: Scope, age_s: float = STREAM_KNOWN_S) -> Grant:
        """The same, of tokens that were read so long ago at most, for who was admitted before. Raises as `admit`."""
        given = headers.get("authorization", "")
        certificate = scope.get("extensions", {}).get("tls", {}).get("client_cert_name", "")
        if not given and not certificate:
            return self._admit_anybody(headers)
        is_away = self._age_s > age_s and not await self._reading.is_answered()
        if is_away and self._age_s > _KNOWN_WITHOUT_STORE_S:
            raise away("the store, which has the tokens, does not answer")
        if given:
            scheme, _, token = given.partition(" ")
            found = self._by_digest.get(self._client.digest_of(token.strip())) if scheme.lower() == "bearer" else None
        else:
            found = self._by_name.get(certificate)
        if found is None or 0 < found[1] < now_ms():
            raise NotKnown(
                "nobody is known by this token or certificate", hint="slackwater token add NAME makes a token"
            )
        return found[0]

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self._read_s

    def _admit_anybody(self, headers: Mapping[str, str]) -> Grant:
        if not self._is_open:
            raise NotKnown(
                "a token is needed", hint="send Authorization: Bearer TOKEN; slackwater token add NAME makes one"
            )
        # A page of somebody else's may have its name lead to this machine, and ask from the user's own browser.
        host = headers.get("host", "")
        if (host if host.endswith("]") else host.rpartition(":")[0] or host) not in _LOCAL:
            raise Denied(f"without a token, this machine is asked as {_LOCAL[0]}; found {host[:100]!r}")
        # It may also send a request to this very address, and not care for the answer.
        if (origin := headers.get("origin")) and _ORIGIN.fullmatch(origin) is None:
            raise Denied(f"without a token, no page of another host may ask; found the origin {origin[:100]!r}")
        return self._anybody

    def _read(self) -> None:
        by_digest, by_name = {}, {}
        for each in self._client.tokens():
            grant = Grant(each.name, frozenset(each.apps), frozenset(each.tables), frozenset(each.verbs), each.per_s)
            if each.digest:
                by_digest[each.digest] = grant, each.until_ms
            else:
                by_name[each.name] = grant, each.until_ms
        self._by_digest, self._by_name, self._read_s = by_digest, by_name, time.monotonic()

    def _count(self, grant: Grant) -> None:
        """A token bucket for each token: a second's requests may come at once."""
        if not grant.per_s:
            return
        now_s = time.monotonic()
        left, at_s = self._buckets.get(grant.name, (float(grant.per_s), now_s))
        left = min(grant.per_s, left + (now_s - at_s) * grant.per_s)
        if left < 1:
            raise TooOften(
                f"token {grant.name!r} may ask {grant.per_s} times a second", after_s=(1 - left) / grant.per_s
            )
        self._buckets[grant.name] = left - 1, now_s
