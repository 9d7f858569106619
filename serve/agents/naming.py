"""What names of hidden values are made with, and what each stands for.

A name is made of the value by a secret of the day and whoever asks. The store has the day's secret, so all instances
make the same names of the same values; whoever may not read the store can try no values out, and when the day is over
the secret is removed, and nobody can.
"""

import secrets
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from threading import Lock
from typing import Annotated

from cachetools import LRUCache
from msgspec import Meta, Struct

from ...common.instants import iso, now_ms
from ...errors import Forbidden
from ...snapshot.query.hidden import Names
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits
from ...store.versions.notes import Notes

_ASKERS = 100
"""Of so many it is remembered what they were shown."""


class DaySecret(Struct, frozen=True):
    """Of one day, in UTC."""

    day: limits.Id
    secret: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="32 bytes, as 64 hexadecimal digits")]


SECRETS = Notes(DaySecret, lambda: keys.NAMING, lambda one: one.day)


class Naming:
    """Of one instance: how it names values to each who asks."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: DaySecret | None = None
        self._names: LRUCache[str, Names] = LRUCache(_ASKERS)
        self._lock = Lock()

    def of(self, who: str) -> Names | None:
        """The names of who asks; None where the store must be asked first (`of_today`)."""
        with self._lock:
            known = self._known
            if known is None or known.day != _today():
                return None
            secret = blake2b(who.encode(), key=bytes.fromhex(known.secret), digest_size=32).digest()
            names = self._names.get(who)
            if names is None or names.secret != secret:  # names of yesterday stand for what they did
                names = self._names[who] = replace(names, secret=secret) if names else Names(secret)
            return names

    def of_today(self) -> None:
        """Learn today's secret of the store, or make it; one of its own where it may not. Raises as `Notes.find`."""
        mine = DaySecret(_today(), secrets.token_hex(32))
        found = SECRETS.find(self._store, mine.day)
        if found is None:
            found = mine
            with suppress(Forbidden):  # whoever reads a store need not be one who may write to it, or delete
                found = SECRETS.add(self._store, mine)
                SECRETS.sweep(self._store, SECRETS.listed(self._store), lambda info: info.key < SECRETS.key(mine))
        with self._lock:
            self._known = found


def _today() -> str:
    return iso(now_ms())[:10]
