"""Invalid stored objects: JSON objects with any value at any place, and with a matching checksum."""

import json
from typing import Any

import msgspec
import xxhash
from hypothesis import strategies as st
from msgspec import Struct
from slackwater.store.versions.entries.stored import to_stored

Place = tuple[str | int, ...]

_NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    10**9,
    2**31,
    2**53 - 1,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**63),
    -(10**30),
)
_FRACTIONS = (0.5, -0.5, 1e308, 1.0000001, 1e6, -1e-300, 3.0)
_NAMES = (
    *(
        "",
        ".",
        "..",
        "../x",
        "../../../etc/passwd",
        "/etc/passwd",
        "a//b",
        "a/b",
        "\0",
        "a\0b",
        "a\nb",
        "\u202egnp.exe",
    ),
    *('a"b', "a'b", "a`b", "a;b--", "a\\b", "%s", "{}", "\u00c5", "A", "_hash", "_SEQ", "rowid", "file_row_number"),
    *(
        "flights",
        "staging",
        "types",
        "legs",
        "aircraft",
        "carriers",
        "rows",
        "by-aircraft",
        "by-carrier",
        "tail",
        "delay",
    ),
    *("s3://", "s3://b/../x", "gopher://x", "/", "/a/../etc", "memory:1", "relative", "int64", "list<", "list<" * 60),
    *(
        "struct<a: int64>",
        "`a` bigint",
        "`a` array<",
        "array<" * 5000,
        "timestamp",
        "decimal128(99, 1)",
        "01JGG5H1H0M6Q6Q5K83GTFKTQ2",
    ),
    *("zz" * 16, "0" * 32, "x" * 300, "y" * 3_000_000),
)
_SHAPES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [{}], {"": {}}, {"a": 1}, {"../x": []}),
    *([0] * 5, [-1], [2**62, 2**62], [0] * 1_000_000, ["a"] * 1_000_000, {str(n): n for n in range(300_000)}),
)
HOSTILE: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(_NUMBERS),
    st.integers(-(2**64), 2**64),
    st.sampled_from(_FRACTIONS),
    st.sampled_from(_NAMES),
    st.text(max_size=6),
    st.integers(0, len(_SHAPES) - 1).map(_SHAPES.__getitem__),
)


def as_it_is(value: Struct) -> bytes:
    """Return a struct as stored, but without validation."""
    return sealed(msgspec.to_builtins(value, enc_hook=to_stored))


def places(value: Any, at: Place = ()) -> list[Place]:
    """Return all positions in a JSON value."""
    found = [at]
    if isinstance(value, dict):
        for name, inside in value.items():
            found += places(inside, (*at, name))
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            found += places(inside, (*at, number))
    return found


def with_value(value: Any, place: Place, new: Any) -> Any:
    """Return a JSON value with another value at a position. The position may be a new one."""
    if not place:
        return new
    first, *rest = place
    copy = {} if value is None else value.copy()
    if isinstance(copy, list) and first == len(copy):
        copy.append(None)
    inside = copy.get(first) if isinstance(copy, dict) else copy[first]  # type: ignore[index]
    copy[first] = with_value(inside, tuple(rest), new)  # type: ignore[index]
    return copy


def _at(value: Any, place: Place) -> Any:
    for step in place:
        value = value[step]
    return value


@st.composite
def changed(draw: st.DrawFn, value: dict[str, Any]) -> Any:
    """Draw a JSON object with one change: another value, a removal, a duplicate, or a value from another position."""
    # Fields first, and then inside: most places are inside of lists of SSTs.
    top = draw(st.sampled_from(sorted(value)), "field")
    inside = places(value[top], (top,))
    place = draw(st.sampled_from(inside), "place")
    how = draw(st.sampled_from(["another", "another", "another", "gone", "twice", "swapped", "renamed"]), "how")
    parent = _at(value, place[:-1])
    last = place[-1]
    match how:
        case "gone":
            left = [x for n, x in enumerate(parent) if n != last] if isinstance(parent, list) else parent.copy()
            if isinstance(left, dict):
                del left[last]
            return with_value(value, place[:-1], left)
        case "twice" if isinstance(parent, list):
            return with_value(value, place[:-1], [*parent, parent[last]])  # type: ignore[call-overload]
        case "swapped":
            return with_value(value, place, _at(value, draw(st.sampled_from(inside), "other")))
        case "renamed" if isinstance(parent, dict):
            name = draw(st.sampled_from(_NAMES), "name")
            renamed = {(name if key == last else key): inside for key, inside in parent.items()}
            return with_value(value, place[:-1], renamed)
        case _:
            return with_value(value, place, draw(HOSTILE, "value"))


def sealed(value: Any) -> bytes:
    """Return a JSON object as it is stored, with its checksum."""
    if not isinstance(value, dict):
        return json.dumps(value).encode()
    number = value.get("format", 1)
    fields = {name: field for name, field in value.items() if name not in ("format", "xxh3_128")}
    rest = b"," + json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode()[1:] if fields else b"}"
    return checked(rest, json.dumps(number).encode())


def checked(rest: bytes, number: bytes = b"1") -> bytes:
    """Return these bytes after a format number and their checksum."""
    return b'{"format":%b,"xxh3_128":"%b"' % (number, xxhash.xxh3_128_hexdigest(rest).encode()) + rest
