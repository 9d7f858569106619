"""Parameters of the public API, declared once for all interfaces, and type checks of arguments.

Parameters of queries and operations are declared once for Python, the command line, HTTP and agents. A declaration is a
`TypedDict` whose fields are `Annotated[type, Param(help, …)]`. A function takes all fields as `**options:
Unpack[DiffOptions]` (PEP 692). Type checkers see the fields, and `all_parameters` lists them with their defaults.

`check_arguments` reports an argument of a wrong type in one sentence. The types are taken from the annotations. Limits
of numbers are checked in `validation`.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, wraps
from numbers import Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Unpack, get_args, get_origin, get_type_hints

from ..errors import Usage

_NO_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Param:
    """Help text and command line form of a declared parameter."""

    help: str
    metavar: str | None = None
    """Placeholder of the value in command help. If None, a parameter named `…_s` or `…_ms` is entered as a duration."""
    default: Any = _NO_DEFAULT
    """Default value; if not set, the empty value of the type: None if allowed, `""`, False, `()` or `{}`."""
    option: str = ""
    """Name of the command line option. If empty, it is the parameter's name in the singular, without its unit."""
    pair: str = ""
    """Example of an item that is entered as a pair, such as `old=new`; empty if items are not pairs."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits of the value over HTTP, as arguments of `msgspec.Meta`. The entry `each` limits the items of a list."""


def param_of(parameter: inspect.Parameter) -> Param | None:
    return next(
        (annotation for annotation in get_args(parameter.annotation)[1:] if isinstance(annotation, Param)), None
    )


