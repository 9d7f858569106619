"""ASGI application: authenticates requests, calls declared routes, encodes answers, and writes the audit log."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ..client.show.shown import Result, encode_json
from ..common import runtime
from ..errors import SlackwaterError, TooMuch, Unavailable, Usage
from . import reads  # noqa: F401  declares its routes
from .acting import actions  # noqa: F401  declares its routes
from .audit import log_request
from .declare import ENDPOINTS, Endpoint
from .errors import Denied, TooOften, problem, status_of
from .openapi import openapi_document
from .page import files
from .page import reads as page_reads  # noqa: F401
from .protocol import PROBES
from .service import JSON, Answer, Call, Service, event
from .tokens import STREAM_RECHECK_S, Authenticator, Grant

_log = logging.getLogger(__name__)
_MAX_BODY_BYTES = 1 << 20
MAX_REQUESTS = 1_900
"""Maximum number of concurrent requests, which limits memory. Additional requests get status 503."""
_MAX_STREAMS = 500


class ExtraService(Protocol):
    """A service mounted next to the routes, such as the MCP server."""

    @property
    def route(self) -> Route: ...

    def running(self) -> AbstractAsyncContextManager[None]: ...


def build_application(service: Service, door: Authenticator, extra: ExtraService | None = None) -> ASGIApp:
    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        await service.start()
        try:
            async with extra.running() if extra is not None else nullcontext():
                yield
        finally:
            await service.stop()

    description = encode_json(openapi_document(ENDPOINTS))

    async def openapi(_request: Request) -> Response:
        return Response(description, media_type=JSON)

    async def alive(_request: Request) -> Response:
        num_others = len(service.peers.others) if service.peers is not None else 0
        return Response(encode_json({"alive": True, "others": num_others}), media_type=JSON)

    async def live(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        if await service.store_watch.is_answering():
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the store does not answer\n", 503)

    async def metrics(_request: Request) -> Response:
        service.store_watch.check_in_background()  # the result is for the next scrape: this scrape does not wait
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes = [Route(route.path, _Route(route, service, door), methods=[route.method]) for route in ENDPOINTS]
    fixed = [
        Route("/openapi.json", openapi),
        Route("/healthz", alive),
        Route("/livez", live),
        Route("/readyz", ready),
        Route("/metrics", metrics),
        *([extra.route] if extra is not None else []),
    ]
    # A plain router: Starlette's application class would add two useless middleware layers to each request.
    router = Router([*routes, *fixed, *files.routes()], lifespan=lifespan, default=_no_route, redirect_slashes=False)
    return _RequestLimiter(router, service)


class _RequestLimiter:
    def __init__(self, router: Router, service: Service) -> None:
        self._router, self._num_active = router, 0
        service.metrics.set_gauge_function("requests_under_way", lambda: self._num_active)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            return await self._router(scope, receive, send)
        if self._num_active >= MAX_REQUESTS:
            error = Unavailable(f"{MAX_REQUESTS:,} requests are in progress", hint="retry in a second")
            return await error_response(error)(scope, receive, send)
        self._num_active += 1
        try:
            await self._router(scope, receive, send)
        finally:
            self._num_active -= 1


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        error = Usage("there is no such URL", hint="/openapi.json lists the routes")
        await error_response(error, 404)(scope, receive, send)


class _Route:
    def __init__(self, endpoint: Endpoint, service: Service, door: Authenticator) -> None:
        self._endpoint, self._service, self._door = endpoint, service, door
        self._is_async = inspect.iscoroutinefunction(endpoint.function)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s, method = runtime.monotonic(), scope["method"]
        name, who, arguments, rows = self._endpoint.name, "", dict[str, Any](), 0
        # Decode headers once. In reverse order, so that the first of several headers with the same name wins.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host = scope["client"][0] if scope["client"] else ""
        streamed: _EventStream | None = None
        try:
            grant = await self._door.admit(headers, scope)
            who = grant.name
            grant.check_verb(self._endpoint.verb)
            body = await _body(Request(scope, receive)) if method == "POST" else b""
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            arguments = self._endpoint.parse_arguments(scope["path_params"], query, body)
            result = await self._result(Call.from_request(self._service, grant, headers, arguments), arguments)
            if self._endpoint.streams:
                if method != "HEAD":
                    streamed = _EventStream(
                        result, lambda: self._check_still_admitted(grant, headers, scope), self._service, who or host
                    )
                response = _stream(streamed)
            else:
                response, rows = _response(result), result.rows
        except SlackwaterError as error:
            response = error_response(error, root=self._service.client.root)
        except ClientDisconnect:
            return
        except Exception as error:
            _log.exception("%s %s", method, self._endpoint.path)
            response = error_response(error)

        def note(name: str, rows: int | None) -> None:
            log_request(name, host, who, arguments, response.status_code, rows, runtime.monotonic() - began_s)

        self._service.metrics.observe(name, response.status_code, runtime.monotonic() - began_s)
        note(name, rows if streamed is None else None)
        try:
            await response(scope, receive, send)
        finally:
            if streamed is not None:
                note(f"{name} ended", streamed.events)

    async def _result(self, call: Call, arguments: dict[str, Any]) -> Any:
        endpoint, service = self._endpoint, self._service
        async with service.store_watch.limit_request(
            service.options.long_timeout_s if endpoint.is_long else service.options.request_timeout_s
        ):
            if self._is_async:
                result = await endpoint.function(call, **arguments)
            else:
                result = await service.in_thread(lambda: endpoint.function(call, **arguments))
        if endpoint.streams or isinstance(result, Answer):
            return result
        data = result.data if isinstance(result, Result) else result
        return call.json_answer(data, rows=count_rows(data))

    async def _check_still_admitted(self, grant: Grant, headers: dict[str, str], scope: Scope) -> None:
        if grant.name and await self._door.authenticate(headers, scope) != grant:
            raise Denied(f"the permissions of token {grant.name!r} have changed", hint="connect again")


def count_rows(data: object) -> int:
    """Return the number of rows of a document for the audit log: the length of its longest list."""
    match data:
        case dict():
            return max(map(count_rows, (value for value in data.values() if not isinstance(value, dict))), default=0)
        case list() | tuple():
            return len(data)
        case msgspec.Raw():
            text = bytes(data)
            return len(msgspec.json.decode(text, type=list[msgspec.Raw])) if text.startswith(b"[") else 0
        case _:
            return 0


def _response(answer: Answer) -> Response:
    # Shared caches must not return an answer to clients who may not read it.
    headers = {"vary": "accept, authorization", "cache-control": "private, no-cache", **answer.headers}
    return Response(answer.body, answer.status, headers, answer.media_type)


def _stream(streamed: "_EventStream | None") -> Response:
    if streamed is None:
        return Response(media_type="text/event-stream")
    headers = {"cache-control": "no-store"}
    return StreamingResponse(streamed.guarded_events(), headers=headers, media_type="text/event-stream")


class _EventStream:
    """Stream of server-sent events that ends when the caller loses access.

    Raises `TooOften` for too many open streams of one client.
    """

    def __init__(
        self, num_sent: AsyncIterator[bytes], check_access: Callable[[], Awaitable[None]], service: Service, who: str
    ) -> None:
        self._source, self._check_access, self._service, self._who = num_sent, check_access, service, who
        self.events = 0
        if service.streams[who] >= _MAX_STREAMS:
            raise TooOften(f"this client already has {_MAX_STREAMS} open streams", after_s=5)

    async def guarded_events(self) -> AsyncIterator[bytes]:
        """Yield the events, and a last event `error` when the caller loses access."""
        streams, looked_s = self._service.streams, runtime.monotonic()
        streams[self._who] += 1
        coming = asyncio.ensure_future(anext(self._source, None))
        try:
            while True:
                await asyncio.wait({coming}, timeout=STREAM_RECHECK_S)
                if runtime.monotonic() - looked_s >= STREAM_RECHECK_S:
                    await self._check_access()
                    looked_s = runtime.monotonic()
                if coming.done():
                    if (data := coming.result()) is None:
                        return
                    self.events += 1
                    yield data
                    coming = asyncio.ensure_future(anext(self._source, None))
        except SlackwaterError as error:
            yield event("error", problem(error, self._service.client.root))
        finally:
            coming.cancel()
            streams[self._who] -= 1
            if not streams[self._who]:
                del streams[self._who]


def error_response(error: Exception, status: int = 0, root: str = "") -> Response:
    status = status or (status_of(error) if isinstance(error, SlackwaterError) else 500)
    body = encode_json(problem(error, root))
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
        if size > _MAX_BODY_BYTES:
            raise TooMuch(f"the body is larger than {_MAX_BODY_BYTES:,} bytes")
        parts.append(part)
    return b"".join(parts)
