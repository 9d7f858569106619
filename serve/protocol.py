"""What uvicorn's HTTP/1.1 lacks here: bounds of what comes before a request is whole, and who a certificate names."""

from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 64 << 10
"""Of a request's first line and headers, where they come in several parts; one part has a few times as much at most."""
_PATIENCE_S = 10.0
"""In which a request must be whole that has begun to come."""
PROBES = ("/healthz", "/livez", "/readyz", "/metrics")
"""What is answered however many requests are under way."""


class Protocol(HttpToolsProtocol):
    """One connection. Where there are too many, another that waits for a request is closed for it."""

    most = 2_000
    """Connections. They are more than requests may be under way, so there is always one to close."""
    idle_since_s = 0.0
    _head_bytes = _part_bytes = 0
    _timer: Any = None
    _name = ""
    _is_in_head = True

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.most:
            self._make_room()
        super().connection_made(transport)
        ssl = transport.get_extra_info("ssl_object")
        certificate = (ssl.getpeercert() or {}) if ssl is not None else {}
        names = dict(pair for parts in certificate.get("subject", ()) for pair in parts)
        self._name = names.get("commonName", "")
        self.idle_since_s = self.loop.time()
        self._wait()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being answered here."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def _make_room(self) -> None:
        """Close what has waited longest, of the address that has most: so one that opens many closes its own."""
        idle = [each for each in self.connections if isinstance(each, Protocol) and each.is_idle]
        of = Counter(each.peer for each in idle)
        for most, _ in of.most_common(1):
            there = (each for each in idle if each.peer == most)
            min(there, key=lambda each: each.idle_since_s).transport.abort()

    @property
    def peer(self) -> str:
        """The address at the other end."""
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(begins=False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head, self._part_bytes = self._is_in_head, len(data)
        super().data_received(data)
        if not (was_in_head and self._is_in_head):
            return  # what came has the end of a head, or of a body
        self._head_bytes += len(data)
        if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self._wait(begins=False)
            self.send_400_response("The request's head is too large.")

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
        self._wait(begins=False)
        self.idle_since_s = self.loop.time()
        self._is_in_head, self._head_bytes = True, -self._part_bytes  # of what came, nothing counts for the next
        super().on_message_complete()

    def _wait(self, *, begins: bool = True) -> None:
        """Begin to wait for a whole request, or wait no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(_PATIENCE_S, self.transport.close) if begins else None
