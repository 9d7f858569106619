"""A server that issues tokens for OIDC's client credentials: JSON Web Tokens without a signature."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs


class OidcServer(ThreadingHTTPServer):
    """Issues tokens that are valid for `lifetime_s` seconds, to the client whose secret is `secret`."""

    daemon_threads = True

    def __init__(self, secret: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secret, self.lifetime_s = secret, 3
        self.issued = self.refused = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"


class _Handler(BaseHTTPRequestHandler):
    server: OidcServer

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        kind, _, said = self.headers["authorization"].partition(" ")
        user, _, secret = base64.b64decode(said).decode().partition(":")
        if (kind, user, asked["grant_type"]) != (
            "Basic",
            "app",
            ["client_credentials"],
        ) or secret != self.server.secret:
            self.server.refused += 1
            self._answer(401, {"error": "invalid_client", "error_description": "the secret is wrong"})
            return
        self.server.issued += 1
        now = time.time()
        claims = {"sub": "app", "iat": now, "exp": now + self.server.lifetime_s, "scope": "kafka"}
        token = ".".join((_encoded({"alg": "none"}), _encoded(claims), ""))
        self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": self.server.lifetime_s})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@contextmanager
def oidc_server(secret: str) -> Iterator[OidcServer]:
    with OidcServer(secret) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
