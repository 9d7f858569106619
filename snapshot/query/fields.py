"""Fields of records: their syntax, and their values in parsed JSON and in Arrow columns.

`$.user.id` is a field of a record's value, and `who` is short for `$.who`. `key`, `key.id` and `headers.NAME` are
fields of the record's key and headers; `value` is the whole value. For rows between stages, the first name is a column.
Arrays are transparent: `$.users.id` is the id of every element, and so are `$.users[*].id` and `$.users[0].id`. A text
that contains JSON is parsed if the field's path continues into the text. `*` stands for any property, `~` for the names
of all properties. Names with other characters are in brackets: `$['user.id']`.
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
from ...store.sst.hashing import one_array

RECORD_COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType")
"""First names of a field that denote a part of a topic's record. Any other first name denotes a field of the value."""
ANY_PROPERTY, PROPERTY_NAMES = "*", "~"
_STEP = re.compile(r"\.?([^.\[\]'$]+)|\['((?:[^'\\]|\\.)*)'\]|\[(?:\*|\d+)\]")
_PLAIN = re.compile(r"[^.\[\]'$\\]+")
RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Field:
    """Path in a record: a column, and the steps within the column."""

    column: str
    steps: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, *, of_row: bool = False) -> "Field":
        """Parse a field; with `of_row`, a field of a row between stages. Raises `Usage` if `text` is no field."""
        path, at, steps = text.removeprefix("$"), 0, list[str]()
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                break
            if step[1] or step[2]:
                steps.append(step[1] or re.sub(r"\\(.)", r"\1", step[2]))
            at = step.end()
        if at < len(path) or not (steps or text == "$"):
            raise Usage(
                f"{text!r} is not a field of a record",
                hint="write it as who, $.user.id, key, headers.who or $['user.id']",
            )
        if of_row and steps:
            return cls(steps[0], tuple(steps[1:]))
        if text.startswith("$") or steps[0] not in RECORD_COLUMNS:
            return cls("value", tuple(steps))
        return cls(steps[0], tuple(steps[1:]))

    def text(self, *, of_row: bool = False) -> str:
        below = "".join(f".{step}" if _PLAIN.fullmatch(step) else _bracketed(step) for step in self.steps)
        if of_row or self.column != "value" or not self.steps:
            return f"{self.column if _PLAIN.fullmatch(self.column) else _bracketed(self.column)}{below}"
        return f"${below}"

    def child(self, steps: Sequence[str]) -> "Field":
        return Field(self.column, (*self.steps, *steps))


def _bracketed(step: str) -> str:
    escaped = re.sub(r"(['\\])", r"\\\1", step)
    return f"['{escaped}']"


class JsonObject(list[tuple[str, Any]]):
    """JSON object as a list of its properties, in their order and with duplicate names."""


class JsonNumber(str):
    """JSON number in its original spelling."""

    __slots__ = ()


class UnreadableJson(Exception):
    """Error for bytes or text that cannot be parsed as JSON."""


