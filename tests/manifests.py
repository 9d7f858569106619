"""Manifests for tests: any that the types allow, and plain ones."""

from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct
from slackwater.store.manifest import AppInfo, Manifest

# What JSON and the readers of other languages hold exactly.
INT64 = st.integers(-(2**63), 2**63 - 1)


def any_value(kind: Any) -> st.SearchStrategy[Any]:
    """Every value of a type that structs of the store are made of."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return st.builds(kind, **{name: any_value(hint) for name, hint in get_type_hints(kind).items()})
    if origin is tuple:
        return st.lists(any_value(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(any_value(arguments[0]), any_value(arguments[1]), max_size=3)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is UnionType:
        return st.one_of(*map(any_value, arguments))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: INT64,
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=8),
        type(None): st.none(),
    }
    return plain[kind]


MANIFESTS: st.SearchStrategy[Manifest] = any_value(Manifest)
APPS: st.SearchStrategy[AppInfo] = any_value(AppInfo)


def manifest(version: int, *, epoch: int = 1, writer: str = "w", time_ms: int | None = None) -> Manifest:
    """A batch of stage `app/stage`, committed at 10 milliseconds a version unless said otherwise."""
    return Manifest(
        "app",
        "stage",
        version,
        epoch,
        writer,
        10 * version if time_ms is None else time_ms,
        "batch",
        by=f"host:{writer}",
    )
