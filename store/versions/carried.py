"""What a version carries on from the one before it: all that its manifest says, but what is told of one version alone.

Which fields these are, the manifest's own structs say (`limits.Own`), and nobody else.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from .limits import OWN
from .manifest import Manifest

S = TypeVar("S", bound=Struct)


def carried(value: S) -> S:
    """A manifest, or a part of one, with nothing of what this version alone read, wrote and took."""
    own, parts = _fields(type(value))
    return replace(value, **own, **{name: _each(getattr(value, name)) for name in parts})


def without_snapshots(manifest: Manifest) -> Manifest:
    """A version that has answered nothing of any snapshot under way."""
    return replace(manifest, recorded={}, awaited={}, captured={})


def _each(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: carried(each) for name, each in part.items()}
    return None if part is None else carried(part)


@cache
def _fields(kind: type[Struct]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of one version alone, as they are when it says nothing, and those with such fields in them."""
    hints = get_type_hints(kind, include_extras=True)
    own = {
        field.name: field.default if field.default is not NODEFAULT else field.default_factory()
        for field in fields(kind)
        if OWN in getattr(hints[field.name], "__metadata__", ())
    }
    return own, tuple(name for name, hint in hints.items() if any(any(_fields(each)) for each in _structs(hint)))


def _structs(hint: Any) -> Iterator[type[Struct]]:
    """The structs in the type of a field."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs(inner)
