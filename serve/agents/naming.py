"""Pseudonyms of hidden values: the daily secrets from which they are computed, and the value of each pseudonym.

A pseudonym is computed from the value, the secret of the day, and the caller's name. The day's secret is in the store,
so all instances give equal values the same pseudonym. Without access to the store, a client cannot guess values by
their pseudonyms. The secret is deleted after the day. From then on, nobody can guess the values, even with access to
the store.
"""

from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Annotated

from cachetools import LRUCache
from msgspec import Meta, Struct

from ...common import runtime
from ...common.instants import format_iso, now_ms
from ...errors import Forbidden
from ...snapshot.query.hidden import Pseudonyms
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits
from ...store.versions.codec import JsonFolder

_MAX_CALLERS = 100


class DaySecret(Struct, frozen=True):
    """Secret of one day in UTC, with which pseudonyms are computed."""

    day: limits.Id
    secret: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="32 bytes, as 64 hexadecimal digits")]


SECRETS = JsonFolder(DaySecret, lambda: keys.NAMING, lambda secret: secret.day)


class ValueNaming:
    """Pseudonyms of hidden values, for each caller, in one server instance."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._day_secret: DaySecret | None = None
        self._names: LRUCache[str, Pseudonyms] = LRUCache(_MAX_CALLERS)
        self._lock = runtime.lock()

    def names_for(self, who: str) -> Pseudonyms | None:
        """Return a caller's pseudonyms; None until `load_day_secret` has loaded today's secret."""
        with self._lock:
            day_secret = self._day_secret
            if day_secret is None or day_secret.day != _today():
                return None
            secret = blake2b(who.encode(), key=bytes.fromhex(day_secret.secret), digest_size=32).digest()
            names = self._names.get(who)
            if names is None or names.secret != secret:  # yesterday's names stay valid
                names = self._names[who] = replace(names, secret=secret) if names else Pseudonyms(secret)
            return names

    def load_day_secret(self) -> None:
        """Load today's secret from the store, or create it there.

        If the store is read-only, uses a secret of this instance alone. Raises the errors of `JsonFolder.find`.
        """
        new_secret = DaySecret(_today(), runtime.random_hex(32))
        stored = SECRETS.find(self._store, new_secret.day)
        if stored is None:
            stored = new_secret
            with suppress(Forbidden):  # the store may be read-only for this instance
                stored = SECRETS.add(self._store, new_secret)
                SECRETS.sweep(self._store, SECRETS.listed(self._store), lambda info: info.key < SECRETS.key(new_secret))
        with self._lock:
            self._day_secret = stored


def _today() -> str:
    return format_iso(now_ms())[:10]
