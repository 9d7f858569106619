"""Parameters of queries and operations, declared once for Python, the command line, HTTP and agents.

A declaration is a `TypedDict` whose fields are `Annotated[type, Param(help, …)]`. A function takes all of them as
`**options: Unpack[DiffOptions]` (PEP 692): type checkers see them, and `parameters_of` lists them with their defaults.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Unpack, get_args, get_origin, get_type_hints

_OF_TYPE: Any = object()


@dataclass(frozen=True, slots=True)
class Param:
    """Help text and command line form of a parameter."""

    help: str
    """Sentence for the command line, the OpenAPI document, an agent and `help()`."""
    metavar: str | None = None
    """Placeholder of the value in a verb's help. Without one, `…_s` and `…_ms` are durations on the command line."""
    default: Any = _OF_TYPE
    """Default value; without one, the empty value of the type: None if allowed, `""`, False or `()`."""
    option: str = ""
    """Command line name if it is not `--name`, without a unit, such as `--topic` for `topics`."""
    pair: str = ""
    """Example of an item on the command line, if each item is a pair like `metavar`."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits of values over HTTP, as arguments of `msgspec.Meta`; `each` has the limits of list items."""


def param_of(parameter: inspect.Parameter) -> Param | None:
    """Return the declared `Param` of a parameter; None if it has none."""
    return next(
        (annotation for annotation in get_args(parameter.annotation)[1:] if isinstance(annotation, Param)), None
    )


def kind_of(annotation: Any) -> Any:
    """Return the type without annotations."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def parts_of(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the only type."""
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def declaration_of(function: Callable[..., Any]) -> Any:
    """Return the declaration that a function takes as `**options: Unpack[…]`; None if it takes none."""
    own = [*inspect.signature(function).parameters.values()]
    annotation = own[-1].annotation if own else None
    if isinstance(annotation, str) and annotation.startswith("Unpack["):
        annotation = eval(annotation, function.__globals__)  # noqa: S307  as `typing.get_type_hints`
    return get_args(annotation)[0] if get_origin(annotation) is Unpack else None


def declared_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function's declaration, with their defaults."""
    declaration = declaration_of(function)
    hints = get_type_hints(declaration, include_extras=True) if declaration is not None else {}
    return [_field(name, annotation) for name, annotation in hints.items()]


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function; those of its declaration come before its own keywords."""
    own = [*inspect.signature(function).parameters.values()]
    if declaration_of(function) is None:
        return own
    keywords = [parameter for parameter in own[:-1] if parameter.kind is parameter.KEYWORD_ONLY]
    return [*own[: len(own) - 1 - len(keywords)], *declared_of(function), *keywords]


def explained(function: Callable[..., Any]) -> str:
    """Return the docstring of a function, completed by the help of its declared parameters."""
    first, _, details = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
    declared_doc = inspect.cleandoc(declaration_of(function).__doc__ or "")
    params = [(parameter.name, param_of(parameter)) for parameter in declared_of(function)]
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


def _field(name: str, annotation: Any) -> inspect.Parameter:
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    param = param_of(parameter)
    assert param is not None, f"{name} is declared without a Param"  # noqa: S101  a declaration of ours
    return parameter.replace(default=_empty(kind_of(annotation)) if param.default is _OF_TYPE else param.default)


def _empty(kind: Any) -> Any:
    parts = parts_of(kind)
    if NoneType in parts:
        return None
    return "" if str in parts else {bool: False}.get(kind, ())
