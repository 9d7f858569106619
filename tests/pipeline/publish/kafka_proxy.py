"""A Kafka proxy that simulates a bad network: it delivers a request late, twice, or never."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from threading import Condition, Thread
from typing import Literal


class Api(IntEnum):
    """API keys: the numbers of Kafka's types of requests."""

    PRODUCE = 0
    METADATA = 3
    FIND_COORDINATOR = 10
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


Fate = Literal["late", "twice", "never"]
"""`late`: when `deliver_before` says so. `twice`: at once, but its answer is lost, so that the client repeats it."""

_NAMING = (Api.METADATA, Api.FIND_COORDINATOR)
"""Requests whose answers contain addresses of brokers."""
_DEADLINE_S = 30.0


class _Link:
    """A client's connection, and its connection to the broker, which stays open while a request is delayed."""

    def __init__(self, client: socket.socket, behind: tuple[str, int]) -> None:
        self.client = client
        self.broker = socket.create_connection(behind)
        self.asked: dict[int, int] = {}
        """Key of each unanswered request, by correlation id."""
        self.kept: list[bytes] | None = None
        """The delayed request and all later ones; None if nothing is delayed."""
        self.late_answer = b""


class KafkaProxy:
    """Forwards requests to the broker at `behind`. Answers contain the proxy's own address.

    Attributes:
        answered: Number of answered requests, by key.
        late_answer: The broker's answer to the delayed request; empty until then.
        cut_off: True if the client is disconnected.
    """

    def __init__(self, behind: str) -> None:
        host, port = behind.split(":")
        self._behind = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        mine = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{mine}"
        # In each version of these answers a broker's name is followed by its port.
        self._there, self._here = (host.encode() + struct.pack(">i", each) for each in (int(port), mine))
        self._news = Condition()
        self._links: list[_Link] = []
        self._keep: tuple[Api, Fate, bool] | None = None
        self._late: _Link | None = None
        self._moment: tuple[Api, int, bool] | None = None
        self.answered: Counter[int] = Counter()
        self.late_answer = b""
        self.cut_off = False

    def keep(self, api: Api, fate: Fate, *, cut: bool = True) -> None:
        """Delay the next request with this key. Then disconnect the client, or let its request time out."""
        with self._news:
            self._keep, self._late, self.late_answer = (api, fate, cut), None, b""

    def deliver_before(self, api: Api, *, skip: int = 0, crash: bool = False) -> None:
        """Deliver the delayed request before the next request with this key, or before a later one.

        With `crash`, then disconnect the client.
        """
        with self._news:
            assert self._late is not None, "nothing is kept back"
            self._moment = (api, skip, crash)

    def lose_client(self) -> None:
        """Wait until a request is delayed, then disconnect the client."""
        self.wait(lambda: self._late is not None)
        with self._news:
            self._cut()

    def restore(self) -> None:
        """Let a disconnected client connect again."""
        with self._news:
            self.cut_off = False

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until this condition of the proxy is true."""
        with self._news:
            assert self._news.wait_for(until, _DEADLINE_S)

    def serve(self) -> None:
        """Accept connections until closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._news:
                    if self.cut_off:
                        client.close()
                        continue
                    link = _Link(client, self._behind)
                    self._links.append(link)
                for work in (self._requests, self._answers):
                    Thread(target=work, args=(link,), daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        _shut(self._listener)
        with self._news:
            for link in self._links:
                _shut(link.client)
                _shut(link.broker)

    def _requests(self, link: _Link) -> None:
        for frame in _frames(link.client):
            api, _, correlation = struct.unpack_from(">hhi", frame, 4)
            with self._news:
                if not self._passes(link, api, frame):
                    continue
                link.asked[correlation] = api
            with suppress(OSError):
                link.broker.sendall(frame)
        if link.kept is None:
            _shut(link.broker)

    def _passes(self, link: _Link, api: int, frame: bytes) -> bool:
        """Return True if a request is to be forwarded at once."""
        if link.kept is not None:
            link.kept.append(frame)
            return False
        if self._keep is not None and self._keep[0] == api:
            _, fate, cut = self._keep
            self._keep = None
            link.kept = [frame]
            if fate == "late":
                self._late = link
                self._news.notify_all()
            elif fate == "twice":
                link.broker.sendall(frame)
            if cut:
                _shut(link.client)
            return False
        if self._moment is not None and self._moment[0] == api:
            _, skip, crash = self._moment
            self._moment = (self._moment[0], skip - 1, crash) if skip else None
            if not skip:
                self._deliver(crash)
        return not self.cut_off

    def _deliver(self, crash: bool) -> None:
        late = self._late
        assert late is not None
        assert late.kept
        late.broker.sendall(b"".join(late.kept))
        assert self._news.wait_for(lambda: bool(late.late_answer), _DEADLINE_S)
        self.late_answer = late.late_answer
        if crash:
            self._cut()

    def _cut(self) -> None:
        self.cut_off = True
        for link in self._links:
            _shut(link.client)
        self._news.notify_all()

    def _answers(self, link: _Link) -> None:
        for frame in _frames(link.broker):
            (correlation,) = struct.unpack_from(">i", frame, 4)
            with self._news:
                api = link.asked.pop(correlation, None)
                if api is None:
                    link.late_answer = link.late_answer or frame
                    self._news.notify_all()
                    continue
            with suppress(OSError):
                link.client.sendall(frame.replace(self._there, self._here) if api in _NAMING else frame)
            with self._news:
                self.answered[api] += 1
                self._news.notify_all()
        _shut(link.client)


def _frames(end: socket.socket) -> Iterator[bytes]:
    """Yield requests or answers one by one, each preceded by its length in four bytes."""
    with suppress(OSError), end.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            body = stream.read(size := struct.unpack(">i", head)[0])
            if len(body) < size:
                return
            yield head + body


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def kafka_proxy(behind: str) -> Iterator[KafkaProxy]:
    """Run a proxy until the block ends."""
    proxy = KafkaProxy(behind)
    thread = Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