def unwrap_annotated(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the member types of a union, with nested unions flattened. Any other type is returned alone."""
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(part for member in typing.get_args(hint) for part in union_members(member))
    return (hint,)


def declaration_of(function: Callable[..., Any]) -> Any:
    """Return the `TypedDict` by which a function declares its `**options`; None if it declares no options."""
    own = [*inspect.signature(function).parameters.values()]
    annotation = own[-1].annotation if own else None
    if isinstance(annotation, str) and annotation.startswith("Unpack["):
        annotation = eval(annotation, function.__globals__)  # noqa: S307  as `typing.get_type_hints`
    return get_args(annotation)[0] if get_origin(annotation) is Unpack else None


def declared_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    declaration = declaration_of(function)
    hints = get_type_hints(declaration, include_extras=True) if declaration is not None else {}
    return [_declared_parameter(name, annotation) for name, annotation in hints.items()]


def all_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a function's parameters, in which the declared parameters replace `**options`."""
    own = [*inspect.signature(function).parameters.values()]
    if declaration_of(function) is None:
        return own
    keywords = [parameter for parameter in own[:-1] if parameter.kind is parameter.KEYWORD_ONLY]
    return [*own[: len(own) - 1 - len(keywords)], *declared_parameters(function), *keywords]


def full_docstring(function: Callable[..., Any]) -> str:
    first, _, details = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
    declared_doc = inspect.cleandoc(declaration_of(function).__doc__ or "")
    params = [(parameter.name, param_of(parameter)) for parameter in declared_parameters(function)]
    args = "\n".join(f"    {name}: {param.help}" for name, param in params if param is not None)
    details = f"\n\n{details}" if details else ""
    if "\n\nArgs:\n" in details:
        details = details.replace("\n\nArgs:\n", f"\n\nArgs:\n{args}\n", 1)
    else:
        at = min(
            (at for name in ("Returns", "Raises") if (at := details.find(f"\n\n{name}:\n")) >= 0), default=len(details)
        )
        details = f"{details[:at]}\n\nArgs:\n{args}{details[at:]}"
    return f"{first}\n\n{declared_doc}{details}" if "\n\n" in declared_doc else first + details


def _declared_parameter(name: str, annotation: Any) -> inspect.Parameter:
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    param = param_of(parameter)
    assert param is not None, f"{name} is declared without a Param"  # noqa: S101  a declaration of ours
    return parameter.replace(
        default=_empty_value(unwrap_annotated(annotation)) if param.default is _NO_DEFAULT else param.default
    )


def _empty_value(kind: Any) -> Any:
    parts = union_members(kind)
    if NoneType in parts:
        return None
    if get_origin(kind) is Mapping:
        return {}
    return "" if str in parts else {bool: False}.get(kind, ())


F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_MAX_CHECKED_ITEMS = 1_000
_MOMENT_HINT = (
    "a moment is text such as '-5m', '~3' or a snapshot's name, a datetime or date, or timedelta(minutes=5) back"
)
_CREATING_CALLS = {
    "Aggregate": "count(), sum(…)",
    "Kind": "aggregate(n=count()), upsert(…), join(…) or update(…)",
    "Topic": "topic(…)",
    "Repartition": "repartition(…)",
    "TopicSink": "sink(…)",
    "FunctionSink": "foreach_version(…)",
    "TableSink": "delta(…), iceberg(…)",
    "TableOptions": "table(…)",
    "EventTimeOptions": "event_time(…)",
}
"""Calls by which users create instances, by class name. Messages show the call, not the class."""
_DURATION_ARGUMENTS = frozenset({"ahead", "by_duration", "gc", "keep", "trigger", "ttl", "within"})
_MINIMUMS = {"limit": 0, "points": 1}


def check_arguments(function: F, *, declares: bool = True) -> F:
    """Wrap a function so that an argument of a wrong type raises `Usage` with a clear message.

    With `declares`, types are checked only after the function raised an error or returned, because the function's own
    messages are better. If the function takes `**options: Unpack[…]`, the wrapper passes every option, with defaults
    for omitted options, and adds their help texts to the docstring.
    """
    declared = declared_parameters(function)
    signature = inspect.signature(function)
    if declared:
        parameters = [
            parameter.replace(annotation=unwrap_annotated(parameter.annotation))
            for parameter in all_parameters(function)
        ]
        signature = signature.replace(parameters=parameters)
    defaults = {parameter.name: parameter.default for parameter in declared}

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        named = defaults | named
        try:
            bound = signature.bind(*args, **named)
        except TypeError as error:
            if declared:  # the function itself takes any name
                raise TypeError(f"{function.__name__}() {error}") from None
            _check_parentheses(function, signature, args)
            return function(*args, **named)  # Python's own message is best

        def check() -> None:
            for name, value in bound.arguments.items():
                _check_argument(function, signature.parameters[name], value, numbers=not declares)

        if not declares:
            check()
            return function(*args, **named)
        try:
            result = function(*args, **named)
        except (TypeError, AttributeError, ValueError):
            check()
            raise
        if not _makes_decorator(signature):
            check()  # a decorator checks its arguments when it decorates, and its messages name the stage
        return result

    if declared:
        call.__doc__, call.__signature__ = full_docstring(function), signature  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def check_method_arguments(cls: C) -> C:
    for name, value in vars(cls).copy().items():
        if inspect.isfunction(value) and not name.startswith("_"):
            setattr(cls, name, check_arguments(value, declares=False))
    return cls


def _makes_decorator(signature: inspect.Signature) -> bool:
    return "Callable" in str(signature.return_annotation)


def _check_parentheses(function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...]) -> None:
    bare = next(filter(inspect.isfunction, args), None)
    if bare is None or not _makes_decorator(signature):
        return
    decorator = f"@{'app.' if next(iter(signature.parameters)) == 'self' else ''}{function.__name__}"
    required = (
        parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY
    )
    arguments = ", ".join(
        f"{name}=…" for name in required if signature.parameters[name].default is inspect.Parameter.empty
    )
    raise Usage(
        f"{decorator} is used without parentheses above {bare.__name__!r}",
        hint=f"write {decorator}({arguments}) above def {bare.__name__}",
    )


def _check_argument(
    function: Callable[..., Any], parameter: inspect.Parameter, value: object, *, numbers: bool
) -> None:
    hint = _argument_types(function).get(parameter.name, Any)
    default = parameter.default
    values: Iterable[object] = (value,)
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        values = typing.cast(Iterable[object], value)
    elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
        values = typing.cast(Mapping[str, object], value).values()
    for item in values:
        least = _MINIMUMS.get(parameter.name)
        if isinstance(item, Real) and least is not None and item < least:
            raise Usage(f"{function.__name__}(): {parameter.name} is {item}; expected {least} or more")
        if item is default or _has_type(item, hint) or (not numbers and {int, float} & {*union_members(hint)}):
            continue
        more = _MOMENT_HINT if timedelta in typing.get_args(hint) else ""
        if parameter.name in _DURATION_ARGUMENTS and isinstance(item, Real | timedelta):
            more = "a span of time is text, such as '10 seconds' or '7d'"
        if isinstance(item, str) and _is_list_type(hint):
            more = f"write [{item!r:.100}] for a single one"
        raise Usage(
            f"{function.__name__}(): {parameter.name} {_describe_value(item, hint)}; expected {_type_text(hint)}",
            hint=more,
        )


@cache
def _argument_types(function: Callable[..., Any]) -> dict[str, Any]:
    names, hints = (
        _AnnotationNames(function),
        {parameter.name: unwrap_annotated(parameter.annotation) for parameter in declared_parameters(function)},
    )
    for name, annotation in function.__annotations__.items():
        hints[name] = annotation
        if isinstance(annotation, str):
            try:
                hints[name] = eval(annotation, function.__globals__, names)  # noqa: S307  as `typing.get_type_hints`
            except TypeError:  # an alias that only type checkers can read
                hints[name] = Any
    return hints


class _AnnotationNames(dict[str, Any]):
    """Names that a function's annotations may use when they are evaluated."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._known = function.__globals__

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        builtins = self._known.get("__builtins__", {})
        inside = builtins if isinstance(builtins, dict) else vars(builtins)
        return self._known.get(name, inside.get(name, _UnknownType))


class _UnknownMeta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _inner: object) -> Any:
        return cls


class _UnknownType(metaclass=_UnknownMeta):
    """Placeholder type for a name that is imported only for type checkers. Every value is accepted."""


def _has_type(value: object, hint: Any) -> bool:
    return any(_has_member_type(value, part) for part in union_members(hint))


def _has_member_type(value: object, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in inner
    kind = origin or hint
    if kind is types.NoneType:
        return value is None
    if kind is Callable or kind is typing.get_origin(Callable[..., Any]):
        return callable(value)
    if not isinstance(kind, type) or kind in (object, _UnknownType):
        return True  # any value, or a type that isinstance cannot check
    if kind in (int, float):
        return isinstance(value, Real)
    if kind is Path:
        return isinstance(value, str | PathLike)
    if _is_mapping(kind):
        return isinstance(value, Mapping) and (not inner or _all_have_type(value.values(), inner[-1]))
    if _is_list_type(hint):
        is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        return is_several and (not isinstance(value, list | tuple) or not inner or _all_have_type(value, inner[0]))
    with suppress(TypeError):  # isinstance fails for protocols that are not runtime-checkable
        return isinstance(value, kind)
    return True


def _describe_value(value: object, hint: Any) -> str:
    if isinstance(value, list | tuple) and any(_is_list_type(part) for part in union_members(hint)):
        inner = next(typing.get_args(part)[:1] for part in union_members(hint) if _is_list_type(part))
        wrong = next((item for item in value if inner and not _has_type(item, inner[0])), None)
        if wrong is not None:
            return f"has {_value_text(wrong)}"
    if isinstance(value, Mapping):
        inner = next((typing.get_args(part)[-1:] for part in union_members(hint) if _is_mapping(part)), ())
        named = next(((name, item) for name, item in value.items() if inner and not _has_type(item, inner[0])), None)
        if named is not None:
            return f"has {named[0]!r:.100}: {_value_text(named[1])}"
    return f"is {_value_text(value)}"


def _is_mapping(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, Mapping)


def _value_text(value: object) -> str:
    return (
        f"{value!r:.100}" if isinstance(value, str | bytes | Real | type(None)) else f"of type {type(value).__name__}"
    )


def _all_have_type(values: Iterable[object], hint: Any) -> bool:
    return all(_has_type(item, hint) for number, item in enumerate(values) if number < _MAX_CHECKED_ITEMS)


def _is_list_type(hint: Any) -> bool:
    if str in union_members(hint):
        return False
    kinds = [typing.get_origin(part) or part for part in union_members(hint)]
    several = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Iterable)]
    return any(not issubclass(kind, str | bytes | Mapping) for kind in several)


def _type_text(hint: Any) -> str:
    phrases = [_member_text(part) for part in union_members(hint)]
    phrases = [*dict.fromkeys(phrases)]
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} or {phrases[-1]}"


def _member_text(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), [arg for arg in typing.get_args(hint) if arg is not ...]
    if origin is Literal:
        return " or ".join(map(repr, inner))
    kind = origin or hint
    if kind is types.NoneType:
        return "None"
    if not isinstance(kind, type):
        return str(kind)
    if issubclass(kind, Mapping):
        return f"a dict of {_type_text(inner[0])} to {_type_text(inner[-1])}" if inner else "a dict"
    if _is_list_type(hint):
        return f"a list of {_type_text(inner[0])}" if inner else "a list"
    if kind is typing.get_origin(Callable[..., Any]):
        return "a function"
    return {int: "a whole number", float: "a number"}.get(kind) or _CREATING_CALLS.get(kind.__name__, kind.__name__)
