"""Whether bytes are one message of an Avro schema, looked at without making anything of them.

The reader of whole batches says that one has a bad message, and not which: to ask it for each takes a millisecond. This
takes microseconds a message, and is asked only where a batch has a bad one.
https://avro.apache.org/docs/1.12.0/specification/#binary-serialization-encoding
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Skip = Callable[[bytes, int], int]
"""Gets bytes and where a value begins, and gives where it ends. Raises `IndexError` or `ValueError` where none is."""

_LONGEST = 10
"""Bytes of a number."""


def skipper(node: Any, named: Mapping[str, Any]) -> Skip:
    """What passes over a value of a schema, as JSON gives it; `named` are its named types."""
    return _skipper(node, named, {})


def fits(skip: Skip, data: bytes, at: int) -> bool:
    """Whether the bytes from `at` on are one value, and nothing more."""
    try:
        return skip(data, at) == len(data)
    except (IndexError, ValueError):
        return False


def _skipper(node: Any, named: Mapping[str, Any], known: dict[str, Skip]) -> Skip:
    if isinstance(node, list):
        branches = [_skipper(branch, named, known) for branch in node]
        return _optional(branches, node.index("null")) if len(node) == 2 and "null" in node else _union(branches)
    if isinstance(node, str):
        if node not in named:
            return _SIMPLE[node]
        if node not in known:
            # A type may have itself within: then this is what it finds.
            known[node] = lambda data, at: known[node](data, at)
            known[node] = _skipper(named[node], named, known)
        return known[node]
    match node["type"]:
        case "record" | "error":
            return _record([_skipper(field["type"], named, known) for field in node["fields"]])
        case "array":
            return _blocks(_skipper(node["items"], named, known))
        case "map":
            return _blocks(_record([_text, _skipper(node["values"], named, known)]))
        case "enum":
            return _one_of(len(node["symbols"]))
        case "fixed":
            return _of_size(node["size"])
        case kind:
            return _skipper(kind, named, known)


def _long(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for place in range(_LONGEST):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise ValueError("a number without an end")


def _number(data: bytes, at: int) -> int:
    return _long(data, at)[1]


def _sized(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    return _within(data, at, size)


def _text(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    end = _within(data, at, size)
    data[at:end].decode()
    return end


def _within(data: bytes, at: int, size: int) -> int:
    if size < 0 or at + size > len(data):
        raise ValueError("beyond the end")
    return at + size


def _of_size(size: int) -> Skip:
    return lambda data, at: _within(data, at, size)


def _one_of(count: int) -> Skip:
    def skip(data: bytes, at: int) -> int:
        number, end = _long(data, at)
        if not 0 <= number < count:
            raise ValueError("no symbol")
        return end

    return skip


def _optional(branches: list[Skip], null: int) -> Skip:
    value = branches[1 - null]

    def skip(data: bytes, at: int) -> int:
        number, at = _long(data, at)
        # The reader takes whatever is not null for the value.
        return at if number == null else value(data, at)

    return skip


def _union(branches: list[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        number, at = _long(data, at)
        if number < 0:
            raise ValueError("no branch")
        return branches[number](data, at)

    return skip


def _record(fields: list[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return skip


def _blocks(item: Skip) -> Skip:
    def skip(data: bytes, at: int) -> int:
        while True:
            count, at = _long(data, at)
            if count < 0:
                # Then the block says how many bytes it has.
                count, at = -count, _number(data, at)
            if not count:
                return at
            for _ in range(count):
                start, at = at, item(data, at)
                if at == start:
                    break  # items of no bytes, however many

    return skip


_SIMPLE: dict[str, Skip] = {
    "null": lambda _data, at: at,
    "boolean": _of_size(1),
    "int": _number,
    "long": _number,
    "float": _of_size(4),
    "double": _of_size(8),
    "bytes": _sized,
    "string": _text,
}
