"""Parameters of questions and operations, declared once for Python, the command line, HTTP and agents.

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
    """Explain a parameter, and say how it is written."""

    help: str
    """A sentence, for the command line, the OpenAPI document, an agent and `help()`."""
    metavar: str | None = None
    """Its value in the help of a verb. Without one, `…_s` and `…_ms` are spans of time on the command line."""
    default: Any = _OF_TYPE
    """By default the empty value of its type: None where the type has it, `""`, False or `()`."""
    option: str = ""
    """Its name on the command line where that is not `--name`, without a unit, and `--topic` for several `topics`."""
    pair: str = ""
    """On the command line each item is a pair like `metavar`, such as this one."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits of values that come over HTTP, as `msgspec.Meta` takes them; `each` has those of several."""


def param_of(parameter: inspect.Parameter) -> Param | None:
    """Return how a declaration explains a parameter; None for a parameter that no declaration has."""
    return next((each for each in get_args(parameter.annotation)[1:] if isinstance(each, Param)), None)


def kind_of(annotation: Any) -> Any:
    """Return the type alone, without explanations."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def parts_of(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the only type."""
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def declaration_of(function: Callable[..., Any]) -> Any:
    """Return the declaration that a function takes as `**options: Unpack[…]`; None where it takes none."""
    own = [*inspect.signature(function).parameters.values()]
    annotation = own[-1].annotation if own else None
    if isinstance(annotation, str) and annotation.startswith("Unpack["):
        annotation = eval(annotation, function.__globals__)  # noqa: S307  as `typing.get_type_hints`
    return get_args(annotation)[0] if get_origin(annotation) is Unpack else None


def declared_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a function has from its declaration, with their defaults."""
    declaration = declaration_of(function)
    hints = get_type_hints(declaration, include_extras=True) if declaration is not None else {}
    return [_field(name, annotation) for name, annotation in hints.items()]


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function; those of its declaration come before its own keywords."""
    own = [*inspect.signature(function).parameters.values()]
    if declaration_of(function) is None:
        return own
    keywords = [each for each in own[:-1] if each.kind is each.KEYWORD_ONLY]
    return [*own[: len(own) - 1 - len(keywords)], *declared_of(function), *keywords]


def explained(function: Callable[..., Any]) -> str:
    """Return the docstring of a function with what its declaration says: in several paragraphs, and of parameters."""
    first, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
    said = inspect.cleandoc(declaration_of(function).__doc__ or "")
    params = [(each.name, param_of(each)) for each in declared_of(function)]
    args = "\n".join(f"    {name}: {param.help}" for name, param in params if param is not None)
    rest = f"\n\n{rest}" if rest else ""
    if "\n\nArgs:\n" in rest:
        rest = rest.replace("\n\nArgs:\n", f"\n\nArgs:\n{args}\n", 1)
    else:
        at = min((at for name in ("Returns", "Raises") if (at := rest.find(f"\n\n{name}:\n")) >= 0), default=len(rest))
        rest = f"{rest[:at]}\n\nArgs:\n{args}{rest[at:]}"
    return f"{first}\n\n{said}{rest}" if "\n\n" in said else first + rest


def _field(name: str, annotation: Any) -> inspect.Parameter:
    found = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    param = param_of(found)
    assert param is not None, f"{name} is declared without a Param"  # noqa: S101  a declaration of ours
    return found.replace(default=_empty(kind_of(annotation)) if param.default is _OF_TYPE else param.default)


def _empty(kind: Any) -> Any:
    parts = parts_of(kind)
    if NoneType in parts:
        return None
    return "" if str in parts else {bool: False}.get(kind, ())
