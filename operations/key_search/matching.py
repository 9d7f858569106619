"""Search for records that hold requested keys, by the fields from which key columns are made.

Records are messages of topics (archived or rejected) and rows between stages. A rule lists, for one topic or channel,
the fields from which each key column of one table is made. A record holds a key of several columns if it holds the
value of each column. If no field of a column has a value in the record, the column's value is null.

Binary fields are parsed: JSON, Arrow, and formats that a `MessageDecoder` decodes by their schema. A record that cannot
be parsed completely is counted as undecided, unless one of its parsed fields holds a key. Most records hold no key: if
a record contains no key's text and no JSON escape, the search only checks that it is valid JSON.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import product
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SlackwaterError
from ...snapshot.query.fields import (
    Field,
    Leaves,
    RowNumbers,
    UnreadableJson,
    column_leaves,
    decode_text,
    json_leaves,
    parse_json,
    record_leaves,
)
from ...store.sst.hashing import one_array
from .values import NULL, WINDOW, KeyColumn, python_values

Mask = npt.NDArray[np.bool_]
_FRACTION = re.compile(r"-?[0-9]+(\.[0-9]*([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
"""Pattern of numbers that can be written in several ways, such as `1.0` and `1e0`."""
_MAX_NEEDLES = 100
"""Maximum number of keys whose bytes are searched in records before the records are parsed."""
_ARROW = b"\xff\xff\xff\xff"
"""First bytes of an Arrow stream; no text begins with them."""
_MAGIC = b"\x00"
"""First byte of a schema registry message; no text begins with it."""


class MessageDecoder(Protocol):
    """Decoder of messages by their schemas; the implementation is in `pipeline`."""

    def decoded(self, how: str, messages: pa.Array, /) -> tuple[list[tuple[pa.Array, RowNumbers]], Mapping[int, str]]:
        """Decode messages of the format `how`, a value of `FieldSource.format`.

        Returns two values: arrays of decoded values, each with the positions of its messages; and the errors, by a
        message's position. Raises `SlackwaterError` if no message can be decoded, for example while a registry is
        unavailable.
        """


@dataclass(frozen=True, slots=True)
class FieldComparison:
    """Comparison of one field of a record with one column of a key."""

    field: Field
    text: str
    format: str = ""
    functions: tuple[str, ...] = ()
    """SQL functions that the program applies to the field; the result is the key column."""
    key_functions: tuple[str, ...] = ()
    """SQL functions that are applied to the key before it is compared with the field."""
    unknown_function: str = ""
    """Function from field to key column that this module cannot compute; empty if there is none."""

    def is_by_window(self, column: KeyColumn) -> bool:
        """Tell if the key column has the time windows of the field's values."""
        return column.kind == WINDOW and (*self.functions, *self.key_functions) == (WINDOW,)

    def undecidable(self, column: KeyColumn) -> str:
        """Return why no value of the field can be compared with the key column; empty if values can be compared."""
        has_window = WINDOW in (*self.functions, *self.key_functions) and not self.is_by_window(column)
        if unknown := self.unknown_function or WINDOW * has_window:
            return f"through {unknown}"
        return "" if column.kind else f"as {column.values.type}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Fields of a topic or channel from which the keys of one table are made."""

    table: str
    columns: tuple[tuple[FieldComparison, ...], ...]
    """Fields for each key column; empty for a column with a constant value."""


@dataclass(frozen=True)
class KeyRows:
    """Requested keys of one table."""

    rows: pa.Table
    has_all_spellings: bool = False
    """True if the user has listed all other spellings that the program turns into these keys."""

    @cached_property
    def columns(self) -> tuple[KeyColumn, ...]:
        return tuple(KeyColumn(column.combine_chunks()) for column in self.rows.columns)

    @cached_property
    def combined(self) -> Mapping[tuple[int, ...], int]:
        """Row number of each key, by the tuple of the key's value codes."""
        codes = zip(*(column.key_codes for column in self.columns), strict=True)
        return {key: number for number, key in enumerate(codes)}

    def needles(self, rule: "Rule") -> tuple[bytes, ...] | None:
        """Return byte strings of which every record with a key contains at least one; None if unknown.

        A record with escaped characters may hold a key without containing these bytes.
        """
        if any(
            comparison.functions or comparison.key_functions or comparison.unknown_function
            for comparisons in rule.columns
            for comparison in comparisons
        ):
            return None
        for comparisons, column in zip(rule.columns, self.columns, strict=True):
            is_text = column.kind == "text" and NULL not in column.key_codes and len(column.texts) <= _MAX_NEEDLES
            if comparisons and is_text and not any(_FRACTION.fullmatch(text) for text in column.texts):
                return tuple(text.encode(errors="surrogateescape") for text in column.texts)
        return None


