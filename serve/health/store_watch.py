"""Watch on the store: if the store does not answer for two seconds, requests that need the store get 503.

The store client has a timeout of a minute, which suits batches. An HTTP client can retry sooner.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from ...common import runtime
from ...errors import SlackwaterError, TooMuch, Unavailable
from ...store.objects.protocol import ObjectStore, exists

SILENT_S = 2.0
"""Seconds without an answer after which the store counts as unavailable."""
_CHECK_AFTER_S = 1.0
"""Seconds after which a running request triggers a check of the store."""
_REUSE_S = 1.0
_KEY = "_serve/answers"
"""Key of an object that does not exist: the answer "not found" proves that the store works."""
_HUNG_AFTER_S = 10.0
"""Seconds after which an unanswered check is repeated, since its connection may be dead."""
_THREADS = 16
"""Number of threads for checks. They are separate from request threads, all of which may wait for the store."""


class SharedCheck:
    """Check of the store whose result concurrent callers share. Belongs to one event loop."""

    def __init__(
        self, in_thread: Callable[[Callable[[], None]], Awaitable[None]], function: Callable[[], None]
    ) -> None:
        self._in_thread, self._function = in_thread, function
        self._future: asyncio.Future[None] | None = None
        self._started_s = 0.0

    async def is_answered(self, age_s: float = 0.0) -> bool:
        """Return True if the store answers within `SILENT_S`, or has answered at most `age_s` ago.

        Raises the errors of the function that checks the store, except `Unavailable`.
        """
        now_s = runtime.monotonic()
        if self._future is None or now_s - self._started_s > (age_s if self._future.done() else _HUNG_AFTER_S):
            self._future, self._started_s = asyncio.ensure_future(self._in_thread(self._function)), now_s
            self._future.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # mark the exception as retrieved, because no waiter may be left
        future = self._future
        await asyncio.wait({future}, timeout=max(0.0, self._started_s + SILENT_S - now_s))
        with suppress(Unavailable):
            if future.done():
                future.result()
                return True
        return False


class StoreWatch:
    """Watch on one store. Belongs to one event loop."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pool = runtime.executor(_THREADS, name="watch")
        self._store_check = self.shared_check(self._request_store)
        self.is_unavailable = False
        self._background_check: asyncio.Future[bool] | None = None

    def shared_check(self, function: Callable[[], None]) -> SharedCheck:
        async def in_thread(function: Callable[[], None]) -> None:
            await asyncio.get_running_loop().run_in_executor(self._pool, function)

        return SharedCheck(in_thread, function)

    async def is_answering(self) -> bool:
        self.is_unavailable = not await self._store_check.is_answered(_REUSE_S)
        return not self.is_unavailable

    def check_in_background(self) -> None:
        self._background_check = asyncio.ensure_future(self.is_answering())

    def _request_store(self) -> None:
        try:
            exists(self._store, _KEY)
        except Unavailable:
            raise
        except SlackwaterError:
            pass  # an error answer is an answer

    @asynccontextmanager
    async def limit_request(self, limit_s: float, hint: str = "") -> AsyncIterator[None]:
        """Cancel the request that runs in this context after `limit_s`, or when the store becomes unavailable.

        Raises `TooMuch` and `Unavailable`.
        """
        watching: asyncio.Task[None] | None = None

        async def look(limit: asyncio.Timeout) -> None:
            while await self.is_answering():
                await asyncio.sleep(_CHECK_AFTER_S)
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

        def begin(limit: asyncio.Timeout) -> None:
            nonlocal watching
            watching = asyncio.create_task(look(limit))

        handle = None
        try:
            async with asyncio.timeout(limit_s) as limit:
                handle = asyncio.get_running_loop().call_later(_CHECK_AFTER_S, begin, limit)
                yield
        except TimeoutError:
            if self.is_unavailable and watching is not None:
                raise store_unavailable() from None
            raise TooMuch(f"the request took more than {limit_s:g} s", hint=hint) from None
        finally:
            if handle is not None:
                handle.cancel()
            if watching is not None:
                watching.cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def store_unavailable(sentence: str = "the store does not answer") -> Unavailable:
    return Unavailable(sentence, hint="retry; /readyz answers 200 once the store is back")
