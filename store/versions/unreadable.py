"""Which field of a stored object is wrong, and what is found there: for errors, when decoding has failed."""

import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

MOST_SHOWN = 60
"""Characters of a value that an error repeats."""


class Field(NamedTuple):
    """The field that is wrong."""

    path: str
    """`inputs['by-aircraft'].offsets[0]`; empty for the object itself."""
    found: str
    """The value, as it stands there and cut short."""
    expected: str
    """What msgspec says, or the words of the field's own type."""


def locate(data: bytes, kind: Any) -> Field | None:
    """The first field of a JSON object that is not what `kind` says; None when none is.

    It decodes value by value, holding no more than references into `data`.
    """
    return _explain(msgspec.Raw(data), kind, "")


def shown(found: object) -> str:
    """A value in an error: cut short, and without what a terminal would obey."""
    if isinstance(found, str):
        return ascii(found[:MOST_SHOWN]) + ("…" if len(found) > MOST_SHOWN else "")
    return _cut(ascii(found[:MOST_SHOWN]) if isinstance(found, tuple | list) else ascii(found))


def _explain(raw: msgspec.Raw, kind: Any, path: str) -> Field | None:
    try:
        msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        for below, field, inside in _children(raw, kind, path):
            if (found := _explain(below, inside, field)) is not None:
                return found
        text = bytes(raw)[: 4 * MOST_SHOWN].decode(errors="replace")
        return Field(path, _json_shown(text), _words(kind) or str(error).removeprefix("Expected "))
    return None


def _children(raw: msgspec.Raw, kind: Any, path: str) -> Iterator[tuple[msgspec.Raw, str, Any]]:
    """The values inside, with their paths and types; nothing where the JSON is of another shape."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for one in arguments:
            if one is not type(None):
                yield from _children(raw, one, path)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        for name, value in _decoded(raw, dict[str, msgspec.Raw]).items():
            if name in hints:
                yield value, f"{path}.{name}" if path else name, hints[name]
    elif origin is tuple:
        for number, value in enumerate(_decoded(raw, list[msgspec.Raw])):
            yield value, f"{path}[{number}]", arguments[0]
    elif origin is dict:
        for name, value in _decoded(raw, dict[str, msgspec.Raw]).items():
            yield msgspec.Raw(msgspec.json.encode(name)), f"a name in {path}", arguments[0]
            yield value, f"{path}[{shown(name)}]", arguments[1]


def _decoded(raw: msgspec.Raw, kind: Callable[[], Any]) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return kind()


def _words(kind: Any) -> str:
    """What the type itself says that it is."""
    if get_origin(kind) is Annotated:
        return next((meta.description for meta in get_args(kind)[1:] if getattr(meta, "description", None)), "")
    return ""


def _json_shown(text: str) -> str:
    # JSON says control characters in letters already, but not all that a terminal obeys.
    return _cut("".join(each if " " <= each <= "~" else ascii(each)[1:-1] for each in text))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
