"""What uvicorn's HTTP/1.1 lacks here: bounds of what comes before a request is whole, and who a certificate names."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 64 << 10
"""Of a request's first line and headers, where they come in several parts; one part has a few times as much at most."""
_PATIENCE_S = 10.0
"""In which a request must be whole that has begun to come."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = _part_bytes = 0
    _timer: Any = None
    _name = ""
    _is_in_head = True

    def connection_made(self, transport: Any) -> None:  # noqa: D102
        super().connection_made(transport)
        ssl = transport.get_extra_info("ssl_object")
        certificate = (ssl.getpeercert() or {}) if ssl is not None else {}
        names = dict(pair for parts in certificate.get("subject", ()) for pair in parts)
        self._name = names.get("commonName", "")
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._wait(begins=False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        was_in_head, self._part_bytes = self._is_in_head, len(data)
        super().data_received(data)
        if not (was_in_head and self._is_in_head):
            return  # what came has the end of a head, or of a body
        self._head_bytes += len(data)
        if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self._wait(begins=False)
            self.send_400_response("The request's head is too large.")

    def on_message_begin(self) -> None:  # noqa: D102
        super().on_message_begin()
        self._is_in_head = True
        if self._name:
            self.scope["extensions"] = {"tls": {"client_cert_name": self._name}}
        self._wait()

    def on_headers_complete(self) -> None:  # noqa: D102
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:  # noqa: D102
        self._wait(begins=False)
        self._is_in_head, self._head_bytes = True, -self._part_bytes  # of what came, nothing counts for the next
        super().on_message_complete()

    def _wait(self, *, begins: bool = True) -> None:
        """Begin to wait for a whole request, or wait no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(_PATIENCE_S, self.transport.close) if begins else None
