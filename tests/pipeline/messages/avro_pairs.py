"""Pairs of Avro schemas, a writer's and a compatible reader's, and the writer's messages as bytes.

The bytes are encoded here, by the specification, so that they include legal forms that writers avoid: blocks with a
size, and duplicate map keys. https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_INT = st.integers(-(1 << 31), (1 << 31) - 1)
_DAY_MS = 86_400_000
_SPAN_MS = 30_000 * _DAY_MS
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": _INT,
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=6),
    "string": _TEXT,
}
_LOGICAL: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "int", "logicalType": "date"}, st.integers(-30_000, 30_000)),
    ({"type": "int", "logicalType": "time-millis"}, st.integers(0, _DAY_MS - 1)),
    ({"type": "long", "logicalType": "time-micros"}, st.integers(0, _DAY_MS * 1000 - 1)),
    *(
        ({"type": "long", "logicalType": f"{kind}-{unit}"}, st.integers(-_SPAN_MS * factor, _SPAN_MS * factor))
        for kind in ("timestamp", "local-timestamp")
        for unit, factor in (("millis", 1), ("micros", 1000), ("nanos", 1_000_000))
    ),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, st.integers(-(10**9) + 1, 10**9 - 1)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 38}, st.integers(-(10**38) + 1, 10**38 - 1)),
    ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
    ({"type": "string", "logicalType": "date"}, _TEXT),
]
_WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_ORDER = ("int", "long", "float", "double", "string", "bytes")
"""Types in an order in which promotion targets follow their sources, so that all readers choose the same branch."""


@dataclass(frozen=True)
class Pair:
    """A writer's and a reader's schema, encoded values of the writer, and True if the schemas are compatible."""

    written: Any
    read: Any
    bodies: list[bytes]
    follows: bool


def number(value: int) -> bytes:
    """Return a zigzag number of variable length."""
    value = value << 1 ^ value >> 63
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*made, value))


def body(node: Any, value: Any) -> bytes:
    """Encode a value. The value of a union is a pair of branch number and value; that of a map is a list of pairs."""
    if isinstance(node, list):
        branch, chosen = value
        return number(branch) + body(node[branch], chosen)
    kind = node if isinstance(node, str) else node["type"]
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes((value,))
        case "int" | "long":
            return number(value)
        case "float" | "double":
            return struct.pack("<f" if kind == "float" else "<d", value)
        case "enum":
            return number(node["symbols"].index(value))
        case "record":
            return b"".join(body(field["type"], value[field["name"]]) for field in node["fields"])
        case "array" | "map":
            sized, items = value
            inner = (
                [body(node["items"], item) for item in items]
                if kind == "array"
                else [body("string", key) + body(node["values"], item) for key, item in items]
            )
            if not items:
                return b"\0"
            data = b"".join(inner)
            # A block may say how many bytes it has; then its count is negative.
            return (number(-len(items)) + number(len(data)) if sized else number(len(items))) + data + b"\0"
    if not isinstance(node, str) and node.get("logicalType") == "decimal" and isinstance(value, int):
        size = node["size"] if kind == "fixed" else (value.bit_length() + 8) // 8
        value = value.to_bytes(size, "big", signed=True)
    data = value.encode() if kind == "string" else value
    return data if kind == "fixed" else number(len(data)) + data


class Schemas:
    """Generates schemas, compatible readers, and values. All names are different."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.names = 0
        self.follows = True

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def chance(self, of: int) -> bool:
        return self.draw(st.integers(0, of - 1)) == 1

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def node(self, depth: int, *, union: bool = True) -> Any:
        """Return a schema of at most this depth."""
        shapes = ["primitive", "logical", "enum", "fixed"]
        if depth > 0:
            shapes += ["record", "array", "map", *(["union", "nullable"] if union else [])]
        match self.one_of(*shapes):
            case "primitive":
                return self.one_of(*(kind for kind in _PRIMITIVES if union or kind != "null"))
            case "logical":
                return dict(self.one_of(*(node for node, _ in _LOGICAL)))
            case "enum":
                symbols = self.draw(st.lists(st.sampled_from("ABCDEF"), unique=True, min_size=1, max_size=4))
                default = {"default": symbols[-1]} if self.chance(3) else {}
                return {"type": "enum", "name": self.name("E"), "symbols": symbols, **default}
            case "fixed":
                if self.chance(3):
                    digits = {"logicalType": "decimal", "precision": 6, "scale": 3}
                    return {"type": "fixed", "name": self.name("D"), "size": self.one_of(3, 9, 17), **digits}
                return {"type": "fixed", "name": self.name("F"), "size": self.one_of(1, 3, 16)}
            case "record":
                return self.record(depth)
            case "array":
                return {"type": "array", "items": self.item(depth)}
            case "map":
                return {"type": "map", "values": self.item(depth)}
            case "nullable":
                return self.draw(st.permutations(["null", self.node(depth - 1, union=False)]))
        return self.union(depth)

    def item(self, depth: int) -> Any:
        node = self.node(depth - 1)
        return node if takes_bytes(node) else "int"

    def record(self, depth: int) -> Any:
        count = self.draw(st.integers(1, 4))
        fields = [{"name": self.name("f"), "type": self.node(depth - 1)} for _ in range(count)]
        return {"type": "record", "name": self.name("R"), "fields": fields}

    def union(self, depth: int) -> Any:
        nodes = [self.node(depth - 1, union=False) for _ in range(self.draw(st.integers(1, 4)))]
        return self.in_order([*nodes, *(["null"] if self.chance(2) else [])])

    def in_order(self, nodes: list[Any]) -> list[Any]:
        """Return branches of different kinds, in an order in which all readers choose the same branch."""
        branches: dict[Any, Any] = {}
        for node in nodes:
            kind = kind_of(node)
            branches.setdefault(node["name"] if kind in ("record", "enum", "fixed") else kind, node)
        # fastavro gives a value of a logical type as that, whatever it is read as; Avro as what it is stored as.
        logical = next((kind for kind, one in branches.items() if isinstance(one, dict) and "logicalType" in one), None)
        for kind in ("int", "long", "float", "double") if logical in ("int", "long") else ():
            if kind != logical:
                branches.pop(kind, None)
        for kind in ("string", "bytes"):
            if kind in branches and len({"string", "bytes"} & branches.keys()) == 2:
                del branches[kind]
        order = self.draw(st.permutations(list(branches.values())))
        return sorted(order, key=lambda one: _ORDER.index(kind_of(one)) if kind_of(one) in _ORDER else -1)

    def default(self, depth: int) -> tuple[Any, Any]:
        """Return a schema, with a default value for it in JSON."""
        node = self.node(depth)
        return (node, self.json(node)) if not isinstance(node, list) else (node, self.json(node[0]))

    def json(self, node: Any) -> Any:
        """Return a value as it is written in JSON, as the default of a field."""
        if isinstance(node, list):
            return self.json(node[0])
        kind = kind_of(node)
        if kind in ("bytes", "fixed"):
            value = self.value(node)
            data = body(node, value)
            return (data if kind == "fixed" else data[-length(data) :] if length(data) else b"").decode("latin-1")
        if kind == "record":
            fields = {field["name"]: self.json(field["type"]) for field in node["fields"]}
            for field in node["fields"]:
                if self.chance(3):
                    field["default"] = fields.pop(field["name"])
            return fields
        if kind == "array":
            return [self.json(node["items"]) for _ in range(self.draw(st.integers(0, 2)))]
        if kind == "map":
            return {f"k{n}": self.json(node["values"]) for n in range(self.draw(st.integers(0, 2)))}
        value = self.value(node)
        return 0.5 if kind in ("float", "double") else value

    def reader(self, node: Any, depth: int) -> Any:
        """Return a schema that can read this one, or rarely one that cannot."""
        if not (isinstance(node, dict) and "logicalType" in node) and self.chance(40):
            self.follows = False
            # Readers differ in whether the name of a record that is in no union counts.
            other = self.record(1) | ({"name": node["name"]} if kind_of(node) == "record" else {})
            return self.one_of(
                "string", {"type": "array", "items": "boolean"}, other if takes_bytes(other) else "string"
            )
        if isinstance(node, list):
            return self.reader_of_union(node, depth)
        kind = kind_of(node)
        if kind != "null" and self.chance(6):
            followed = self.reader(node, depth)
            if isinstance(followed, list):
                return followed
            return self.in_order([followed, *(["null"] if self.chance(2) else [])])
        if kind == "record":
            return {**node, "fields": self.fields(node["fields"], depth)}
        if kind == "array":
            return {**node, "items": self.reader(node["items"], depth - 1)}
        if kind == "map":
            return {**node, "values": self.reader(node["values"], depth - 1)}
        if kind in ("enum", "fixed"):
            made = dict(node)
            if self.chance(4):
                made |= {"name": self.name("N"), "aliases": [node["name"]]}
            if kind == "enum":
                made.pop("default", None)
                symbols = self.draw(
                    st.permutations([*self.draw(st.sets(st.sampled_from(node["symbols"]), min_size=1)), "Z"])
                )
                made |= {"symbols": symbols} | ({"default": self.one_of(*symbols)} if self.chance(2) else {})
            return made
        if isinstance(node, dict):
            logical = node["logicalType"]
            if logical.endswith(("p-millis", "p-micros")) and self.chance(2):
                return {**node, "logicalType": f"{logical[:-7]}-{self.one_of('millis', 'micros')}"}
            return node
        return self.one_of(node, *_WIDER.get(node, ())) if self.chance(2) else node

    def fields(self, written: list[Any], depth: int) -> list[Any]:
        read = []
        for field in written:
            if self.chance(5):
                continue
            kept = {"name": field["name"], "type": self.reader(field["type"], depth - 1)}
            if self.chance(5):
                kept |= {"name": self.name("g"), "aliases": ["none", field["name"]]}
            read.append(kept)
        for _ in range(self.draw(st.integers(0, 2))):
            node, default = self.default(1)
            more = {} if self.chance(8) else {"default": default}
            read.append({"name": self.name("n"), "type": node, **more})
        if not read:
            read.append({"name": "only", "type": "int", "default": 1})
        return self.draw(st.permutations(read))

    def reader_of_union(self, node: list[Any], depth: int) -> Any:
        branches = [self.reader(branch, depth - 1) for branch in node if not self.chance(5)]
        branches = [inner for one in branches for inner in (one if isinstance(one, list) else [one])]
        if len(branches) == 1 and self.chance(2):
            return branches[0]
        more = self.node(0, union=False)
        if branches and (kind_of(more) in map(kind_of, node) or not self.chance(4)):
            return self.in_order(branches)
        numbers = {"int", "long", "float", "double"}
        if kind_of(more) in {*map(kind_of, node)} or (kind_of(more) in numbers and numbers & {*map(kind_of, node)}):
            more = "boolean"
        return self.in_order([*branches, more])

    def value(self, node: Any) -> Any:
        """Return a value in the form that `body` takes."""
        if isinstance(node, list):
            branch = self.draw(st.integers(0, len(node) - 1))
            return branch, self.value(node[branch])
        kind = kind_of(node)
        match kind:
            case "enum":
                return self.one_of(*node["symbols"])
            case "fixed":
                if "logicalType" in node:
                    return self.draw(st.integers(-999_999, 999_999))
                return self.draw(st.binary(min_size=node["size"], max_size=node["size"]))
            case "record":
                return {field["name"]: self.value(field["type"]) for field in node["fields"]}
            case "array":
                return self.draw(st.booleans()), [
                    self.value(node["items"]) for _ in range(self.draw(st.integers(0, 3)))
                ]
            case "map":
                count = self.draw(st.integers(0, 3))
                return self.draw(st.booleans()), [
                    (self.one_of("a", "b", "é"), self.value(node["values"])) for _ in range(count)
                ]
        if isinstance(node, dict):
            return self.draw(next(values for known, values in _LOGICAL if known == node))
        return self.draw(_PRIMITIVES[node])


def kind_of(node: Any) -> str:
    return "union" if isinstance(node, list) else node if isinstance(node, str) else node["type"]


def takes_bytes(node: Any) -> bool:
    """True if every encoded value has at least one byte. Arrays of values without bytes are refused."""
    fields = node.get("fields") if isinstance(node, dict) else None
    return any(takes_bytes(field["type"]) for field in fields) if fields is not None else node != "null"


def length(data: bytes) -> int:
    """Return the length with which bytes begin, if it is below 64."""
    return data[0] >> 1


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Draw a pair, and one to four messages."""
    schemas = Schemas(draw)
    written = schemas.record(3)
    read = schemas.reader(written, 3)
    while isinstance(read, list) or kind_of(read) != "record":
        read = read[0] if isinstance(read, list) else {**written, "fields": schemas.fields(written["fields"], 2)}
    values = [schemas.value(written) for _ in range(draw(st.integers(1, 4)))]
    return Pair(written, read, [body(written, value) for value in values], schemas.follows)
