"""Agents that use the client session of MCP's library, over HTTP or with a local server process."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.histories import FlightsApp

from ..conftest import FAST, HERE, serving


@dataclass
class Agent:
    """A client that calls tools one after the other and records all answers."""

    portal: BlockingPortal
    session: Client
    answers: list[str] = field(default_factory=list)
    failed: bool = False

    def __call__(self, tool: str, **arguments: Any) -> Any:
        """Call a tool, and return its answer. `failed` is True if it was an error."""
        found = self.portal.call(lambda: self.session.call_tool(tool, arguments))
        (content,) = found.content
        self.failed = found.is_error
        self.answers.append(content.text)
        return msgspec.json.decode(content.text)

    def fails(self, tool: str, **arguments: Any) -> dict[str, str]:
        """Call a tool that must fail; return its error."""
        found: dict[str, str] = self(tool, **arguments)
        assert self.failed, found
        assert found.keys() >= {"error", "message", "hint"}
        return found

    @property
    def tools(self) -> dict[str, Any]:
        """Return the available tools by name."""
        return {each.name: each for each in self.portal.call(self.session.list_tools).tools}


@contextmanager
def connected(session: AbstractAsyncContextManager[Client]) -> Iterator[Agent]:
    """Open an agent over this session."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(session) as opened:
        yield Agent(portal, opened)


@contextmanager
def agent_at(url: str, token: str = "", **how: Any) -> Iterator[Agent]:
    """Open an agent connected to a server."""

    @asynccontextmanager
    async def session() -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with (
            # It reads no certificates of authorities, as no server of tests has one.
            httpx2.AsyncClient(headers=headers, timeout=180, verify=False) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http), **how) as opened,
        ):
            yield opened

    with connected(session()) as agent:
        yield agent


@pytest.fixture(scope="session")
def agents_at(written: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a function that starts a server for agents, with or without values. Its app is changed by no test."""
    found: dict[bool, str] = {}
    with ExitStack() as stack:

        def begun(shows_values: bool = False) -> str:
            if shows_values not in found:
                cache = tmp_path_factory.mktemp("cache")
                how = {"with_agents": True, "shows_values": shows_values}
                found[shows_values] = stack.enter_context(serving(written.store.url, cache, HERE, FAST, **how))
            return found[shows_values]

        yield begun


@pytest.fixture(scope="module")
def masked_session(agents_at: Any) -> Iterator[Agent]:
    with agent_at(agents_at()) as agent:
        yield agent


@pytest.fixture(scope="module")
def seeing_session(agents_at: Any) -> Iterator[Agent]:
    with agent_at(agents_at(shows_values=True)) as agent:
        yield agent


@pytest.fixture
def masked(masked_session: Agent) -> Agent:
    """Return an agent that must not see values."""
    return Agent(masked_session.portal, masked_session.session)


@pytest.fixture
def seeing(seeing_session: Agent) -> Agent:
    """Return an agent that may see values."""
    return Agent(seeing_session.portal, seeing_session.session)