_JSON = json.JSONDecoder(
    object_pairs_hook=JsonObject, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber, strict=False
)
_BLANK = re.compile("[ \\t\\r\\n\ufeff]*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)


def decode_text(data: bytes | str) -> str:
    """Decode bytes as UTF-8; invalid bytes become lone surrogates."""
    return data.decode(errors="surrogateescape") if isinstance(data, bytes) else data


def parse_json(data: bytes | str) -> tuple[Any, bool]:
    """Parse JSON into lists, `JsonObject`, `JsonNumber` and plain values.

    Also returns True if all of the text was parsed.

    Accepts single quotes and several values in sequence, like Spark's functions. Raises `UnreadableJson` if not even
    the first value can be parsed.
    """
    text = decode_text(data)
    values, whole = _parse_values(text)
    if not whole and "'" in text:
        other_values, is_whole = _parse_values(_QUOTED.sub(_with_double_quotes, text))
        values, whole = (other_values, is_whole) if is_whole or len(other_values) > len(values) else (values, whole)
    if not values:
        raise UnreadableJson
    return (values[0] if len(values) == 1 else values), whole


def _parse_values(text: str) -> tuple[list[Any], bool]:
    """Parse concatenated JSON values up to the first invalid one. Also returns True if all values were valid."""
    values, at = list[Any](), 0
    try:
        while (blank := _BLANK.match(text, at)) and (at := blank.end()) < len(text):
            value, at = _JSON.raw_decode(text, at)
            values.append(value)
    except (ValueError, RecursionError):
        return values, False
    return values, True


def _with_double_quotes(quoted: re.Match[str]) -> str:
    if quoted[1] is None:
        return quoted[0]
    inside = quoted[1].replace("\\'", "'")
    return '"' + re.sub(r'(?<!\\)"', '\\"', inside) + '"'


def json_leaves(value: Any, steps: Sequence[str]) -> Iterator[Any]:
    """Yield the values of a field in parsed JSON: text, numbers and booleans, without nulls and objects.

    Raises `UnreadableJson` if a step leads into a string that looks like JSON but cannot be parsed.
    """
    if isinstance(value, list) and not isinstance(value, JsonObject):
        for element in value:
            yield from json_leaves(element, steps)
    elif isinstance(value, JsonObject):
        if not steps:
            return
        step, next_steps = steps[0], steps[1:]
        for name, below in value:
            if step == PROPERTY_NAMES:
                yield from json_leaves(name, next_steps)
            elif step in (name, ANY_PROPERTY):
                yield from json_leaves(below, next_steps)
    elif steps and isinstance(value, str) and not isinstance(value, JsonNumber):
        # Text that does not begin like JSON has no fields.
        if value.lstrip()[:1] in ("{", "[", '"', "'"):
            below, whole = parse_json(value)
            yield from json_leaves(below, steps)
            if not whole:
                raise UnreadableJson
    elif not steps and value is not None:
        yield value


def all_json_text(value: Any) -> Iterator[Any]:
    """Yield all text in parsed JSON: values, property names, and the text of JSON that is nested in a text."""
    if isinstance(value, JsonObject):
        for name, below in value:
            yield name
            yield from all_json_text(below)
    elif isinstance(value, list):
        for element in value:
            yield from all_json_text(element)
    elif isinstance(value, str) and not isinstance(value, JsonNumber):
        yield value
        if value[:1] in ("{", "["):
            try:
                yield from all_json_text(parse_json(value)[0])
            except UnreadableJson:
                return


@dataclass(frozen=True, slots=True)
class Leaves:
    """Values of a field in some records, and for each value the row number of its record."""

    values: pa.Array
    rows: RowNumbers
    remaining_steps: tuple[str, ...] = ()


def column_leaves(
    values: pa.Array | pa.ChunkedArray, steps: Sequence[str], rows: RowNumbers | None = None
) -> Iterator[Leaves]:
    """Yield the values of a field in a column. `steps` are the field's steps below the column."""
    values = one_array(values)
    rows = np.arange(len(values)) if rows is None else rows
    if values.null_count:
        valid = np.flatnonzero(np.asarray(values.is_valid()))
        values, rows = values.take(pa.array(valid)), rows[valid]
    kind = values.type
    if not len(values):
        return
    if pa.types.is_dictionary(kind):
        yield from column_leaves(values.dictionary_decode(), steps, rows)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from column_leaves(pc.list_flatten(values), steps, rows[np.asarray(pc.list_parent_indices(values))])
    elif pa.types.is_map(kind):
        entries = values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        yield from _map_leaves(entries, steps, rows)
    elif pa.types.is_struct(kind) and steps:
        names = [field.name for field in kind]
        if steps[0] == PROPERTY_NAMES:
            for name in names:
                yield from column_leaves(pa.repeat(name, len(values)), steps[1:], rows)
        for at, name in enumerate(names):
            if steps[0] in (name, ANY_PROPERTY):
                yield from column_leaves(pc.struct_field(values, [at]), steps[1:], rows)
    elif not steps or is_text(kind):
        yield Leaves(values, rows, tuple(steps))


def all_column_text(values: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield all text and bytes in a column, at any depth, without nulls."""
    values = one_array(values)
    kind = values.type
    if is_text(kind):
        yield values.drop_null()
    elif pa.types.is_dictionary(kind):
        yield from all_column_text(values.dictionary_decode())
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            yield from all_column_text(part)
    elif pa.types.is_map(kind):
        valid = values.drop_null()
        yield from all_column_text(valid.keys)
        yield from all_column_text(valid.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from all_column_text(pc.list_flatten(values))


def _map_leaves(entries: pa.Array, steps: Sequence[str], rows: RowNumbers) -> Iterator[Leaves]:
    if not steps:
        return
    parents, flat = np.asarray(pc.list_parent_indices(entries)), pc.list_flatten(entries)
    names, values = pc.struct_field(flat, [0]), pc.struct_field(flat, [1])
    if steps[0] == PROPERTY_NAMES:
        yield from column_leaves(names, steps[1:], rows[parents])
        return
    if steps[0] != ANY_PROPERTY:
        chosen = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(names.cast(pa.string()), steps[0]), False)))
        values, parents = values.take(pa.array(chosen)), parents[chosen]
    yield from column_leaves(values, steps[1:], rows[parents])


def record_leaves(rows: pa.Table, field: Field) -> Iterator[Leaves]:
    """Yield the values of a field of records, at any depth; no values if the records lack the field's column."""
    if field.column not in rows.column_names:
        return
    column = rows[field.column]
    if field.column == "headers" and pa.types.is_list(column.type):
        entries = one_array(column)
        valid = np.flatnonzero(np.asarray(entries.is_valid()))
        yield from _map_leaves(entries.take(pa.array(valid)), field.steps or (ANY_PROPERTY,), valid)
    else:
        yield from column_leaves(column, field.steps)


def is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests) or bool(pa.types.is_fixed_size_binary(kind))
