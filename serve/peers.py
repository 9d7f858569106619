"""Instances of one store: each says in the store that it lives, and whose a part of a table is, all of them compute.

Rendezvous hashing (Thaler and Ravishankar 1998): of the instances that live, the one whose hash with a state partition
is the largest owns it, and keeps its SSTs warm. Nobody is elected, and when one goes, only what it owned moves. To whom
a key is passed on changes no answer: whoever gets none in time reads the store.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import urllib3
import xxhash
from ulid import ULID

from ..errors import SlackwaterError
from ..store.objects.protocol import ObjectStore
from ..store.versions import keys, limits
from ..store.versions.notes import Notes

_log = logging.getLogger(__name__)

BEAT_S = 1.0
_GONE_MS = 3_500
"""Without a sign of life for so long, by storage's clock, an instance is gone."""
_FORGOTTEN_MS = 60_000
_PATIENCE = urllib3.Timeout(connect=0.25, read=1.0)
HOP = "slackwater-hop"
"""The header of what was passed on: it is answered where it comes to. Its value is the time as of which rows expire."""


class Peer(msgspec.Struct, frozen=True):
    """One that serves the store."""

    id: limits.Id
    url: limits.Line
    """Where the others reach it."""


INSTANCES = Notes(Peer, lambda: keys.INSTANCES, lambda one: one.id)


class Peers:
    """The instances that live, as this one knows them. Of one event loop.

    Args:
        store: where they say that they live.
        url: where the others reach this one.
        in_thread: where the store is waited for.
        on_change: called when others came or went.
    """

    def __init__(
        self,
        store: ObjectStore,
        url: str,
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        on_change: Callable[[], None],
    ) -> None:
        self.me = Peer(str(ULID()), url.rstrip("/"))
        self._store, self._in_thread, self._on_change = store, in_thread, on_change
        self.others: Mapping[str, Peer] = {}
        """By id; itself is none of them."""
        self._known: dict[str, Peer] = {}
        self._suspects: dict[str, float] = {}
        self._http = urllib3.PoolManager(maxsize=32, timeout=_PATIENCE, retries=False)
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Say that it lives, from now on. Raises `Unavailable`."""
        await self._in_thread(self._beat)
        self._task = asyncio.create_task(self._go_on())

    async def end(self) -> None:
        """Say that it goes."""
        if self._task is not None:
            self._task.cancel()
            await self._in_thread(lambda: INSTANCES.remove(self._store, self.me.id))

    def owns(self, app: str, table: str, partitions: Iterable[int]) -> list[int]:
        """Which of these state partitions are its own."""
        return [each for each in partitions if self._owner(app, table, each) is self.me]

    def owners(self, app: str, table: str, partitions: npt.NDArray[np.int32]) -> dict[str, list[int]]:
        """By id, the positions of what each owns of these."""
        found: dict[str, list[int]] = {}
        for position, partition in enumerate(partitions.tolist()):
            found.setdefault(self._owner(app, table, partition).id, []).append(position)
        return found

    async def ask(
        self, other: str, path: str, query: Sequence[tuple[str, str]], headers: dict[str, str]
    ) -> bytes | None:
        """What another instance answers, None where it does not."""
        instance = self.others.get(other)
        if instance is None:
            return None
        found: bytes | None = await self._in_thread(lambda: self._get(instance.url + path, query, headers))
        if found is None:
            self._suspects[other] = time.monotonic()
        return found

    def _get(self, url: str, query: Sequence[tuple[str, str]], headers: dict[str, str]) -> bytes | None:
        try:
            answer = self._http.request("GET", url, fields=list(query), headers=headers)
            data: bytes | None = answer.data if answer.status == 200 else None
            return data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            _log.info("%s does not answer: %s", url.partition("/apps")[0], error)
            return None

    def _owner(self, app: str, table: str, partition: int) -> Peer:
        now_s = time.monotonic()
        live = (each for each in self.others.values() if now_s - self._suspects.get(each.id, -9e9) > 2 * BEAT_S)
        place = f"/{app}/{table}/{partition}"
        return max((self.me, *live), key=lambda one: xxhash.xxh3_64_intdigest(f"{one.id}{place}".encode()))

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                before = self.others.keys()
                await self._in_thread(self._beat)
                if self.others.keys() != before:
                    self._on_change()
            except SlackwaterError as error:
                _log.warning("other instances are not known: %s", error.message)

    def _beat(self) -> None:
        INSTANCES.put(self._store, self.me)
        mine = INSTANCES.key(self.me)
        listed = INSTANCES.listed(self._store)
        # Against its own: storage's clock is one, and those of machines are many.
        now_ms = max((info.modified_ms for info in listed if info.key == mine), default=0)
        live = [info for info in listed if now_ms - info.modified_ms < _GONE_MS and info.key != mine]
        new = [info for info in live if info.key not in self._known]
        self._known |= {INSTANCES.key(each): each for each in INSTANCES.read(self._store, new)}
        found = (self._known[info.key] for info in live if info.key in self._known)
        self.others = {each.id: each for each in found}
        INSTANCES.sweep(self._store, listed, lambda info: now_ms - info.modified_ms > _FORGOTTEN_MS)
