"""From HTTP to a declared route and back: who asks, what, how it is answered, and a line for the audit."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Protocol
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import SlackwaterError, TooMuch, Usage
from ..results.shown import Result, encoded
from . import reads  # noqa: F401  declares its routes
from .acting import actions  # noqa: F401  declares its own
from .audit import write
from .declare import ENDPOINTS, Endpoint
from .errors import TooOften, problem, status_of
from .openapi import document
from .page import files
from .page import reads as page_reads  # noqa: F401
from .service import JSON, Answer, Call, Service
from .tokens import Doorkeeper

_log = logging.getLogger(__name__)
_MOST_BODY_BYTES = 1 << 20


class Beside(Protocol):
    """What is served beside the routes."""

    @property
    def route(self) -> Route:
        """Where."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Inside, it answers."""
        ...


def application(service: Service, door: Doorkeeper, beside: Beside | None = None) -> ASGIApp:
    """What uvicorn serves."""

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        await service.begin()
        try:
            async with beside.running() if beside is not None else nullcontext():
                yield
        finally:
            await service.end()

    description = encoded(document(ENDPOINTS))

    async def openapi(_request: Request) -> Response:
        return Response(description, media_type=JSON)

    async def alive(_request: Request) -> Response:
        others = len(service.peers.others) if service.peers is not None else 0
        return Response(encoded({"alive": True, "others": others}), media_type=JSON)

    routes = [Route(each.path, _Route(each, service, door), methods=[each.method]) for each in ENDPOINTS]
    others = [
        Route("/openapi.json", openapi),
        Route("/healthz", alive),
        *([beside.route] if beside is not None else []),
    ]
    # Starlette's own application would put two layers around each request that have nothing to do here.
    return Router([*routes, *others, *files.routes()], lifespan=lifespan, default=_no_route, redirect_slashes=False)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        error = Usage("there is no such address", hint="/openapi.json says what there is")
        await refused(error, 404)(scope, receive, send)


class _Route:
    """What answers requests of a route, as ASGI has it."""

    def __init__(self, endpoint: Endpoint, service: Service, door: Doorkeeper) -> None:
        self._endpoint, self._service, self._door = endpoint, service, door
        self._is_async = inspect.iscoroutinefunction(endpoint.function)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s, method = time.perf_counter(), scope["method"]
        who, found, rows = "", dict[str, Any](), 0
        # Once, and not with each look: the first of a name counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        try:
            grant = await self._door.admit(headers, scope)
            who = grant.name
            grant.check(self._endpoint.verb)
            body = await _body(Request(scope, receive)) if method == "POST" else b""
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            found = self._endpoint.understand(scope["path_params"], query, body)
            response, rows = await self._given(method, Call.of(self._service, grant, headers, found), found)
        except SlackwaterError as error:
            response = refused(error, root=self._service.client.root)
        except ClientDisconnect:
            return
        except Exception as error:
            _log.exception("%s %s", method, self._endpoint.path)
            response = refused(error)
        host = scope["client"][0] if scope["client"] else ""
        write(self._endpoint.name, host, who, found, response.status_code, rows, time.perf_counter() - began_s)
        await response(scope, receive, send)

    async def _given(self, method: str, asked: Call, found: dict[str, Any]) -> tuple[Response, int]:
        """The answer, and how many rows are in it."""
        endpoint, options = self._endpoint, self._service.options
        limit_s = options.long_s if endpoint.is_long else options.request_s
        try:
            async with asyncio.timeout(limit_s):
                if self._is_async:
                    given = await endpoint.function(asked, **found)
                else:
                    given = await self._service.in_thread(lambda: endpoint.function(asked, **found))
        except TimeoutError:
            raise TooMuch(f"it took more than {limit_s:g} s") from None
        if endpoint.streams and method == "HEAD":
            return Response(media_type="text/event-stream"), 0
        if endpoint.streams:
            return StreamingResponse(given, headers={"cache-control": "no-store"}, media_type="text/event-stream"), 0
        if not isinstance(given, Answer):
            given = asked.document(given.data if isinstance(given, Result) else given)
        # Whoever may not read it shall not find it in a cache on the way.
        headers = {"vary": "accept, authorization", "cache-control": "private, no-cache", **given.headers}
        return Response(given.body, given.status, headers, given.media_type), given.rows


def refused(error: Exception, status: int = 0, root: str = "") -> Response:
    """What is answered instead."""
    status = status or (status_of(error) if isinstance(error, SlackwaterError) else 500)
    body = encoded(problem(error, root))
    response = Response(body, status, media_type=JSON)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, TooOften):
        response.headers["retry-after"] = str(max(1, round(error.after_s)))
    return response


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BODY_BYTES:
            raise TooMuch(f"the body is larger than {_MOST_BODY_BYTES:,} bytes")
        parts.append(part)
    return b"".join(parts)
