"""From HTTP to a declared route and back: who asks, what, how it is answered, and a line for the audit."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..errors import SlackwaterError, Usage
from ..results.shown import Result, encoded
from . import reads  # noqa: F401  declares its routes
from .audit import line
from .declare import ENDPOINTS, Endpoint
from .errors import TooLarge, TooLong, TooMany, problem, status_of
from .openapi import document
from .service import ARROW, JSON, Answer, Asked, Service
from .tokens import Doorkeeper

_log = logging.getLogger(__name__)
_MOST_BODY_BYTES = 1 << 20


def application(service: Service, door: Doorkeeper) -> Starlette:
    """What uvicorn serves."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        service.statements.warm()
        try:
            yield
        finally:
            service.close()

    routes = [Route(each.path, _answering(each, service, door), methods=[each.method]) for each in ENDPOINTS]
    description = encoded(document(ENDPOINTS))

    async def openapi(_request: Request) -> Response:
        return Response(description, media_type=JSON)

    async def alive(_request: Request) -> Response:
        return Response(b'{"alive":true}', media_type=JSON)

    others = [Route("/openapi.json", openapi, methods=["GET"]), Route("/healthz", alive, methods=["GET"])]
    return Starlette(routes=[*routes, *others], lifespan=lifespan, exception_handlers={404: _no_route, 405: _no_route})


async def _no_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    what = "no such address" if status == 404 else f"no {request.method} of this address"
    return _problem(Usage(what, hint="/openapi.json says what there is"), status, getattr(error, "headers", None))


def _answering(endpoint: Endpoint, service: Service, door: Doorkeeper) -> Callable[[Request], Awaitable[Response]]:
    """What answers requests of a route."""
    is_async = inspect.iscoroutinefunction(endpoint.function)

    async def answer(request: Request) -> Response:
        began_s, who, rows = time.perf_counter(), "", 0
        found: dict[str, object] = {}
        try:
            grant = await door.admit(request)
            who = grant.name
            grant.check(endpoint.verb)
            found = endpoint.understand(request.path_params, request.query_params.multi_items(), await _body(request))
            asked = Asked(service, grant, _wants_arrow(request, found), _etags(request))
            async with asyncio.timeout(service.options.request_s):
                if is_async:
                    given = await endpoint.function(asked, **found)
                else:
                    given = await service.in_thread(lambda: endpoint.function(asked, **found))
            if endpoint.streams:
                response: Response = StreamingResponse(given, media_type="text/event-stream")
                response.headers["cache-control"] = "no-store"
            else:
                given = given if isinstance(given, Answer) else asked.document(_data(given))
                rows = given.rows
                response = Response(given.body, given.status, given.headers, given.media_type)
                response.headers["vary"] = "accept, authorization"
        except TimeoutError:
            response = _problem(TooLong(f"it took more than {service.options.request_s:g} s"))
        except SlackwaterError as error:
            response = _problem(error)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Exception as error:
            _log.exception("%s %s", request.method, endpoint.path)
            response = _problem(error, 500)
        line(request, endpoint, who, found, response.status_code, rows, time.perf_counter() - began_s)
        return response

    return answer


def _data(given: object) -> object:
    return given.data if isinstance(given, Result) else given


def _problem(error: Exception, status: int = 0, headers: dict[str, str] | None = None) -> Response:
    status = status or (status_of(error) if isinstance(error, SlackwaterError) else 500)
    response = Response(encoded(problem(error)), status, headers, JSON)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, TooMany):
        response.headers["retry-after"] = str(max(1, round(error.after_s)))
    return response


async def _body(request: Request) -> bytes:
    if request.method == "GET":
        return b""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BODY_BYTES:
            raise TooLarge(f"the body is larger than {_MOST_BODY_BYTES:,} bytes")
        parts.append(part)
    return b"".join(parts)


def _wants_arrow(request: Request, found: dict[str, object]) -> bool:
    return (found.get("format") or ("arrow" if ARROW in request.headers.get("accept", "") else "json")) == "arrow"


def _etags(request: Request) -> frozenset[str]:
    given = request.headers.get("if-none-match", "")
    return frozenset(each.strip().removeprefix("W/") for each in given.split(",")) if given else frozenset()
