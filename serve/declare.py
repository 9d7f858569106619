"""Routes as they are declared: a function's signature says what may be asked, and its docstring what it gives.

Its parameters after the first are those of the path and of the query, by their names; `**options: Unpack[…]` stands for
those of a declaration. What is asked is converted by their types and held to their limits (msgspec) before the function
is called; the same types are the OpenAPI document's.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_origin

import msgspec
from msgspec import Meta

from ..common.learned import learned
from ..common.parameters import kind_of, param_of, parameters_of, parts_of
from ..common.validation import nearest
from ..errors import Usage
from ..operations.maintenance.tokens import Verb
from ..store.versions import keys


def _text(pattern: str, description: str, *examples: str, most: int = 200) -> Any:
    return Annotated[str, Meta(pattern=pattern, max_length=most, description=description, examples=list(examples))]


AppName = _text(rf"^{keys.NAME}(~[0-9]{{1,3}})?$", "Name of the app.", "flights")
Stage = _text(rf"^({keys.NAME})?$", "Name of a stage; without it, all stages are meant.", "carriers")
Table = _text(rf"^{keys.NAME}$", "Name of the table.", "carriers")
Moment = _text(
    r"^[^/@\x00-\x1f]+$",
    "A moment, as behind the @ of a ref: `now`, a time in ISO form, `-5m`, `~3`, a snapshot; with `stage`, `v42`.",
    "now",
)
Keys = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=1_000,
        description=r"The key, as text; several times for many. `\N` is null (`\\N` the string `\N`), bytes are "
        "hexadecimal, a struct is a JSON object. A key with several columns is a JSON array of their values.",
        examples=[["UA"]],
    ),
]
Key = Annotated[str, Meta(max_length=10_000, description="The key, as text; as of many keys.", examples=["UA"])]
Version = Annotated[int, Meta(ge=0, le=1 << 53, description="Number of a version; 0 for the newest, or for none.")]
Columns = Annotated[list[str], Meta(max_length=1_000, description="Only this column; several times for many.")]
Limit = Annotated[int, Meta(ge=1, le=10_000, description="At most so many, the newest.")]
RowsOrAll = Annotated[int, Meta(ge=0, le=1_000_000, description="At most so many rows of each table; 0 for all.")]
Sql = Annotated[str, Meta(min_length=1, max_length=100_000, description="DuckDB's SQL; one statement, which reads.")]
KeyOrNone = Annotated[str, Meta(max_length=10_000, description="Only this key, as text; without it, all of the batch.")]
SnapshotName = _text(rf"^({keys.NAME})?$", "What to call it; without it, the time.", "before-deploy")
Message = Annotated[str, Meta(max_length=4_096, description="Why, for the log of operations.")]
Format = Annotated[
    Literal["", "json", "arrow"],
    Meta(description="What the answer is; else the `Accept` header says, and JSON is what there is without."),
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route."""

    method: Literal["GET", "POST"]
    path: str
    verb: Verb | None
    """What a token needs; None for nothing."""
    function: Callable[..., Any]
    asked: type[msgspec.Struct]
    """Its parameters, by name."""
    in_path: tuple[str, ...]
    lists: frozenset[str]
    """Those that may be given several times."""
    streams: bool
    """Whether it answers with events, until whoever asked goes away."""
    is_long: bool = False
    """Whether it may take longer than others."""

    @property
    def name(self) -> str:
        """What it is called: the function's name."""
        return self.function.__name__

    def understand(
        self, in_path: dict[str, str], query: Iterable[tuple[str, str]], body: bytes = b""
    ) -> dict[str, Any]:
        """The values of its parameters. Raises `Usage`, which names the parameter, where one is not as declared."""
        found: dict[str, Any] = dict(in_path)
        known, lists = self.asked.__struct_fields__, self.lists
        for name, value in query:
            if name not in known or name in self.in_path:
                raise Usage(
                    f"there is no parameter {name!r}{nearest(name, known)}", hint=f"there are: {', '.join(known)}"
                )
            if name in lists:
                found.setdefault(name, []).append(value)
            elif found.setdefault(name, value) is not value:
                raise Usage(f"the parameter {name!r} is given twice")
        try:
            if body:
                more = msgspec.json.decode(body, type=dict[str, Any])
                if twice := more.keys() & found.keys():
                    raise Usage(f"{', '.join(sorted(twice))}: given in the address and in the body")
                found |= more
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Usage(f"{self.path}: {error}", hint="/openapi.json says what may be asked") from None
        return converted(found, self.asked, self.path, "/openapi.json says what may be asked")


ENDPOINTS: list[Endpoint] = []


def endpoint(
    path: str,
    *,
    verb: Verb | None = "read",
    methods: tuple[Literal["GET", "POST"], ...] = ("GET",),
    streams: bool = False,
    is_long: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function, whose first parameter is `Call`, as what answers a path."""

    def declared(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters, asked = asked_of(function)
        in_path = tuple(each.name for each in parameters if f"{{{each.name}}}" in path)
        lists = frozenset(each.name for each in parameters if _is_list(each.annotation))
        ENDPOINTS.extend(
            Endpoint(each, path, verb, function, asked, in_path, lists, streams, is_long) for each in methods
        )
        return function

    return declared


def asked_of(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], type[msgspec.Struct]]:
    """Return the parameters of a function after the first, and a struct of them with types, limits and defaults."""
    parameters = [_over_http(each) for each in parameters_of(function)[1:]]
    fields = [_field(each) for each in parameters]
    return parameters, msgspec.defstruct(f"{function.__name__}_asked", fields, kw_only=True, frozen=True)


def _over_http(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a declared parameter with the type and the limits that it has over HTTP; any other one as it is."""
    if (param := param_of(parameter)) is None:
        return parameter
    kind = kind_of(parameter.annotation)
    kind, limits = str if str in parts_of(kind) else kind, dict(param.limits)
    if each := limits.pop("each", None):
        item: Any = Annotated[str, Meta(**each)]
        kind = list[item]
    return parameter.replace(annotation=Annotated[kind, Meta(description=param.help, **limits)])


def converted(found: Mapping[str, Any], asked: type[msgspec.Struct], what: str, hint: str) -> dict[str, Any]:
    """What was found, by name, as parameters of these types. Raises `Usage` where one is not as declared."""
    known = asked.__struct_fields__
    if unknown := found.keys() - {*known}:
        raise Usage(
            f"{what}: there is no parameter {', '.join(sorted(map(str, unknown)))[:200]}",
            hint=f"there are: {', '.join(known)}",
        )
    try:
        return msgspec.structs.asdict(msgspec.convert(found, learned(asked), strict=False))
    except msgspec.ValidationError as error:
        raise Usage(f"{what}: {error}", hint=hint) from None


def _field(parameter: inspect.Parameter) -> Any:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, parameter.annotation
    default = parameter.default
    return parameter.name, parameter.annotation, msgspec.field(default_factory=list) if default == () else default


def _is_list(kind: Any) -> bool:
    return get_origin(kind_of(kind)) is list
