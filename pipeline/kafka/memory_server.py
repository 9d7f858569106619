"""Server that lets other processes of this machine, such as Spark's workers in tests, use a `MemoryKafka`.

Each client process has one connection and calls the methods of the `MemoryKafka` by name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from types import SimpleNamespace
from typing import Any, cast

from ...common import runtime
from ...errors import Gone, Unavailable
from ...state.records import Range
from .memory import MemoryKafka, MemoryTransactionalProducer
from .protocol import Chunk, Kafka, Message, Properties, TransactionalProducer, TransactionSettings

SERVER_PROPERTY = "memory.place"
"""Name of the property with the server's process id, port and key."""
_HOST = "127.0.0.1"


@contextmanager
def serve(kafka: MemoryKafka) -> Iterator[Properties]:
    """Serve this Kafka to other processes during the block. Yields properties for `open_kafka`."""
    key, closed = runtime.random_bytes(16), runtime.event()
    with Listener((_HOST, 0), backlog=64, authkey=key) as listener:
        _, port = cast("tuple[str, int]", listener.address)
        arguments = listener, kafka, closed
        acceptor = runtime.thread(_accept_connections, *arguments, name="memory-kafka")
        acceptor.start()
        try:
            yield {**kafka.properties, SERVER_PROPERTY: f"{os.getpid()} {port} {key.hex()}"}
        finally:
            closed.set()
            # `accept` has no timeout, so connect once to make the thread see `closed`. Not with a client: if the thread
            # sees `closed` only after another connection, the client would wait for an answer forever.
            socket.create_connection((_HOST, port)).close()
            acceptor.join()


def open_memory_kafka(properties: Properties) -> Kafka:
    address, place = properties["bootstrap.servers"], properties.get(SERVER_PROPERTY, "")
    if not place or place.split()[0] == str(os.getpid()):
        return MemoryKafka.named(address)
    return cast("Kafka", _remote_client(os.getpid(), address, place))


@lru_cache(maxsize=2)
def _remote_client(_pid: int, address: str, server: str) -> RemoteMemoryKafka:
    # Spark forks its workers. With the process id in the cache key, each worker gets its own connection.
    return RemoteMemoryKafka(address, server)


def _accept_connections(listener: Listener, kafka: MemoryKafka, closed: runtime.Event) -> None:
    while not closed.is_set():
        try:
            connection = listener.accept()
        except (AuthenticationError, EOFError, OSError):
            continue  # a client without the key
        if closed.is_set():
            connection.close()
            return
        runtime.thread(_serve_connection, connection, kafka, name="memory-kafka").start()


def _serve_connection(connection: Connection[Any, Any], kafka: MemoryKafka) -> None:
    """Answer each call (object number, method, arguments, keywords) with a pair of result and error.

    Object 0 is the `MemoryKafka`. Other numbers are the transactional producers that this client has created.
    """
    objects: list[MemoryKafka | MemoryTransactionalProducer] = [kafka]
    with connection, suppress(EOFError, OSError):
        while True:
            number, method, positional, keywords = connection.recv()
            try:
                result = getattr(objects[number], method)(*positional, **keywords)
            except Exception as error:
                connection.send((None, error))
                continue
            if isinstance(result, MemoryTransactionalProducer):
                objects.append(result)
                result = len(objects) - 1
            connection.send((result, None))


class RemoteMemoryKafka:
    """Client for a `MemoryKafka` in another process, with the same methods. Thread-safe."""

    def __init__(self, address: str, server: str) -> None:
        self.address, self._server = address, server
        self._lock = runtime.lock()
        self._connection: Connection[Any, Any] | None = None

    @property
    def properties(self) -> Properties:
        return {"bootstrap.servers": self.address, SERVER_PROPERTY: self._server}

    @property
    def name(self) -> str:
        return f"Kafka at {self.address}"

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, 0, method)

    def read(self, *where: Any, **keywords: Any) -> Iterator[Sequence[Message]]:
        return Kafka.read(cast("Kafka", self), *where, **keywords)

    def read_ranges(
        self,
        topic: str,
        parts: Sequence[Range],
        *,
        patience_s: float,
        deletion_errors: Mapping[int, list[Gone]] | None = None,
        topic_id: str = "",
    ) -> Iterator[Chunk]:
        arguments = topic, parts, patience_s
        chunks, gone_errors = self._call(
            0, "read_all", *arguments, lossy=deletion_errors is not None, topic_id=topic_id
        )
        if deletion_errors is not None:
            for partition, errors in gone_errors.items():
                deletion_errors[partition].extend(errors)
        yield from chunks

    def transactional_producer(self, settings: TransactionSettings) -> TransactionalProducer:
        call = partial(self._call, self._call(0, "transactional_producer", settings))
        methods = {name: partial(call, name) for name in ("open", "begin", "write", "commit", "close")}
        return cast("TransactionalProducer", SimpleNamespace(**methods))

    def _call(self, number: int, method: str, *positional: Any, **keywords: Any) -> Any:
        # Views and iterators cannot be sent.
        arguments = tuple(list(value) if isinstance(value, Iterator | KeysView) else value for value in positional)
        with self._lock:
            try:
                if self._connection is None:
                    _pid, port, key = self._server.split()
                    self._connection = Client((_HOST, int(port)), authkey=bytes.fromhex(key))
                self._connection.send((number, method, arguments, keywords))
                result, raised = self._connection.recv()
            except (EOFError, OSError) as error:
                self._connection = None
                raise Unavailable(f"{self.name} is gone: the process that held it in memory has ended") from error
        if raised is not None:
            raise raised
        return result
