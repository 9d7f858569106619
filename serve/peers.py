"""Instances of one store: heartbeats in the store, and the instance that owns each state partition.

The owner is chosen by rendezvous hashing (Thaler and Ravishankar 1998): for each state partition, every live instance's
id is hashed together with the partition. The instance with the largest hash owns the partition and keeps its SSTs open.
There is no leader. When an instance leaves, only its own partitions get new owners. Forwarding never changes an answer:
an instance that gets no reply in time reads the store itself.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import urllib3
import xxhash

from ..common import runtime
from ..errors import SlackwaterError
from ..store.objects.protocol import ObjectStore
from ..store.versions import keys, limits
from ..store.versions.codec import JsonFolder

_log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
_DEAD_AFTER_MS = 3_500
"""Age of the last heartbeat, by the storage's clock, after which an instance counts as dead."""
_DELETE_AFTER_MS = 60_000
_FORWARD_TIMEOUT = urllib3.Timeout(connect=0.25, read=1.0)
FORWARDED_HEADER = "slackwater-hop"
"""Header of a forwarded request, which must not be forwarded again. Its value is the call's `seen_ms`."""


class Peer(msgspec.Struct, frozen=True):
    """A live instance that serves the store."""

    id: limits.Id
    url: limits.ShortText


INSTANCES = JsonFolder(Peer, lambda: keys.INSTANCES, lambda peer: peer.id)


class Peers:
    """The live instances. Belongs to one event loop.

    Args:
        store: Store of the heartbeats.
        url: Address at which other instances reach this instance.
        in_thread: Calls a function in a thread, for requests to the store.
        on_change: Called when other instances come or go.
    """

    def __init__(
        self,
        store: ObjectStore,
        url: str,
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        on_change: Callable[[], None],
    ) -> None:
        self.this_instance = Peer(str(runtime.ulid()), url.rstrip("/"))
        self._store, self._in_thread, self._on_change = store, in_thread, on_change
        self.others: Mapping[str, Peer] = {}
        self._known: dict[str, Peer] = {}
        self._suspects: dict[str, float] = {}
        self._http = urllib3.PoolManager(maxsize=32, timeout=_FORWARD_TIMEOUT, retries=False)
        self._task: asyncio.Task[None] | None = None

    async def start_heartbeats(self) -> None:
        await self._in_thread(self._beat)
        self._task = asyncio.create_task(self._beat_forever())

    async def stop_heartbeats(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await self._in_thread(lambda: INSTANCES.remove(self._store, self.this_instance.id))

    def owned_partitions(self, app: str, table: str, partitions: Iterable[int]) -> list[int]:
        return [partition for partition in partitions if self._owner(app, table, partition) is self.this_instance]

    def indices_by_owner(self, app: str, table: str, partitions: npt.NDArray[np.int32]) -> dict[str, list[int]]:
        """Return the indices in `partitions`, grouped by the id of the instance that owns each state partition."""
        positions: dict[str, list[int]] = {}
        for position, partition in enumerate(partitions.tolist()):
            positions.setdefault(self._owner(app, table, partition).id, []).append(position)
        return positions

    async def forward(
        self, other: str, path: str, query: Sequence[tuple[str, str]], headers: dict[str, str]
    ) -> bytes | None:
        """Forward a request to a peer. Returns the body of an answer with status 200, else None."""
        instance = self.others.get(other)
        if instance is None:
            return None
        body: bytes | None = await self._in_thread(lambda: self._get(instance.url + path, query, headers))
        if body is None:
            self._suspects[other] = runtime.monotonic()
        return body

    def _get(self, url: str, query: Sequence[tuple[str, str]], headers: dict[str, str]) -> bytes | None:
        try:
            answer = self._http.request("GET", url, fields=list(query), headers=headers)
            data: bytes | None = answer.data if answer.status == 200 else None
            return data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            _log.info("%s does not answer: %s", url.partition("/apps")[0], error)
            return None

    def _owner(self, app: str, table: str, partition: int) -> Peer:
        now_s = runtime.monotonic()
        live = (peer for peer in self.others.values() if now_s - self._suspects.get(peer.id, -9e9) > 2 * HEARTBEAT_S)
        suffix = f"/{app}/{table}/{partition}"
        return max(
            (self.this_instance, *live), key=lambda peer: xxhash.xxh3_64_intdigest(f"{peer.id}{suffix}".encode())
        )

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                previous = self.others.keys()
                await self._in_thread(self._beat)
                if self.others.keys() != previous:
                    self._on_change()
            except SlackwaterError as error:
                _log.warning("cannot list the other instances: %s", error.message)

    def _beat(self) -> None:
        INSTANCES.put(self._store, self.this_instance)
        own_key = INSTANCES.key(self.this_instance)
        listed = INSTANCES.listed(self._store)
        # Compare with this instance's own heartbeat, so that only the storage's clock counts.
        now_ms = max((info.modified_ms for info in listed if info.key == own_key), default=0)
        live = [info for info in listed if now_ms - info.modified_ms < _DEAD_AFTER_MS and info.key != own_key]
        new = [info for info in live if info.key not in self._known]
        self._known |= {INSTANCES.key(peer): peer for peer in INSTANCES.read(self._store, new)}
        peers = (self._known[info.key] for info in live if info.key in self._known)
        self.others = {peer.id: peer for peer in peers}
        INSTANCES.sweep(self._store, listed, lambda info: now_ms - info.modified_ms > _DELETE_AFTER_MS)
