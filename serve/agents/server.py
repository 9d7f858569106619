"""MCP server of the tools: over HTTP at `/mcp` of an instance, or over standard streams."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ... import __version__
from ...client import Client
from ...client.show.shown import encode_json
from ...common import runtime
from ...errors import NotFound, SlackwaterError
from ...snapshot.query.hidden import Pseudonyms
from .. import audit
from ..declare import convert_arguments
from ..errors import problem, status_of
from ..service import Call, ServeOptions, Service
from ..tokens import Authenticator, Grant
from ..web import error_response
from . import tools  # noqa: F401  declares the tools
from .answers import ToolAnswer, encode_bounded
from .declared import TOOLS, AgentTool, ToolCall
from .masking import Masking
from .naming import ValueNaming

_log = logging.getLogger(__name__)
_GRANT = "slackwater.grant"
_MAX_BODY_BYTES = 1 << 20
_INSTRUCTIONS = """\
slackwater keeps every version of the state of streaming applications. An app has stages; a stage has a table, and \
each of its commits is a version (`app/stage@v42`) that has read some offsets of its topics. All tools only read.
When totals look wrong: `apps` for the names, `query` to express in SQL what is wrong and count it, `bisect` with that \
SQL as `where` for the first bad commit and the input record that caused it, `history` or `diff` for its effect.
Answers are limited in size: if `cut_off` is set, request less. Values may be replaced by pseudonyms, UUIDs that begin \
with 00000000; equal values have equal pseudonyms, and a pseudonym can be used as a key or as a string in SQL."""


class AgentServer:
    """MCP server for agents. Belongs to one event loop.

    Args:
        service: The instance's service.
        door: `Authenticator` of HTTP clients; over standard streams, the grant of the only client.
    """

    def __init__(self, service: Service, door: Authenticator | Grant) -> None:
        self._service, self._door = service, door
        self._naming = ValueNaming(service.client.store)
        self.server: Server[Any] = Server(
            "slackwater",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        self._sessions = StreamableHTTPSessionManager(
            self.server, stateless=True, max_request_body_size=_MAX_BODY_BYTES
        )

    @property
    def route(self) -> Route:
        return Route("/mcp", self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            assert isinstance(self._door, Authenticator)  # noqa: S101  always one for HTTP
            scope[_GRANT] = await self._door.admit(request.headers, scope)
        except SlackwaterError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._sessions.handle_request(scope, receive, send)

    async def _list(self, _context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[*map(_mcp_tool, TOOLS.values())])

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        grant, began_s = self._grant(context), runtime.monotonic()
        host = context.request.client.host if context.request is not None and context.request.client else ""
        arguments, rows, status = dict[str, Any](), 0, 200
        masking, root = Masking("values" in grant.verbs), self._service.client.root
        try:
            if not masking.show:
                masking = Masking(show=False, names=await self._names(grant))
            tool = _tool(params.name)
            grant.check_verb(tool.verb)
            hint = f"see the schema of the tool {tool.name}"
            arguments = convert_arguments(params.arguments or {}, tool.parameters, tool.name, hint)
        except SlackwaterError as error:  # quotes only arguments, no values
            data, status = encode_json(problem(error, root)), status_of(error)
        else:
            try:
                answer = await self._run_tool(
                    context, tool, Call(self._service, grant, secret=masking.secret), masking, arguments
                )
                data, rows = encode_bounded(answer, self._service.options.answer_bytes), answer.rows
            except SlackwaterError as error:
                data, status = encode_json(masking.problem(error, root)), status_of(error)
            except Exception as error:
                _log.exception("%s", tool.name)
                data, status = encode_json(problem(error)), 500
        self._service.metrics.observe(
            f"mcp {params.name if params.name in TOOLS else ''}", status, runtime.monotonic() - began_s
        )
        audit.log_request(
            f"mcp {params.name[:100]}", host, grant.name, arguments, status, rows, runtime.monotonic() - began_s
        )
        content = types.TextContent(type="text", text=data.replace(b"\n", b"").decode())
        return types.CallToolResult(content=[content], is_error=status != 200)

    async def _names(self, grant: Grant) -> Pseudonyms:
        while (names := self._naming.names_for(grant.name)) is None:
            await self._service.in_thread(self._naming.load_day_secret)
        return names

    async def _run_tool(
        self, context: Any, tool: AgentTool, call: Call, masking: Masking, arguments: dict[str, Any]
    ) -> ToolAnswer:
        options, loop = self._service.options, asyncio.get_running_loop()
        tasks = set[asyncio.Task[None]]()

        def report(done: float, total: float, message: str) -> None:
            task = loop.create_task(context.session.report_progress(done, total or None, message))
            tasks.add(task)
            task.add_done_callback(told_or_not)

        def told_or_not(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled():
                task.exception()  # mark the exception as retrieved, because the client may have disconnected

        def progress(done: float, total: float, message: str) -> None:
            loop.call_soon_threadsafe(report, done, total, message)

        limit_s = options.long_timeout_s if tool.is_long else options.request_timeout_s
        async with self._service.store_watch.limit_request(limit_s, "request less, or narrow the range"):
            answer: ToolAnswer = await tool.function(ToolCall(call, masking, progress), **arguments)
            return answer

    def _grant(self, context: Any) -> Grant:
        if isinstance(self._door, Grant):
            return self._door
        grant: Grant = context.request.scope[_GRANT]
        return grant


async def serve_stdio(client: Client, options: ServeOptions, *, shows_values: bool) -> None:
    service, grant = Service(client, options), Grant("")
    server = AgentServer(service, grant.with_verb("values") if shows_values else grant).server
    await service.start()
    try:
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
    finally:
        await service.stop()


def _tool(name: str) -> AgentTool:
    if name not in TOOLS:
        raise NotFound("tool", name[:100], TOOLS)
    return TOOLS[name]


def _mcp_tool(tool: AgentTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )
