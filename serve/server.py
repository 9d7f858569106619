"""One server instance: listens, and serves until it is stopped."""

import gc
import ipaddress
import resource
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from ..client import Client
from ..errors import Usage
from .protocol import LimitedHttpProtocol
from .service import ServeOptions, Service
from .tokens import Authenticator, Grant
from .web import build_application

_OTHER_FILES = 256
"""Number of file descriptors that are needed in addition to those of connections."""


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Address, TLS and authentication settings of an instance."""

    host: str = "127.0.0.1"
    port: int = 8350
    certificate: Path | None = None
    """PEM file with the certificate, and with the private key unless `key` is set."""
    key: Path | None = None
    client_ca: Path | None = None
    """CA file of client certificates; clients without a certificate need a token."""
    needs_tokens: bool = False
    """True to require tokens also on a loopback address."""
    advertise: str = ""
    """Address for other instances; empty for a single instance."""

    @property
    def is_loopback(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        if self.client_ca is not None and self.certificate is None:
            raise Usage("--client-ca needs TLS", hint="give --certificate FILE, and --key FILE")


class ServeInstance:
    """One server instance over a store.

    With `with_agents`, agents are served at `/mcp`; `shows_values` lets clients without a token see values there.

    Raises `Usage` for options that cannot be combined.
    """

    def __init__(
        self,
        client: Client,
        listening: ListenOptions,
        options: ServeOptions,
        *,
        with_agents: bool = False,
        shows_values: bool = False,
    ) -> None:
        listening.check()
        self._client, self._listening = client, listening
        self._is_open = listening.is_loopback and not listening.needs_tokens
        service = Service(client, options, listening.advertise)
        anybody = Grant("").with_verb("values") if shows_values else Grant("")
        door = Authenticator(client, service.store_watch, is_open=self._is_open, anonymous_grant=anybody)
        agents = None
        if with_agents:
            from .agents.server import AgentServer  # needs the extra `agents`

            agents = AgentServer(service, door)
        app = build_application(service, door, agents)
        config = uvicorn.Config(
            app,
            host=listening.host,
            port=listening.port,
            # Keep slackwater's own logging configuration.
            log_config=None,
            log_level="warning",
            access_log=False,
            loop="uvloop",
            http=LimitedHttpProtocol,
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
            ssl_certfile=listening.certificate,
            ssl_keyfile=listening.key,
            ssl_ca_certs=None if listening.client_ca is None else str(listening.client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if listening.client_ca is None else ssl.CERT_OPTIONAL,
        )
        self._server = uvicorn.Server(config)
        connections = self._server.server_state.connections
        service.metrics.set_gauge_function("connections", lambda: len(connections))

    def run(self) -> None:
        """Serve until SIGINT, SIGTERM or `stop`."""
        # Limit how long a look-up thread can hold the GIL while the event loop waits.
        sys.setswitchinterval(0.001)
        # Exclude imported modules from garbage collection: scanning all of them takes tens of milliseconds.
        gc.collect()
        gc.freeze()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = LimitedHttpProtocol.max_connections + _OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            LimitedHttpProtocol.max_connections = min(LimitedHttpProtocol.max_connections, max(64, soft - _OTHER_FILES))
        try:
            self._server.run()
        finally:
            gc.unfreeze()

    def stop(self) -> None:
        """Make `run` return once the requests in progress are answered."""
        self._server.should_exit = True

    @property
    def is_up(self) -> bool:
        return self._server.started

    def __str__(self) -> str:
        access, listening = "no token required" if self._is_open else "token required", self._listening
        scheme = "http" if listening.certificate is None else "https"
        return f"{self._client.root} at {scheme}://{listening.host}:{listening.port}, {access}"
