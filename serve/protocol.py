"""HTTP connection of uvicorn, with limits on connections and on incomplete requests."""

from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEAD_BYTES = 64 << 10
"""Maximum bytes of a request's first line and headers, if they are received in parts.

A single part may be a few times as large.
"""
_REQUEST_TIMEOUT_S = 10.0
PROBES = ("/healthz", "/livez", "/readyz", "/metrics")
"""Paths that are answered regardless of the number of requests in progress."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """HTTP connection. If the maximum number of connections is reached, a new connection closes an idle connection."""

    max_connections = 2_000
    """Maximum number of connections. It exceeds the maximum number of requests, so that some connections are idle."""
    idle_since_s = 0.0
    _head_bytes = _part_bytes = 0
    _timer: Any = None
    _name = ""
    _is_in_head = True

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.max_connections:
            self._close_idle_connection()
        super().connection_made(transport)
        ssl = transport.get_extra_info("ssl_object")
        certificate = (ssl.getpeercert() or {}) if ssl is not None else {}
        names = dict(pair for parts in certificate.get("subject", ()) for pair in parts)
        self._name = names.get("commonName", "")
        self.idle_since_s = self.loop.time()
        self._wait()

    @property
    def is_idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def _close_idle_connection(self) -> None:
        """Close the connection with the longest idle time, of the address that has most idle connections.

        So a client that opens many connections loses only its own connections.
        """
        idle = [
            connection
            for connection in self.connections
            if isinstance(connection, LimitedHttpProtocol) and connection.is_idle
        ]
        counts = Counter(connection.peer for connection in idle)
        for busiest, _ in counts.most_common(1):
            candidates = (connection for connection in idle if connection.peer == busiest)
            min(candidates, key=lambda connection: connection.idle_since_s).transport.abort()

    @property
    def peer(self) -> str:
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(starts=False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head, self._part_bytes = self._is_in_head, len(data)
        super().data_received(data)
        if not (was_in_head and self._is_in_head):
            return  # the data completed a request's head, or belongs to a body
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self._wait(starts=False)
            self.send_400_response("The request's headers are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        if self._name:
            self.scope["extensions"] = {"tls": {"client_cert_name": self._name}}
        self._wait()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._wait(starts=False)
        self.idle_since_s = self.loop.time()
        # The rest of this data does not count for the next request.
        self._is_in_head, self._head_bytes = True, -self._part_bytes
        super().on_message_complete()

    def _wait(self, *, starts: bool = True) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(_REQUEST_TIMEOUT_S, self.transport.close) if starts else None
