"""Pairs of Protobuf schemas, a writer's and a compatible reader's, and the writer's messages as bytes.

The bytes are several concatenated messages, which Protobuf reads as one: fields occur twice, fields of a oneof compete,
maps have duplicate keys. Rarely one byte is corrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from slackwater.pipeline.messages.protobuf import _compile
from slackwater.pipeline.messages.registry import Schema

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def _numbers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{f"{kind}32": _numbers(32, signed=True) for kind in ("int", "sint", "sfixed")},
    **{f"{kind}64": _numbers(64, signed=True) for kind in ("int", "sint", "sfixed")},
    **{f"{kind}32": _numbers(32, signed=False) for kind in ("uint", "fixed")},
    **{f"{kind}64": _numbers(64, signed=False) for kind in ("uint", "fixed")},
    "bool": st.booleans(),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": _TEXT,
    "bytes": st.binary(max_size=4),
}
_KEYS = [kind for kind in _SCALARS if kind not in ("float", "double", "bytes")]
_KNOWN = ("Timestamp", "Duration", "Int64Value", "UInt64Value", "StringValue", "BoolValue", "BytesValue", "DoubleValue")
_SAME_BYTES = {
    "int32": ("int64", "sint64", "bool", "uint32", "uint64"),
    "string": ("bytes",),
    "uint64": ("int64", "uint32"),
}
_IMPORTS = "".join(f'import "google/protobuf/{name}.proto";\n' for name in ("timestamp", "duration", "wrappers"))


@dataclass(frozen=True)
class Pair:
    """Texts of a writer's and a reader's schema, which both have a message `p.M`, and bytes."""

    written: str
    read: str
    bodies: list[bytes]


@dataclass
class Field:
    """A field. `label` is its modifier, and `oneof` the name of its group."""

    number: int
    kind: str
    label: str = ""
    oneof: str = ""

    def __str__(self) -> str:
        return f"{self.label} {self.kind} f{self.number} = {self.number};"


class Files:
    """Generates a file: syntax, enums, message types, and the fields of `M`."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.syntax = self.one_of("proto2", "proto3", "proto3")

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def chance(self, of: int) -> bool:
        return self.draw(st.integers(0, of - 1)) == 1

    def fields(self, messages: list[str], first: int = 1) -> list[Field]:
        made = []
        for number in range(first, first + self.draw(st.integers(1, 5))):
            kind = self.one_of("scalar", "scalar", "enum", "known", "message", "map")
            if kind == "map":
                item = self.one_of(*_SCALARS, "E", "google.protobuf.Timestamp", *messages)
                made.append(Field(number, f"map<{self.one_of(*_KEYS)}, {item}>"))
                continue
            name = {
                "scalar": self.one_of(*_SCALARS),
                "enum": "E",
                "known": f"google.protobuf.{self.one_of(*_KNOWN)}",
                "message": self.one_of(*messages) if messages else "int32",
            }[kind]
            single = "optional" if self.syntax == "proto2" else self.one_of("", "optional")
            label, oneof = self.one_of((single, ""), (single, ""), ("repeated", ""), ("", "one"), ("", "other"))
            made.append(Field(number, name, label, oneof))
        return made

    def text(self, types: dict[str, list[Field]], symbols: int) -> str:
        """Return the file's text."""
        enum = (
            "enum E { "
            + " ".join(f"S{n} = {number};" for n, number in enumerate((0, 1, -1, 7, 1 << 20)[:symbols]))
            + " }"
        )
        bodies = []
        for name, fields in types.items():
            parts = [str(field) for field in fields if not field.oneof]
            for oneof in ("one", "other"):
                of = [field for field in fields if field.oneof == oneof]
                if of:
                    parts.append(f"oneof {oneof} {{ {' '.join(map(str, of))} }}")
            bodies.append(f"message {name} {{ {' '.join(parts)} }}")
        return f'syntax = "{self.syntax}"; package p;\n{_IMPORTS}{enum}\n' + "\n".join(bodies)

    def fill(self, message: Any, depth: int = 3) -> None:
        """Set some fields of a message."""
        for field in message.DESCRIPTOR.fields:
            if self.chance(3) or not depth:
                continue
            kind = field.message_type
            if kind is not None and kind.GetOptions().map_entry:
                for _ in range(self.draw(st.integers(0, 2))):
                    key = self.small(kind.fields[0])
                    if kind.fields[1].message_type is not None:
                        self.fill(getattr(message, field.name)[key], depth - 1)
                    else:
                        getattr(message, field.name)[key] = self.scalar(kind.fields[1])
            elif field.is_repeated:
                for _ in range(self.draw(st.integers(0, 3))):
                    if kind is not None:
                        self.fill(getattr(message, field.name).add(), depth - 1)
                    else:
                        getattr(message, field.name).append(self.scalar(field))
            elif kind is not None:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), depth - 1)
            else:
                setattr(message, field.name, self.scalar(field))

    def scalar(self, field: Any) -> Any:
        if field.enum_type is not None:
            numbers = [symbol.number for symbol in field.enum_type.values]
            return self.one_of(*numbers, *([] if field.enum_type.is_closed else [99]))
        if field.containing_type.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            return self.draw(st.integers(-(10**9), 10**9) if field.name == "nanos" else st.integers(-(10**11), 10**11))
        return self.draw(_SCALARS[_name(field)])

    def small(self, field: Any) -> Any:
        """Return one of a few keys, so that keys are repeated."""
        if field.cpp_type == field.CPPTYPE_STRING:
            return self.one_of("", "k")
        return bool(self.one_of(0, 1)) if field.cpp_type == field.CPPTYPE_BOOL else self.one_of(0, 1)


def _name(field: Any) -> str:
    names = {
        getattr(field, name): name.removeprefix("TYPE_").lower() for name in dir(field) if name.startswith("TYPE_")
    }
    return names[field.type]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Draw a pair, and one to three messages."""
    files = Files(draw)
    inner = files.fields([])
    outer = files.fields(["Inner"])
    symbols = draw(st.integers(1, 5))
    written = files.text({"Inner": inner, "M": outer}, symbols)
    message = GetMessageClass(_compile(Schema("PROTOBUF", written)).message_types_by_name["M"])
    bodies = []
    for _ in range(draw(st.integers(1, 3))):
        parts = []
        for _ in range(draw(st.integers(1, 3))):
            one = message()
            files.fill(one)
            parts.append(one.SerializeToString())
        body = bytearray(b"".join(parts))
        if body and files.chance(6):
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
        bodies.append(bytes(body))
    if files.chance(2):
        return Pair(written, written, bodies)
    read = {}
    for name, fields in (("Inner", inner), ("M", outer)):
        kept = [field for field in fields if not files.chance(5)]
        kept = [
            Field(field.number, files.one_of(field.kind, *_SAME_BYTES.get(field.kind, ())), field.label, field.oneof)
            for field in kept
        ]
        read[name] = [*kept, *files.fields([] if name == "Inner" else ["Inner"], 20)]
    return Pair(written, files.text(read, draw(st.integers(1, 5))), bodies)
