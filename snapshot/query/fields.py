"""Fields of records: how they are written, and the values that they have in parsed JSON and in Arrow's columns.

`$.user.id` is a field of a record's value, `who` the same as `$.who`; `key`, `key.id` and `headers.NAME` are of its
key and headers, `value` is the value as a whole. Of rows between stages the first name is a column. Arrays are
transparent: `$.users.id` is the id of any element, as `$.users[*].id` and `$.users[0].id` are. Text that has JSON is
parsed where a field goes on below it. `*` is any property, `~` the names of all properties. A name with other
characters stands in brackets: `$['user.id']`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Usage

RECORD = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType")
"""What a name at the beginning means of a topic's record; any other is a field of its value."""
ANY, NAMES = "*", "~"
_STEP = re.compile(r"\.?([^.\[\]'$]+)|\['((?:[^'\\]|\\.)*)'\]|\[(?:\*|\d+)\]")
_PLAIN = re.compile(r"[^.\[\]'$\\]+")
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a record: one of its columns, and the way on from there."""

    column: str
    steps: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, *, of_row: bool = False) -> "Field":
        """From its text; `of_row` for rows between stages. Raises `Usage` where it is no field."""
        rest, at, steps = text.removeprefix("$"), 0, list[str]()
        while at < len(rest):
            step = _STEP.match(rest, at)
            if step is None:
                break
            if step[1] or step[2]:
                steps.append(step[1] or re.sub(r"\\(.)", r"\1", step[2]))
            at = step.end()
        if at < len(rest) or not (steps or text == "$"):
            raise Usage(f"{text!r} is no field of a record", hint="as who, $.user.id, key, headers.who or $['user.id']")
        if of_row and steps:
            return cls(steps[0], tuple(steps[1:]))
        if text.startswith("$") or steps[0] not in RECORD:
            return cls("value", tuple(steps))
        return cls(steps[0], tuple(steps[1:]))

    def text(self, *, of_row: bool = False) -> str:
        """As it is written."""
        below = "".join(f".{step}" if _PLAIN.fullmatch(step) else _bracketed(step) for step in self.steps)
        if of_row or self.column != "value" or not self.steps:
            return f"{self.column if _PLAIN.fullmatch(self.column) else _bracketed(self.column)}{below}"
        return f"${below}"

    def below(self, steps: Sequence[str]) -> "Field":
        """The field further down."""
        return Field(self.column, (*self.steps, *steps))


def _bracketed(step: str) -> str:
    escaped = re.sub(r"(['\\])", r"\\\1", step)
    return f"['{escaped}']"


class Properties(list[tuple[str, Any]]):
    """A JSON object: its properties in their order, names that come twice among them."""


class Number(str):
    """A number of JSON, as it is written."""

    __slots__ = ()


class Unreadable(Exception):
    """Bytes or text that cannot be parsed."""


_JSON = json.JSONDecoder(
    object_pairs_hook=Properties, parse_int=Number, parse_float=Number, parse_constant=Number, strict=False
)
_BLANK = re.compile("[ \\t\\r\\n\ufeff]*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)


def as_text(data: bytes | str) -> str:
    """Bytes as text of UTF-8; what is none becomes lone surrogates."""
    return data.decode(errors="surrogateescape") if isinstance(data, bytes) else data


def parsed(data: bytes | str) -> tuple[Any, bool]:
    """What JSON says, as lists, `Properties`, `Number` and plain values; and whether all of it could be parsed.

    Quotes may be single ones, and several values may follow each other, as Spark's own functions take them. Raises
    `Unreadable` where not even a first value can be parsed.
    """
    text = as_text(data)
    found, whole = _values(text)
    if not whole and "'" in text:
        again, is_whole = _values(_QUOTED.sub(_with_double_quotes, text))
        found, whole = (again, is_whole) if is_whole or len(again) > len(found) else (found, whole)
    if not found:
        raise Unreadable
    return (found[0] if len(found) == 1 else found), whole


def _values(text: str) -> tuple[list[Any], bool]:
    """The values that follow each other in a text, up to the first that is none; and whether there is no such."""
    found, at = list[Any](), 0
    try:
        while (blank := _BLANK.match(text, at)) and (at := blank.end()) < len(text):
            value, at = _JSON.raw_decode(text, at)
            found.append(value)
    except (ValueError, RecursionError):
        return found, False
    return found, True


def _with_double_quotes(quoted: re.Match[str]) -> str:
    if quoted[1] is None:
        return quoted[0]
    inside = quoted[1].replace("\\'", "'")
    return '"' + re.sub(r'(?<!\\)"', '\\"', inside) + '"'


def leaves_of(value: Any, steps: Sequence[str]) -> Iterator[Any]:
    """The values of a field in parsed JSON: text, numbers, booleans; no nulls, no objects.

    Raises `Unreadable` for text that the field goes on below, and that begins as JSON and is none.
    """
    if isinstance(value, list) and not isinstance(value, Properties):
        for each in value:
            yield from leaves_of(each, steps)
    elif isinstance(value, Properties):
        if not steps:
            return
        step, rest = steps[0], steps[1:]
        for name, below in value:
            if step == NAMES:
                yield from leaves_of(name, rest)
            elif step in (name, ANY):
                yield from leaves_of(below, rest)
    elif steps and isinstance(value, str) and not isinstance(value, Number):
        # Other text has no fields.
        if value.lstrip()[:1] in ("{", "[", '"', "'"):
            below, whole = parsed(value)
            yield from leaves_of(below, steps)
            if not whole:
                raise Unreadable
    elif not steps and value is not None:
        yield value


def all_leaves(value: Any) -> Iterator[Any]:
    """All text of parsed JSON, names of properties too, also of JSON in text."""
    if isinstance(value, Properties):
        for name, below in value:
            yield name
            yield from all_leaves(below)
    elif isinstance(value, list):
        for each in value:
            yield from all_leaves(each)
    elif isinstance(value, str) and not isinstance(value, Number):
        yield value
        if value[:1] in ("{", "["):
            try:
                yield from all_leaves(parsed(value)[0])
            except Unreadable:
                return


@dataclass(frozen=True, slots=True)
class Leaves:
    """The values of a field in some records, and the record of each: its place."""

    values: pa.Array
    """Without nulls."""
    rows: Rows
    below: tuple[str, ...] = ()
    """Where the field goes on in text or bytes that stand there; empty where these are its values."""


def one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece; copied only where it has several, or none."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def leaves(values: pa.Array | pa.ChunkedArray, steps: Sequence[str], rows: Rows | None = None) -> Iterator[Leaves]:
    """The values of a field of columns, from a column on."""
    values = one_array(values)
    rows = np.arange(len(values)) if rows is None else rows
    if values.null_count:
        there = np.flatnonzero(np.asarray(values.is_valid()))
        values, rows = values.take(pa.array(there)), rows[there]
    kind = values.type
    if not len(values):
        return
    if pa.types.is_dictionary(kind):
        yield from leaves(values.dictionary_decode(), steps, rows)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from leaves(pc.list_flatten(values), steps, rows[np.asarray(pc.list_parent_indices(values))])
    elif pa.types.is_map(kind):
        entries = values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        yield from _of_entries(entries, steps, rows)
    elif pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if steps and steps[0] == NAMES:
            for name in names:
                yield from leaves(pa.repeat(name, len(values)), steps[1:], rows)
        for at, name in enumerate(names if steps else ()):
            if steps[0] in (name, ANY):
                yield from leaves(pc.struct_field(values, [at]), steps[1:], rows)
    elif not steps or is_text(kind):
        yield Leaves(values, rows, tuple(steps))


def all_columns(values: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """All text and bytes of a column, at any depth, without nulls."""
    values = one_array(values)
    kind = values.type
    if is_text(kind):
        yield values.drop_null()
    elif pa.types.is_dictionary(kind):
        yield from all_columns(values.dictionary_decode())
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            yield from all_columns(part)
    elif pa.types.is_map(kind):
        there = values.drop_null()
        yield from all_columns(there.keys)
        yield from all_columns(there.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from all_columns(pc.list_flatten(values))


def _of_entries(entries: pa.Array, steps: Sequence[str], rows: Rows) -> Iterator[Leaves]:
    """The values of a field of a map, or of a record's headers: lists of names and values."""
    if not steps:
        return
    parents, flat = np.asarray(pc.list_parent_indices(entries)), pc.list_flatten(entries)
    names, values = pc.struct_field(flat, [0]), pc.struct_field(flat, [1])
    if steps[0] == NAMES:
        yield from leaves(names, steps[1:], rows[parents])
        return
    if steps[0] != ANY:
        chosen = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(names.cast(pa.string()), steps[0]), False)))
        values, parents = values.take(pa.array(chosen)), parents[chosen]
    yield from leaves(values, steps[1:], rows[parents])


def of_record(rows: pa.Table, field: Field) -> Iterator[Leaves]:
    """The values of a field of records that have its column, at any depth; none where they have not."""
    if field.column not in rows.column_names:
        return
    column = rows[field.column]
    if field.column == "headers" and pa.types.is_list(column.type):
        entries = one_array(column)
        there = np.flatnonzero(np.asarray(entries.is_valid()))
        yield from _of_entries(entries.take(pa.array(there)), field.steps or (ANY,), there)
    else:
        yield from leaves(column, field.steps)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text or bytes."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests) or bool(pa.types.is_fixed_size_binary(kind))
