"""A gate before a broker. It logs clients in as Amazon MSK does: by presigned URLs, for as long as they are valid.

It answers Kafka's two requests of a login by itself, and forwards all others. Like a broker, it ends a connection if
the client does not log in again before its session ends (KIP-368). It checks Signature Version 4 of a presigned URL as
AWS documents it, using only the standard library.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from threading import Lock, Thread
from urllib.parse import parse_qsl, quote, urlsplit

from slackwater.pipeline.dev.jvm_server import HOST, choose_port

_HANDSHAKE, _VERSIONS, _AUTHENTICATE = 17, 18, 36
_FAILED = 58


class MskGate:
    """A gate, as a context manager. `upstream` is the port of the broker's listener."""

    def __init__(self, secret_keys: dict[str, str]) -> None:
        self.secret_keys = secret_keys
        """Secret keys by access key. A test may change them."""
        self.port, self.upstream = choose_port(), 0
        self.logins: list[tuple[str, bool]] = []
        """Tokens of all logins, each with True if it was admitted. Clients of earlier tests continue to log in."""
        self._listener = socket.create_server((HOST, self.port))
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> MskGate:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def admits(self, token: str) -> bool:
        return time.time() < end_of(token) and is_signed(token, self.secret_keys)

    def tokens(self, access_key: str, *, admitted: bool = True) -> list[str]:
        """Return the tokens of an access key that were admitted, or those that were refused."""
        return [token for token, was in self.logins if was == admitted and is_of(token, access_key)]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self.upstream))
                self._sockets += [client, server]
                Thread(target=_Connection(self, client, server).run, daemon=True).start()


class _Connection:
    def __init__(self, gate: MskGate, client: socket.socket, server: socket.socket) -> None:
        self._gate, self._client, self._server = gate, client, server
        self._lock = Lock()
        self._ends_s = 0.0

    def run(self) -> None:
        Thread(target=self._return_answers, daemon=True).start()
        with suppress(OSError, EOFError):
            while self._handle(_frame(self._client)):
                pass
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _return_answers(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                self._answer(_frame(self._server))

    def _answer(self, frame: bytes) -> None:
        with self._lock:
            self._client.sendall(struct.pack(">i", len(frame)) + frame)

    def _handle(self, frame: bytes) -> bool:
        """Handle a request from the client. Returns False to end the connection."""
        api, version, number, length = struct.unpack_from(">hhih", frame)
        body = frame[10 + max(length, 0) :]
        if api == _HANDSHAKE:
            self._answer(struct.pack(">ihi", number, 0, 1) + _text("OAUTHBEARER"))
        elif api == _AUTHENTICATE:
            assert version <= 1
            return self._log_in(number, version, body[4:])
        elif api == _VERSIONS or time.time() < self._ends_s:
            self._server.sendall(struct.pack(">i", len(frame)) + frame)
        else:
            return False
        return True

    def _log_in(self, number: int, version: int, said: bytes) -> bool:
        head, _, rest = said.partition(b"auth=Bearer ")
        assert head == b"n,,\x01"
        token = rest.removesuffix(b"\x01\x01").decode()
        admitted = self._gate.admits(token)
        answer = struct.pack(">ih", number, 0 if admitted else _FAILED)
        answer += struct.pack(">h", -1) if admitted else _text("Access denied")
        answer += struct.pack(">i", 0)
        lifetime_s = end_of(token) - time.time() if admitted else 0
        self._ends_s = time.time() + lifetime_s
        if version:
            answer += struct.pack(">q", int(lifetime_s * 1000))
        self._gate.logins.append((token, admitted))
        self._answer(answer)
        return admitted


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _frame(sock: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _bytes(sock, 4))
    return _bytes(sock, length)


def _bytes(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (part := sock.recv(count - len(data))):
            raise EOFError
        data += part
    return bytes(data)


def signed_fields(token: str) -> dict[str, str]:
    """Return the query of an MSK token."""
    return dict(parse_qsl(urlsplit(_url(token)).query, strict_parsing=True))


def is_of(token: str, access_key: str) -> bool:
    return signed_fields(token)["X-Amz-Credential"].startswith(f"{access_key}/")


def end_of(token: str) -> float:
    """Return the time at which an MSK token expires, in seconds since 1970."""
    fields = signed_fields(token)
    signed = datetime.strptime(fields["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return signed.timestamp() + int(fields["X-Amz-Expires"])


def _url(token: str) -> str:
    assert "=" not in token
    return urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def is_signed(token: str, secret_keys: Mapping[str, str]) -> bool:
    """Return True if an MSK token is signed with the secret key that belongs to its access key."""
    parts, fields = urlsplit(_url(token)), signed_fields(token)
    user, day, region, service, end = fields["X-Amz-Credential"].split("/")
    assert (service, end, fields["Action"]) == ("kafka-cluster", "aws4_request", "kafka-cluster:Connect")
    assert fields["X-Amz-Date"].startswith(day)
    assert (parts.scheme, parts.netloc, parts.path) == ("https", f"kafka.{region}.amazonaws.com", "/")
    unsigned = ("X-Amz-Signature", "User-Agent")
    query = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in fields.items() if k not in unsigned)
    asked = "&".join(f"{name}={value}" for name, value in query)
    request = f"GET\n/\n{asked}\nhost:{parts.netloc}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    scope = f"{day}/{region}/kafka-cluster/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    signed = f"AWS4-HMAC-SHA256\n{fields['X-Amz-Date']}\n{scope}\n{hashed}"
    key = f"AWS4{secret_keys.get(user, '')}".encode()
    for part in (*scope.split("/"), signed):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(key.hex(), fields["X-Amz-Signature"])
