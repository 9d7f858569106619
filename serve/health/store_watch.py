"""A watch on the store: requests that wait for a store which does not answer get 503 after two seconds.

The store's own patience, a minute, is for batches, which must not be lost; an HTTP client can ask again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from ...errors import SlackwaterError, TooMuch, Unavailable
from ...store.objects.protocol import ObjectStore, exists

SILENT_S = 2.0
"""A store that has not answered for so long is taken to be away."""
_ASKED_AFTER_S = 1.0
"""The store is asked when a request takes longer."""
_KNOWN_S = 1.0
"""An answer counts for so long."""
_KEY = "_serve/answers"
"""No object: that there is none is an answer."""
_GIVEN_UP_S = 10.0
"""What has waited so long may wait for a connection that is dead: it is asked again."""
_THREADS = 16
"""Of its own, since those of requests may all wait for the store; one hangs for a minute or so."""


class Look:
    """A question to the store, asked once for all callers of about the same time. For one event loop."""

    def __init__(
        self, in_thread: Callable[[Callable[[], None]], Awaitable[None]], function: Callable[[], None]
    ) -> None:
        self._in_thread, self._function = in_thread, function
        self._asked: asyncio.Future[None] | None = None
        self._asked_s = 0.0

    async def is_answered(self, age_s: float = 0.0) -> bool:
        """Whether the store answers within `SILENT_S`, or did so long ago. Raises as the function does."""
        now_s = time.monotonic()
        if self._asked is None or now_s - self._asked_s > (age_s if self._asked.done() else _GIVEN_UP_S):
            self._asked, self._asked_s = asyncio.ensure_future(self._in_thread(self._function)), now_s
            self._asked.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody's, perhaps
        asked = self._asked
        await asyncio.wait({asked}, timeout=max(0.0, self._asked_s + SILENT_S - now_s))
        with suppress(Unavailable):
            if asked.done():
                asked.result()
                return True
        return False


class StoreWatch:
    """The watch on one store. For one event loop."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="watch")
        self._look = self.look(self._ask)
        self.is_away = False
        self._asking: asyncio.Future[bool] | None = None

    def look(self, function: Callable[[], None]) -> Look:
        """Have something asked of the store, though requests have all their threads."""

        async def in_thread(function: Callable[[], None]) -> None:
            await asyncio.get_running_loop().run_in_executor(self._pool, function)

        return Look(in_thread, function)

    async def answers(self) -> bool:
        """Whether the store answers within `SILENT_S`."""
        self.is_away = not await self._look.is_answered(_KNOWN_S)
        return not self.is_away

    def ask(self) -> None:
        """Have `is_away` looked up, and wait for nothing."""
        self._asking = asyncio.ensure_future(self.answers())

    def _ask(self) -> None:
        try:
            exists(self._store, _KEY)
        except Unavailable:
            raise
        except SlackwaterError:
            pass  # it refuses, so it is there

    @asynccontextmanager
    async def bounded(self, limit_s: float, hint: str = "") -> AsyncIterator[None]:
        """Inside is a request, which is ended when it takes too long, or waits while the store is away.

        Raises `TooMuch` and `Unavailable`.
        """
        looking: asyncio.Task[None] | None = None

        async def look(limit: asyncio.Timeout) -> None:
            while await self.answers():
                await asyncio.sleep(_ASKED_AFTER_S)
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

        def begin(limit: asyncio.Timeout) -> None:
            nonlocal looking
            looking = asyncio.create_task(look(limit))

        later = None
        try:
            async with asyncio.timeout(limit_s) as limit:
                later = asyncio.get_running_loop().call_later(_ASKED_AFTER_S, begin, limit)
                yield
        except TimeoutError:
            if self.is_away and looking is not None:
                raise away() from None
            raise TooMuch(f"it took more than {limit_s:g} s", hint=hint) from None
        finally:
            if later is not None:
                later.cancel()
            if looking is not None:
                looking.cancel()

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def away(what: str = "the store does not answer") -> Unavailable:
    """The error while it is away."""
    return Unavailable(what, hint="ask again; /readyz answers 200 once the store is back")