@dataclass
class Matches:
    """Flags of the records that hold a requested key, and numbers of matching and of undecided records."""

    mask: Mask
    fields: Counter[str] = field(default_factory=Counter)
    unproved: Counter[str] = field(default_factory=Counter)
    keys: dict[int, dict[str, set[int]]] = field(default_factory=dict)
    """Row numbers of the keys (in `KeyRows`) that a record holds: by the record's row number, then by table."""


@dataclass
class _Parsed:
    """Parsed values of a column: JSON documents and structs, with their row indexes."""

    documents: list[tuple[int, Any]] = field(default_factory=list)
    structs: list[tuple[pa.Array, RowNumbers]] = field(default_factory=list)


@dataclass
class _Documents:
    """Cache of the parsed values of some records."""

    rows: pa.Table
    formats: MessageDecoder | None
    needles: str | None
    undecodable: dict[int, str] = field(default_factory=dict)
    _parsed_columns: dict[tuple[str, str], "_Parsed"] = field(default_factory=dict)

    def values_of(self, comparison: FieldComparison) -> Iterator[Leaves | tuple[int, Any]]:
        where, how = comparison.field, comparison.format
        for column in record_leaves(self.rows, Field(where.column) if how else where):
            if not (column.remaining_steps or how):
                yield column
                continue
            steps = where.steps if how else column.remaining_steps
            place, is_whole = (where.column, how), steps == where.steps
            read = self._parsed_columns.get(place) if is_whole else None
            if read is None:
                read = self._parse_column(column, how)
                if is_whole:
                    self._parsed_columns[place] = read
            yield from self._json_values(read.documents, steps, comparison)
            for values, rows in read.structs:
                for nested in column_leaves(values, steps, rows):
                    if nested.remaining_steps:
                        texts = zip(nested.rows.tolist(), map(decode_text, nested.values.to_pylist()), strict=True)
                        yield from self._json_values(texts, nested.remaining_steps, comparison)
                    else:
                        yield nested

    def _json_values(
        self, documents: Iterable[tuple[int, Any]], steps: Sequence[str], comparison: FieldComparison
    ) -> Iterator[tuple[int, Any]]:
        for row, document in documents:
            try:
                for value in json_leaves(document, steps):
                    yield row, value
            except UnreadableJson:
                self.undecodable[row] = f"the text is not JSON, so it has no field {comparison.text}"

    def _parse_column(self, column: Leaves, how: str) -> "_Parsed":
        read = _Parsed()
        data = column.values.cast(pa.binary())
        is_format = np.asarray(pc.starts_with(data, _MAGIC)) if how else np.zeros(len(data), np.bool_)
        if is_format.any():
            at = np.flatnonzero(is_format)
            read.structs.extend(self._decode_format(data.take(pa.array(at)), column.rows[at], how))
        remaining = np.flatnonzero(~is_format)
        if remaining.size:
            data, rows = data.take(pa.array(remaining)), column.rows[remaining]
            candidates = self._candidates(data)
            for row, value, may in zip(rows.tolist(), data.to_pylist(), candidates.tolist(), strict=True):
                if may or not _is_json(value):
                    self._parse_value(row, value, read)
        return read

    def _candidates(self, data: pa.Array) -> Mask:
        if self.needles is None:
            return np.ones(len(data), np.bool_)
        return np.asarray(pc.match_substring_regex(data, self.needles))

    def _parse_value(self, row: int, value: bytes, read: "_Parsed") -> None:
        if not value:
            return
        if value.startswith(_ARROW) and (sent := message_rows(value)) is not None:
            values = pa.StructArray.from_arrays([*map(one_array, sent.columns)], names=sent.column_names)
            read.structs.append((values, np.full(sent.num_rows, row)))
            return
        try:
            document, whole = parse_json(value)
            read.documents.append((row, document))
        except UnreadableJson:
            whole = False
        if not whole:
            binary = value.startswith(_MAGIC)
            self.undecodable[row] = "bytes of an unknown schema" if binary else "neither JSON nor of a known schema"

    def _decode_format(self, data: pa.Array, rows: RowNumbers, how: str) -> list[tuple[pa.Array, RowNumbers]]:
        why = "messages of a schema registry cannot be decoded here"
        if self.formats is not None:
            try:
                parts, bad = self.formats.decoded(how, data)
            except SlackwaterError as error:
                why = error.sentence
            else:
                self.undecodable |= {int(rows[at]): error_text for at, error_text in bad.items()}
                return [(values, rows[at]) for values, at in parts]
        self.undecodable |= dict.fromkeys(rows.tolist(), why)
        return []


