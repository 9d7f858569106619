"""From HTTP to a declared route and back: who asks, what, how it is answered, and a line for the audit."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ..client.show.shown import Result, encoded
from ..errors import SlackwaterError, TooMuch, Unavailable, Usage
from . import reads  # noqa: F401  declares its routes
from .acting import actions  # noqa: F401  declares its own
from .audit import write
from .declare import ENDPOINTS, Endpoint
from .errors import Denied, TooOften, problem, status_of
from .openapi import document
from .page import files
from .page import reads as page_reads  # noqa: F401
from .protocol import PROBES
from .service import JSON, Answer, Call, Service, event
from .tokens import STREAM_KNOWN_S, Doorkeeper, Grant

_log = logging.getLogger(__name__)
_MOST_BODY_BYTES = 1 << 20
MOST_REQUESTS = 1_900
"""Under way; who comes then is told to ask again. Bounds memory."""
_MOST_STREAMS = 500
"""Of one token, or of one address."""


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

    async def live(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        if await service.store_watch.answers():
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the store does not answer\n", 503)

    async def metrics(_request: Request) -> Response:
        service.store_watch.ask()  # for the next scrape: this one waits for nothing
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes = [Route(each.path, _Route(each, service, door), methods=[each.method]) for each in ENDPOINTS]
    others = [
        Route("/openapi.json", openapi),
        Route("/healthz", alive),
        Route("/livez", live),
        Route("/readyz", ready),
        Route("/metrics", metrics),
        *([beside.route] if beside is not None else []),
    ]
    # Starlette's own application would put two layers around each request that have nothing to do here.
    router = Router([*routes, *others, *files.routes()], lifespan=lifespan, default=_no_route, redirect_slashes=False)
    return _Bounded(router, service)


class _Bounded:
    """What has so many requests under way at most; probes are answered all the same."""

    def __init__(self, router: Router, service: Service) -> None:
        self._router, self._under_way = router, 0
        service.metrics.look("requests_under_way", lambda: self._under_way)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            return await self._router(scope, receive, send)
        if self._under_way >= MOST_REQUESTS:
            error = Unavailable(f"{MOST_REQUESTS:,} requests are under way", hint="ask again in a second")
            return await refused(error)(scope, receive, send)
        self._under_way += 1
        try:
            await self._router(scope, receive, send)
        finally:
            self._under_way -= 1


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
        name, who, found, rows = self._endpoint.name, "", dict[str, Any](), 0
        # Once, and not with each look: the first of a name counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host = scope["client"][0] if scope["client"] else ""
        streamed: _Streamed | None = None
        try:
            grant = await self._door.admit(headers, scope)
            who = grant.name
            grant.check(self._endpoint.verb)
            body = await _body(Request(scope, receive)) if method == "POST" else b""
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            found = self._endpoint.understand(scope["path_params"], query, body)
            given = await self._given(Call.of(self._service, grant, headers, found), found)
            if self._endpoint.streams:
                if method != "HEAD":
                    streamed = _Streamed(given, lambda: self._still(grant, headers, scope), self._service, who or host)
                response = _stream(streamed)
            else:
                response, rows = _response(given), given.rows
        except SlackwaterError as error:
            response = refused(error, root=self._service.client.root)
        except ClientDisconnect:
            return
        except Exception as error:
            _log.exception("%s %s", method, self._endpoint.path)
            response = refused(error)

        def note(name: str, rows: int | None) -> None:
            write(name, host, who, found, response.status_code, rows, time.perf_counter() - began_s)

        self._service.metrics.observe(name, response.status_code, time.perf_counter() - began_s)
        note(name, rows if streamed is None else None)
        try:
            await response(scope, receive, send)
        finally:
            if streamed is not None:
                note(f"{name} ended", streamed.events)

    async def _given(self, asked: Call, found: dict[str, Any]) -> Any:
        """What the function gives, as an `Answer` where it is no stream."""
        endpoint, service = self._endpoint, self._service
        async with service.store_watch.bounded(
            service.options.long_s if endpoint.is_long else service.options.request_s
        ):
            if self._is_async:
                given = await endpoint.function(asked, **found)
            else:
                given = await service.in_thread(lambda: endpoint.function(asked, **found))
        if endpoint.streams or isinstance(given, Answer):
            return given
        data = given.data if isinstance(given, Result) else given
        return asked.document(data, rows=rows_in(data))

    async def _still(self, grant: Grant, headers: dict[str, str], scope: Scope) -> None:
        """Raise unless who was admitted would be now, and may the same."""
        if grant.name and await self._door.known(headers, scope) != grant:
            raise Denied(f"what the token {grant.name!r} may has changed", hint="ask again")


def rows_in(data: object) -> int:
    """The rows of a document, for the audit: of its longest list."""
    match data:
        case dict():
            return max(map(rows_in, (each for each in data.values() if not isinstance(each, dict))), default=0)
        case list() | tuple():
            return len(data)
        case msgspec.Raw():
            found = bytes(data)
            return len(msgspec.json.decode(found, type=list[msgspec.Raw])) if found.startswith(b"[") else 0
        case _:
            return 0


def _response(given: Answer) -> Response:
    # Whoever may not read it shall not find it in a cache on the way.
    headers = {"vary": "accept, authorization", "cache-control": "private, no-cache", **given.headers}
    return Response(given.body, given.status, headers, given.media_type)


def _stream(streamed: "_Streamed | None") -> Response:
    if streamed is None:
        return Response(media_type="text/event-stream")
    headers = {"cache-control": "no-store"}
    return StreamingResponse(streamed.sent(), headers=headers, media_type="text/event-stream")


class _Streamed:
    """Events, for as long as who asked may have them. Raises `TooOften` where one asker has too many streams open."""

    def __init__(
        self, given: AsyncIterator[bytes], still: Callable[[], Awaitable[None]], service: Service, who: str
    ) -> None:
        self._given, self._still, self._service, self._who = given, still, service, who
        self.events = 0
        if service.streams[who] >= _MOST_STREAMS:
            raise TooOften(f"{_MOST_STREAMS} streams of one asker are open", after_s=5)

    async def sent(self) -> AsyncIterator[bytes]:
        """The events; at last an `error` that says why, where it is no longer admitted."""
        streams, looked_s = self._service.streams, time.monotonic()
        streams[self._who] += 1
        coming = asyncio.ensure_future(anext(self._given, None))
        try:
            while True:
                await asyncio.wait({coming}, timeout=STREAM_KNOWN_S)
                if time.monotonic() - looked_s >= STREAM_KNOWN_S:
                    await self._still()
                    looked_s = time.monotonic()
                if coming.done():
                    if (data := coming.result()) is None:
                        return
                    self.events += 1
                    yield data
                    coming = asyncio.ensure_future(anext(self._given, None))
        except SlackwaterError as error:
            yield event("error", problem(error, self._service.client.root))
        finally:
            coming.cancel()
            streams[self._who] -= 1
            if not streams[self._who]:
                del streams[self._who]


def refused(error: Exception, status: int = 0, root: str = "") -> Response:
    """What is answered instead."""
    status = status or (status_of(error) if isinstance(error, SlackwaterError) else 500)
    body = encoded(problem(error, root))
    response = Response(body, status, media_type=JSON)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if status in (429, 503):
        response.headers["retry-after"] = str(max(1, round(error.after_s if isinstance(error, TooOften) else 1)))
    return response


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BODY_BYTES:
            raise TooMuch(f"the body is larger than {_MOST_BODY_BYTES:,} bytes")
        parts.append(part)
    return b"".join(parts)
