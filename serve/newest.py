"""The newest moment of an app, looked for all the time while somebody asks, and how far its tables have read.

So an answer waits for no request to the store but those for its rows, and whoever wants a later moment hears of it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress

from ..client.history import AppHistory
from ..errors import Corruption, SlackwaterError, Unavailable
from .rows.fresh import FreshMoment
from .rows.look_ups import InThread

_log = logging.getLogger(__name__)

IDLE_S = 60.0
"""For so long after it was last asked for, an app is followed."""
_WHOLE_S = 2.0
"""So often it is looked for in full: stages that began, an app that was made anew."""
_REOPENED_S = 30.0
"""So often what is open is opened again, without fetching anything: files in use are not evicted, and whatever was is
held no longer."""


_SOON_BYTES = 8 << 20
"""Of so much that is not on this machine, a moment is only told of once it is open: a batch's SSTs, of most."""

Owned = Callable[[str, str, Iterable[int]], Sequence[int]]
"""Which of the state partitions of an app's table this instance is to have warm."""


class Newest:
    """Follows one app. Of one event loop."""

    def __init__(self, app: AppHistory, in_thread: InThread, every_s: float, owned: Owned) -> None:
        self._app, self._in_thread, self._every_s, self._owned = app, in_thread, every_s, owned
        self._reading: FreshMoment | None = None
        self._asked_s = self._whole_s = self._opened_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._changed = asyncio.Event()
        self._listeners = 0
        self._tables: dict[str, float] = {}
        self._warming: asyncio.Task[None] | None = None
        self._is_to_warm = False

    async def reading(self) -> FreshMoment:
        """The newest moment, as it was found a moment ago. Raises as `StoredApp.at`."""
        self._asked_s = time.monotonic()
        if self._reading is None:
            async with self._looking:
                if self._reading is None:
                    await self._look()
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        assert self._reading is not None  # noqa: S101  `_look` raises, or finds one
        return self._reading

    def asked_for(self, table: str) -> None:
        """That rows of a table were asked for: it is kept warm from then on, for a while."""
        is_new = table not in self._tables
        self._tables[table] = time.monotonic()
        if is_new:
            self.warm()

    async def until(self, holds: Callable[[FreshMoment], bool], timeout_s: float) -> tuple[FreshMoment, bool]:
        """The newest moment as soon as something holds of it, or when the time is over; and whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                async for reading in self.changes():
                    if holds(reading):
                        return reading, True
        return await self.reading(), False

    async def changes(self) -> AsyncIterator[FreshMoment]:
        """The newest moment, and each that comes after it, for as long as somebody listens."""
        self._listeners += 1
        try:
            seen = None
            while True:
                changed = self._changed
                reading = await self.reading()
                if reading is not seen:
                    seen = reading
                    yield reading
                else:
                    await changed.wait()
        finally:
            self._listeners -= 1

    def close(self) -> None:
        """Follow no more."""
        for task in filter(None, (self._task, self._warming)):
            task.cancel()

    async def _follow(self) -> None:
        try:
            while self._listeners or time.monotonic() - self._asked_s < IDLE_S:
                await asyncio.sleep(self._every_s)
                try:
                    await self._look()
                except (Unavailable, Corruption) as error:
                    # What was newest goes on being answered, and says how old it is.
                    _log.warning("%s cannot be followed: %s", self._app.called, error.message)
        except Exception as error:  # such as an app that is gone: whoever asks next hears of it
            _log.warning("%s is followed no more: %s", self._app.called, error)
        finally:
            self._reading = self._task = None
            self._tell()

    async def _look(self) -> None:
        known, now_s = self._reading, time.monotonic()
        if now_s - self._whole_s > _WHOLE_S:
            self._whole_s, known = now_s, None
        found = await self._in_thread(lambda: self._read(known))
        if found is not None:
            self._reading = found
            self._tell()
            self.warm()
        elif (reading := self._reading) is not None and now_s - self._opened_s > _REOPENED_S:
            self._opened_s = now_s
            await self._in_thread(lambda: self._open(reading, 0))

    def _read(self, known: FreshMoment | None) -> FreshMoment | None:
        """The newest moment; None where that is known."""
        found = self._app.newer(known.moment) if known is not None else self._app.at()
        if found is None or (self._reading is not None and found.versions == self._reading.moment.versions):
            return None
        found.read_up_to()  # its manifests are known then
        made = FreshMoment(found, is_newest=True, asked_for=self.asked_for)
        # What a batch has written is soon there: before it is told of, so that nobody waits for it.
        self._open(made, _SOON_BYTES)
        return made

    def _open(self, reading: FreshMoment, most_bytes: int | None = None) -> None:
        """Fetch and open what the tables that are asked for have, one after the other."""
        for table in [each for each in [*self._tables] if each in reading.moment.cut.tables]:
            mine = self._owned(self._app.called, table, range(reading.moment.partitions(table)))
            try:
                reading.open(table, mine, most_bytes)
            except SlackwaterError as error:
                _log.warning("%s of %s cannot be fetched: %s", table, self._app.called, error.message)

    def warm(self) -> None:
        """Have warm what is this instance's to have, which may be more than a moment ago."""
        self._is_to_warm, self._opened_s = True, time.monotonic()
        if self._warming is None or self._warming.done():
            self._warming = asyncio.create_task(self._have_warm())

    async def _have_warm(self) -> None:
        while self._is_to_warm and (reading := self._reading) is not None:
            self._is_to_warm = False
            old_s = time.monotonic() - IDLE_S
            self._tables = {table: at_s for table, at_s in self._tables.items() if at_s > old_s}
            await self._in_thread(lambda: self._open(reading))

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
