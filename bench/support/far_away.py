"""A proxy that delays each request, like a distant server. It uses little CPU itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.parse import urlsplit


class FarAway:
    """Forwards bytes between each client and its own connection to the server. Requests are delayed by `delay_s`."""

    def __init__(self, endpoint: str, delay_s: float) -> None:
        self.seen: list[tuple[float, str]] = []
        """Times of requests, by `time.perf_counter`, each with the request's first line."""
        self.endpoint = ""
        self._behind, self._delay_s = urlsplit(endpoint), delay_s

    async def listen(self) -> asyncio.Server:
        """Listen on a local port."""
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_behind, to_behind = await asyncio.open_connection(self._behind.hostname, self._behind.port)
        loop = asyncio.get_running_loop()

        async def there() -> None:
            while data := await reader.read(1 << 18):
                line = data.partition(b"\r\n")[0].decode("latin-1")
                self.seen += [(time.perf_counter(), line)] if line.endswith("HTTP/1.1") else []
                # Requests are sent in order, even if more requests arrive before the delay is over.
                loop.call_later(self._delay_s, to_behind.write, data)
            loop.call_later(self._delay_s, to_behind.close)

        async def back() -> None:
            while data := await from_behind.read(1 << 18):
                writer.write(data)
            writer.close()

        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await asyncio.gather(there(), back())
        finally:
            to_behind.close()
            writer.close()


@contextmanager
def far_away(endpoint: str, delay_s: float) -> Iterator[FarAway]:
    """Run the proxy in a thread while the block runs."""
    loop, proxy = asyncio.new_event_loop(), FarAway(endpoint, delay_s)
    server = loop.run_until_complete(proxy.listen())
    thread = Thread(target=loop.run_forever, name="far-away")
    thread.start()
    try:
        yield proxy
    finally:

        async def end() -> None:
            server.close()
            mine = asyncio.current_task()
            tasks = [each for each in asyncio.all_tasks() if each is not mine]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def in_sequence(times_s: Iterable[float], delay_s: float) -> int:
    """Count round trips. A new one begins with a request at least `delay_s` after the start of the one before."""
    count, began_s = 0, -delay_s
    for at_s in sorted(times_s):
        if at_s >= began_s + delay_s:
            count, began_s = count + 1, at_s
    return count
