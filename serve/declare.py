"""Declaration of HTTP routes: a function's signature gives the parameters, its docstring describes the result.

The function's parameters after the first are the path and query parameters of the same names; `**options: Unpack[…]`
adds the parameters of a declaration. Before a call, msgspec converts arguments to the parameters' types and checks
their limits; the OpenAPI document is derived from the same types.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_origin

import msgspec
from msgspec import Meta

from ..common.arguments import all_parameters, param_of, union_members, unwrap_annotated
from ..common.validation import nearest_hint
from ..errors import Usage
from ..operations.maintenance.tokens import Verb
from ..store.versions import keys
from ..store.versions.codec import register_type


def _text_type(pattern: str, description: str, *examples: str, max_length: int = 200) -> Any:
    return Annotated[
        str, Meta(pattern=pattern, max_length=max_length, description=description, examples=list(examples))
    ]


AppName = _text_type(rf"^{keys.NAME}(~[0-9]{{1,3}})?$", "Name of the app.", "flights")
Stage = _text_type(rf"^({keys.NAME})?$", "Name of a stage; empty for all stages.", "carriers")
Table = _text_type(rf"^{keys.NAME}$", "Name of the table.", "carriers")
Moment = _text_type(
    r"^[^/@\x00-\x1f]+$",
    "A moment, the part of a ref after the @: `now`, an ISO time, `-5m`, `~3`, a snapshot; with `stage`, `v42`.",
    "now",
)
Keys = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=1_000,
        description=r"The key as text; repeatable. `\N` is null (`\\N` the string `\N`), bytes are "
        "hexadecimal, a struct is a JSON object. A key with several columns is a JSON array of their values.",
        examples=[["UA"]],
    ),
]
Key = Annotated[str, Meta(max_length=10_000, description="A key as text, as for rows by key.", examples=["UA"])]
Record = _text_type(
    r"^[^\x00-\x1f]+$",
    "Location of a record, `topic[partition]@offset`, as bisect names it.",
    "flights[1]@49625",
    max_length=300,
)
TableRef = _text_type(
    rf"^{keys.NAME}(~[0-9]{{1,3}})?/{keys.NAME}(@[^/@\x00-\x1f]+)?$",
    "A table of an app: `app/table`, or `app/table@moment`.",
    "flights-v2/carriers",
    max_length=500,
)
Version = Annotated[int, Meta(ge=0, le=1 << 53, description="Number of a version; 0 means the newest, or none.")]
Columns = Annotated[list[str], Meta(max_length=1_000, description="Only this column; repeatable.")]
Limit = Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of results, newest first.")]
RowsOrAll = Annotated[int, Meta(ge=0, le=1_000_000, description="Maximum number of rows per table; 0 for all.")]
Sql = Annotated[str, Meta(min_length=1, max_length=100_000, description="One read-only statement in DuckDB's SQL.")]
KeyOrNone = Annotated[str, Meta(max_length=10_000, description="Only this key, as text; empty for the whole batch.")]
SnapshotName = _text_type(rf"^({keys.NAME})?$", "Name of the snapshot; empty for the current time.", "before-deploy")
Message = Annotated[str, Meta(max_length=4_096, description="Reason, for the log of operations.")]
Format = Annotated[
    Literal["", "json", "arrow"],
    Meta(description="Format of the answer; empty for that of the `Accept` header, or else JSON."),
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A declared HTTP route."""

    method: Literal["GET", "POST"]
    path: str
    verb: Verb | None
    function: Callable[..., Any]
    parameters: type[msgspec.Struct]
    in_path: tuple[str, ...]
    lists: frozenset[str]
    streams: bool
    is_long: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    def parse_arguments(
        self, in_path: dict[str, str], query: Iterable[tuple[str, str]], body: bytes = b""
    ) -> dict[str, Any]:
        """Convert a request's path, query and body to arguments by name.

        Raises `Usage`, which names the parameter, for an invalid argument.
        """
        arguments: dict[str, Any] = dict(in_path)
        names, lists = self.parameters.__struct_fields__, self.lists
        for name, value in query:
            if name not in names or name in self.in_path:
                raise Usage(
                    f"there is no parameter {name!r}{nearest_hint(name, names)}", hint=f"there are: {', '.join(names)}"
                )
            if name in lists:
                arguments.setdefault(name, []).append(value)
            elif arguments.setdefault(name, value) is not value:
                raise Usage(f"the parameter {name!r} is given twice")
        try:
            if body:
                in_body = msgspec.json.decode(body, type=dict[str, Any])
                if duplicates := in_body.keys() & arguments.keys():
                    raise Usage(f"{', '.join(sorted(duplicates))}: given both in the URL and in the body")
                arguments |= in_body
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Usage(f"{self.path}: {error}", hint="/openapi.json describes the parameters") from None
        return convert_arguments(arguments, self.parameters, self.path, "/openapi.json describes the parameters")


ENDPOINTS: list[Endpoint] = []


def endpoint(
    path: str,
    *,
    verb: Verb | None = "read",
    methods: tuple[Literal["GET", "POST"], ...] = ("GET",),
    streams: bool = False,
    is_long: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declared(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters, struct = build_parameter_struct(function)
        in_path = tuple(parameter.name for parameter in parameters if f"{{{parameter.name}}}" in path)
        lists = frozenset(parameter.name for parameter in parameters if _is_list(parameter.annotation))
        ENDPOINTS.extend(
            Endpoint(method, path, verb, function, struct, in_path, lists, streams, is_long) for method in methods
        )
        return function

    return declared


def build_parameter_struct(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], type[msgspec.Struct]]:
    parameters = [_http_parameter(parameter) for parameter in all_parameters(function)[1:]]
    fields = [_field(parameter) for parameter in parameters]
    return parameters, msgspec.defstruct(f"{function.__name__}_asked", fields, kw_only=True, frozen=True)


def _http_parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    if (param := param_of(parameter)) is None:
        return parameter
    kind = unwrap_annotated(parameter.annotation)
    kind, limits = str if str in union_members(kind) else kind, dict(param.limits)
    if item_limits := limits.pop("each", None):
        item: Any = Annotated[str, Meta(**item_limits)]
        kind = list[item]
    return parameter.replace(annotation=Annotated[kind, Meta(description=param.help, **limits)])


def convert_arguments(
    arguments: Mapping[str, Any], struct: type[msgspec.Struct], subject: str, hint: str
) -> dict[str, Any]:
    """Convert arguments to the parameters' types, by name. Raises `Usage` for an invalid argument."""
    names = struct.__struct_fields__
    if unknown := arguments.keys() - {*names}:
        raise Usage(
            f"{subject}: there is no parameter {', '.join(sorted(map(str, unknown)))[:200]}",
            hint=f"there are: {', '.join(names)}",
        )
    try:
        return msgspec.structs.asdict(msgspec.convert(arguments, register_type(struct), strict=False))
    except msgspec.ValidationError as error:
        raise Usage(f"{subject}: {error}", hint=hint) from None


def _field(parameter: inspect.Parameter) -> Any:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, parameter.annotation
    default = parameter.default
    return parameter.name, parameter.annotation, msgspec.field(default_factory=list) if default == () else default


def _is_list(kind: Any) -> bool:
    return get_origin(unwrap_annotated(kind)) is list
