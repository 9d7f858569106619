"""One instance: listens, serves until it is told to stop."""

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
from .protocol import Protocol
from .service import ServeOptions, Service
from .tokens import Doorkeeper, Grant
from .web import application

_OTHER_FILES = 256
"""Files that are open besides connections."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where an instance listens, and what it shows and wants to be shown there."""

    host: str = "127.0.0.1"
    port: int = 8350
    certificate: Path | None = None
    """PEM, with the key in it or in `key`."""
    key: Path | None = None
    client_ca: Path | None = None
    """Who signs the certificates of those who come with one; whoever has none needs a token."""
    needs_tokens: bool = False
    """Also where only this machine can ask."""
    advertise: str = ""
    """Where other instances reach this one; empty for one that is alone."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can ask."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        """Raise `Usage` where the options do not go together."""
        if self.client_ca is not None and self.certificate is None:
            raise Usage("--client-ca goes with TLS", hint="give --certificate FILE, and --key FILE")


class ServeInstance:
    """One instance of a store, which serves until it is told to stop.

    With `with_agents` also agents, at `/mcp`; `shows_values` is whether one without a token sees values.

    Raises `Usage` where options do not go together.
    """

    def __init__(
        self,
        client: Client,
        listening: Listening,
        options: ServeOptions,
        *,
        with_agents: bool = False,
        shows_values: bool = False,
    ) -> None:
        listening.check()
        self._client, self._listening = client, listening
        self._is_open = listening.is_local and not listening.needs_tokens
        service = Service(client, options, listening.advertise)
        anybody = Grant("").also("values") if shows_values else Grant("")
        door = Doorkeeper(client, service.store_watch, is_open=self._is_open, anybody=anybody)
        agents = None
        if with_agents:
            from .agents.server import AgentServer  # its library is another extra

            agents = AgentServer(service, door)
        app = application(service, door, agents)
        config = uvicorn.Config(
            app,
            host=listening.host,
            port=listening.port,
            # Its lines go the way of all others.
            log_config=None,
            log_level="warning",
            access_log=False,
            loop="uvloop",
            http=Protocol,
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
        service.metrics.look("connections", lambda: len(connections))

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM, or `stop`."""
        # A thread that looks something up holds the interpreter for at most so long while an answer waits.
        sys.setswitchinterval(0.001)
        # What was imported stays: a collection that looks through all of it takes tens of milliseconds.
        gc.collect()
        gc.freeze()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = Protocol.most + _OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            Protocol.most = min(Protocol.most, max(64, soft - _OTHER_FILES))
        try:
            self._server.run()
        finally:
            gc.unfreeze()

    def stop(self) -> None:
        """Have `run` end, once what is under way is answered."""
        self._server.should_exit = True

    @property
    def is_up(self) -> bool:
        """Whether it listens."""
        return self._server.started

    def __str__(self) -> str:
        who, listening = "anybody" if self._is_open else "whoever has a token", self._listening
        scheme = "http" if listening.certificate is None else "https"
        return f"{self._client.root} at {scheme}://{listening.host}:{listening.port} for {who}"
