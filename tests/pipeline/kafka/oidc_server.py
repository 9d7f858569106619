"""A server that issues tokens for OIDC client credentials: JSON Web Tokens without a signature."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs

from tests.support.json_servers import JsonHandler, JsonServer, serving


class OidcServer(JsonServer):
    """Server that gives tokens, valid for `lifetime_s` seconds, to the client with the secret `secret`."""

    def __init__(self, secret: str) -> None:
        super().__init__(_Handler)
        self.secret, self.lifetime_s = secret, 3
        self.issued = self.refused = 0

    @property
    def url(self) -> str:
        return f"{self.uri}/token"


class _Handler(JsonHandler):
    server: OidcServer

    def do_POST(self) -> None:  # noqa: N802  http.server calls it
        asked = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        kind, _, said = self.headers["authorization"].partition(" ")
        user, _, secret = base64.b64decode(said).decode().partition(":")
        if (kind, user, asked["grant_type"]) != (
            "Basic",
            "app",
            ["client_credentials"],
        ) or secret != self.server.secret:
            self.server.refused += 1
            self.answer(401, {"error": "invalid_client", "error_description": "the secret is wrong"})
            return
        self.server.issued += 1
        now = time.time()
        claims = {"sub": "app", "iat": now, "exp": now + self.server.lifetime_s, "scope": "kafka"}
        token = ".".join((_encoded({"alg": "none"}), _encoded(claims), ""))
        self.answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": self.server.lifetime_s})


def _encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@contextmanager
def oidc_server(secret: str) -> Iterator[OidcServer]:
    with serving(OidcServer(secret)) as server:
        yield server