def match_records(
    rows: pa.Table, rules: Sequence[Rule], keys: Mapping[str, KeyRows], formats: MessageDecoder | None = None
) -> Matches:
    matches = Matches(np.zeros(rows.num_rows, np.bool_))
    if not rows.num_rows or not rules:
        return matches
    documents = _Documents(rows, formats, _needles(rules, keys))
    unproved: dict[int, str] = {}
    for rule in rules:
        _match_rule(documents, rule, keys[rule.table], matches, unproved)
    for row, why in (documents.undecodable | unproved).items():
        if not matches.mask[row]:
            matches.unproved[why] += 1
    return matches


def filter_candidates(rows: pa.Table, rules: Sequence[Rule], keys: Mapping[str, KeyRows]) -> pa.Table:
    """Return the records of a topic that may hold a requested key, judged by their bytes; all records if unclear."""
    pattern = _needles(rules, keys)
    columns = {comparison.field.column for rule in rules for some in rule.columns for comparison in some}
    if pattern is None or not columns <= {"key", "value"}:
        return rows
    masks = (pc.fill_null(pc.match_substring_regex(rows[name], pattern), False) for name in sorted(columns))
    return rows.filter(reduce(pc.or_, masks)) if columns else rows


def _match_rule(documents: _Documents, rule: Rule, keys: KeyRows, matches: Matches, unproved: dict[int, str]) -> None:
    count = documents.rows.num_rows
    label = ", ".join(" or ".join(comparison.text for comparison in some) for some in rule.columns if some)
    columns = [
        _ColumnValues.find(documents, comparisons, column, label if len(keys.columns) > 1 else "")
        for comparisons, column in zip(rule.columns, keys.columns, strict=True)
    ]
    holds_key = np.zeros(count, np.bool_)
    for row, numbers in _match_combined(columns, keys):
        holds_key[row] = True
        matches.keys.setdefault(row, {}).setdefault(rule.table, set()).update(numbers)
    uncounted = holds_key & ~matches.mask
    for text, is_match in (item for column in columns for item in column.by_field.items()):
        # A record counts once.
        if new := int((is_match & uncounted).sum()):
            matches.fields[text] += new
        uncounted &= ~is_match
    matches.mask |= holds_key
    for column in () if keys.has_all_spellings else columns:
        other_values = [np.isin(np.arange(count), [*other.values]) for other in columns if other is not column]
        for has_value, path in column.undecided:
            for row in np.flatnonzero(np.logical_and.reduce([has_value, *other_values])).tolist():
                unproved.setdefault(row, f"{path[0]} leads to {rule.table} {path[1]}")


