"""Polling of an app's newest moment, and of the offsets that its tables have read, while clients use the app.

So an answer needs store requests only for its rows, and clients can wait for a later moment.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress

from ..client.history import AppHistory
from ..common import runtime
from ..errors import Corruption, SlackwaterError, Unavailable
from .rows.fresh import CachedMoment
from .rows.look_ups import ThreadRunner

_log = logging.getLogger(__name__)

IDLE_S = 60.0
"""Time in seconds for which an app is polled after its last request."""
_FULL_POLL_S = 2.0
"""Seconds between full polls, which detect new stages and an app that was created again."""
_REOPEN_S = 30.0
"""Seconds between reopenings of cached files. Reopened files count as used, so they stay in the cache."""


_MAX_PREFETCH_BYTES = 8 << 20
"""Maximum bytes to fetch before a new moment is announced; enough for the SSTs of a usual batch."""

OwnedPartitions = Callable[[str, str, Iterable[int]], Sequence[int]]
"""Function that selects, from state partitions of an app's table, the partitions that this instance owns."""


class AppPoller:
    """Poller of one app's newest moment. Belongs to one event loop."""

    def __init__(self, app: AppHistory, in_thread: ThreadRunner, interval_s: float, owned: OwnedPartitions) -> None:
        self._app, self._in_thread, self._interval_s, self._owned = app, in_thread, interval_s, owned
        self._newest: CachedMoment | None = None
        self._last_request_s = self._last_poll_s = self._last_full_poll_s = self._last_open_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._polling = asyncio.Lock()
        self._changed = asyncio.Event()
        self._listeners = 0
        self._tables: dict[str, float] = {}
        self._warming: asyncio.Task[None] | None = None
        self._is_to_warm = False

    @property
    def is_polling(self) -> bool:
        return self._task is not None

    async def newest_moment(self, *, follow: bool = True) -> CachedMoment:
        """Return the newest moment. With `follow`, polls the app from now on, so that later calls make no requests.

        Without `follow`, an app that is not being polled is read once.
        """
        asked_s = runtime.monotonic()
        if follow:
            self._last_request_s = asked_s
        if not self.is_polling or self._newest is None:
            async with self._polling:
                # Callers that waited share the poll that began after their calls.
                if self._newest is None or (not self.is_polling and self._last_poll_s < asked_s):
                    await self._poll()
        reading = self._newest
        assert reading is not None  # noqa: S101  `_poll` raises, or sets a moment
        if follow and not self.is_polling:
            self._task = asyncio.create_task(self._follow())
        return reading

    def keep_warm(self, table: str) -> None:
        """Keep a table's SSTs open for a while, because its rows were requested."""
        is_new = table not in self._tables
        self._tables[table] = runtime.monotonic()
        if is_new:
            self.warm()

    async def wait_until(
        self, condition: Callable[[CachedMoment], bool], timeout_s: float
    ) -> tuple[CachedMoment, bool]:
        """Wait until a condition holds for the newest moment; return the moment, and True if the condition holds.

        Returns False after a timeout of `timeout_s`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                async for reading in self.changes():
                    if condition(reading):
                        return reading, True
        return await self.newest_moment(), False

    async def changes(self) -> AsyncIterator[CachedMoment]:
        self._listeners += 1
        try:
            seen = None
            while True:
                changed = self._changed
                reading = await self.newest_moment()
                if reading is not seen:
                    seen = reading
                    yield reading
                else:
                    await changed.wait()
        finally:
            self._listeners -= 1

    def close(self) -> None:
        for task in filter(None, (self._task, self._warming)):
            task.cancel()

    async def _follow(self) -> None:
        try:
            while self._listeners or runtime.monotonic() - self._last_request_s < IDLE_S:
                await asyncio.sleep(self._interval_s)
                try:
                    await self._poll()
                except (Unavailable, Corruption) as error:
                    # Keep serving the last moment; answers contain its time.
                    _log.warning("cannot poll %s: %s", self._app.called, error.message)
        except Exception as error:  # such as a removed app; the next request raises the error
            _log.warning("stopped polling %s: %s", self._app.called, error)
        finally:
            self._newest = self._task = None
            self._notify()

    async def _poll(self) -> None:
        previous, now_s = self._newest, runtime.monotonic()
        if now_s - self._last_full_poll_s > _FULL_POLL_S:
            self._last_full_poll_s, previous = now_s, None
        new_reading = await self._in_thread(lambda: self._read(previous))
        self._last_poll_s = now_s
        if new_reading is not None:
            self._newest = new_reading
            self._notify()
            self.warm()
        elif (reading := self._newest) is not None and now_s - self._last_open_s > _REOPEN_S:
            self._last_open_s = now_s
            await self._in_thread(lambda: self._open(reading, 0))

    def _read(self, previous: CachedMoment | None) -> CachedMoment | None:
        """Return the newest moment, or None if it is unchanged."""
        moment = self._app.newer_moment(previous.moment) if previous is not None else self._app.at()
        if moment is None or (self._newest is not None and moment.versions == self._newest.moment.versions):
            return None
        moment.read_up_to()  # loads the manifests
        new_reading = CachedMoment(moment, is_newest=True, on_read=self.keep_warm)
        # Fetch a batch's few new bytes before the moment is announced, so that no request waits for them.
        self._open(new_reading, _MAX_PREFETCH_BYTES)
        return new_reading

    def _open(self, reading: CachedMoment, max_fetch_bytes: int | None = None) -> None:
        for table in [name for name in [*self._tables] if name in reading.moment.cut.tables]:
            owned = self._owned(self._app.called, table, range(reading.moment.partition_count(table)))
            try:
                reading.open_partitions(table, owned, max_fetch_bytes)
            except SlackwaterError as error:
                _log.warning("cannot fetch table %s of %s: %s", table, self._app.called, error.message)

    def warm(self) -> None:
        """Start fetching the SSTs of the state partitions that this instance owns, including newly owned partitions."""
        self._is_to_warm, self._last_open_s = True, runtime.monotonic()
        if self._warming is None or self._warming.done():
            self._warming = asyncio.create_task(self._warm_owned())

    async def _warm_owned(self) -> None:
        while self._is_to_warm and (reading := self._newest) is not None:
            self._is_to_warm = False
            old_s = runtime.monotonic() - IDLE_S
            self._tables = {table: at_s for table, at_s in self._tables.items() if at_s > old_s}
            await self._in_thread(lambda: self._open(reading))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
