"""Declaration of MCP tools: a function's signature defines the parameters, and models read its docstring."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...operations.maintenance.tokens import Verb
from ..declare import build_parameter_struct
from ..service import Call
from .answers import ToolAnswer
from .masking import Masking

AppOrNone = Annotated[
    str, Meta(pattern=r"^([a-z0-9][a-z0-9_~-]{0,66})?$", description="Name of the app; empty to list the apps.")
]
Ref = Annotated[
    str,
    Meta(
        pattern=r"^[^/@\x00-\x1f]+$",
        max_length=200,
        description="A moment: `now`, `-5m`, `~3` (3 commits back), an ISO time, a snapshot's name; or `v42` of "
        "the table's own versions.",
    ),
]
Sql = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100_000,
        description="DuckDB's SQL: one SELECT over the app's tables. `FROM t AT '-1h'` is a table at another moment, "
        "`FROM versions('t')` its rows at all versions with `_version`, `FROM input('topic')` the archived input.",
    ),
]
KeyText = Annotated[
    str,
    Meta(
        max_length=10_000,
        description=r"A key as text, or the pseudonym of a hidden value. `\N` is null, bytes are hexadecimal; a key "
        'with several columns is a JSON array, `["DE", 7]`.',
    ),
]
KeyTexts = Annotated[list[KeyText], Meta(min_length=1, max_length=100, description="Keys, each as text.")]
ColumnNames = Annotated[list[str], Meta(max_length=1_000, description="Only these columns; default all.")]
ResultLimit = Annotated[int, Meta(ge=1, le=500, description="Maximum number of results.")]
VersionNumber = Annotated[int, Meta(ge=1, le=1 << 53, description="Version number, such as 42 for `v42`.")]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: the request, the display of values, and a function that reports progress."""

    request: Call
    masking: Masking
    progress: Callable[[float, float, str], None] = lambda _done, _total, _message: None

    async def in_thread(self, function: Callable[[], ToolAnswer]) -> ToolAnswer:
        return await self.request.service.in_thread(function)


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A declared tool."""

    name: str
    title: str
    verb: Verb
    function: Callable[..., Any]
    parameters: type[msgspec.Struct]
    is_long: bool

    @property
    def description(self) -> str:
        """Text for a model: the result, the purpose, and the next step; made from the function's docstring."""
        return " ".join((self.function.__doc__ or "").split())

    @property
    def schema(self) -> dict[str, Any]:
        _, schemas = msgspec.json.schema_components([self.parameters], ref_template="#/{name}")
        return {**schemas[self.parameters.__name__], "additionalProperties": False}


TOOLS: dict[str, AgentTool] = {}


def tool(
    title: str, *, verb: Verb = "read", is_long: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as a tool with the function's name. The function's first parameter is a `ToolCall`."""

    def declared(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        TOOLS[name] = AgentTool(name, title, verb, function, build_parameter_struct(function)[1], is_long)
        return function

    return declared