@dataclass(frozen=True, slots=True)
class _ColumnValues:
    """For each record, the values of one key column that the record holds."""

    values: dict[int, set[int]]
    """Codes of the values, as in `KeyColumn.key_codes`, by row number of the record."""
    by_field: dict[str, Mask]
    undecided: list[tuple[Mask, tuple[str, str]]]

    @classmethod
    def find(cls, documents: _Documents, comparisons: Sequence[FieldComparison], column: KeyColumn, label: str) -> Self:
        count = documents.rows.num_rows
        if not comparisons:
            return cls({row: {*column.key_codes} for row in range(count)}, {}, [])
        values, filled = dict[int, set[int]](), np.zeros(count, np.bool_)
        by_field, undecided = dict[str, Mask](), list[tuple[Mask, tuple[str, str]]]()
        for comparison in comparisons:
            is_match, has_value, is_unclear = (np.zeros(count, np.bool_) for _ in range(3))
            why = comparison.undecidable(column)
            for rows, hits, unclear in _values_in(documents, comparison, column):
                has_value[rows] = True
                is_unclear[rows if why else unclear] = True
                for row, numbers in hits:
                    is_match[row] = True
                    values.setdefault(row, set()).update(numbers)
            text = label or comparison.text
            by_field[text] = by_field.get(text, np.zeros(count, np.bool_)) | is_match
            filled |= has_value
            if is_unclear.any():
                undecided.append((is_unclear, (comparison.text, why or "through a value that is no time")))
        if NULL in column.key_codes:
            for row in np.flatnonzero(~filled).tolist():
                values.setdefault(row, set()).add(NULL)
        return cls(values, by_field, undecided)


def _match_combined(columns: Sequence[_ColumnValues], keys: KeyRows) -> Iterator[tuple[int, set[int]]]:
    """Yield the records that hold a key, by row number, each with the row numbers of its keys."""
    for row in set.intersection(*(set(column.values) for column in columns)) if columns else ():
        combinations = product(*(column.values[row] for column in columns))
        if numbers := {keys.combined[key] for key in combinations if key in keys.combined}:
            yield row, numbers


_Hits = list[tuple[int, set[int]]]
"""Rows with a key's value, each with the codes of the values."""


def _values_in(
    documents: _Documents, comparison: FieldComparison, column: KeyColumn
) -> Iterator[tuple[RowNumbers | list[int], _Hits, list[int]]]:
    """Yield the rows in which the field has a value, those with a key's value, and those whose value is unclear."""
    if comparison.is_by_window(column):
        yield _windows_in(documents, comparison, column)
        return
    functions = () if WINDOW in comparison.functions else comparison.functions
    converted = column.apply_functions(() if WINDOW in comparison.key_functions else comparison.key_functions)
    originals: dict[int, set[int]] = {}
    for code, original in zip(converted.key_codes, column.key_codes, strict=True):
        originals.setdefault(code, set()).add(original)
    filled, hits = list[int](), list[tuple[int, set[int]]]()
    for values in documents.values_of(comparison):
        if isinstance(values, Leaves):
            codes = converted.codes_of(values.values, functions)
            at = np.flatnonzero(codes >= 0)
            of_rows = map(originals.__getitem__, codes[at].tolist())
            yield values.rows, [*zip(values.rows[at].tolist(), of_rows, strict=True)], []
        else:
            row, value = values
            filled.append(row)
            if (code := converted.code_of(value, functions)) >= 0:
                hits.append((row, originals[code]))
    yield filled, hits, []


def _windows_in(
    documents: _Documents, comparison: FieldComparison, column: KeyColumn
) -> tuple[list[int], _Hits, list[int]]:
    filled, hits, unclear = list[int](), _Hits(), list[int]()
    for values in documents.values_of(comparison):
        if isinstance(values, Leaves):
            pairs = [*zip(values.rows.tolist(), python_values(values.values), strict=True)]
        else:
            pairs = [values]
        for row, value in pairs:
            filled.append(row)
            if (codes := column.windows_with(value)) is None:
                unclear.append(row)
            elif codes:
                hits.append((row, codes))
    return filled, hits, unclear


def _needles(rules: Sequence[Rule], keys: Mapping[str, KeyRows]) -> str | None:
    needles: list[bytes] = []
    for rule in rules:
        if (needles_of_rule := keys[rule.table].needles(rule)) is None:
            return None
        needles += needles_of_rule
    return "|".join(["\\\\", *map(_as_bytes, needles)])


def _as_bytes(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _is_json(value: bytes) -> bool:
    try:
        msgspec.json.decode(value, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return not value
    return True


def message_rows(value: bytes) -> pa.Table | None:
    """Return the rows of a message of a repartition topic; None if the bytes are no such message."""
    if not value.startswith(_ARROW):
        return None
    try:
        with pa.ipc.open_stream(value) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError):
        return None  # other bytes with the same beginning
