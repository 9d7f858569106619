"""Records that hold keys: those in which a field that leads to the key's column equals the key.

Records are those of topics (archived or rejected ones) and rows between stages. A rule says of one place which fields
lead to which column of one table's key. A key of several columns stands in a record in which each of its values does;
a null stands where no field has a value.

Fields of bytes are found by parsing: JSON, Arrow, and what a `Formats` decodes by its schema. Records of which that
fails are counted as not proved, unless they hold a key anyway. Most records hold none: those that have a key's text
nowhere, and no escape of JSON, are only seen to be JSON.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SlackwaterError
from ...snapshot.query.fields import (
    Field,
    Leaves,
    Rows,
    Unreadable,
    as_text,
    leaves,
    leaves_of,
    of_record,
    one_array,
    parsed,
)
from .values import NULL, KeyColumn

Mask = npt.NDArray[np.bool_]
_FRACTION = re.compile(r"-?[0-9]+(\.[0-9]*([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
"""Text that a number may be cast to which is written otherwise."""
_FEW = 100
"""So many keys are looked for as bytes before anything is parsed."""
_ARROW = b"\xff\xff\xff\xff"
"""How a stream of Arrow begins, and no text."""
_MAGIC = b"\x00"
"""How messages of a schema registry begin, and no text."""


class Formats(Protocol):
    """Decodes messages by their schemas; `pipeline` implements it."""

    def decoded(self, how: str, messages: pa.Array, /) -> tuple[list[tuple[pa.Array, Rows]], Mapping[int, str]]:
        """Messages by a `FieldSource.format`: values and the place of each; and of those that are none, by place, why.

        Raises `SlackwaterError` where nothing can be, as when a registry is away.
        """


@dataclass(frozen=True, slots=True)
class FieldComparison:
    """A field whose values lead to a column of a key."""

    field: Field
    text: str
    """The field, as people write it."""
    format: str = ""
    """As `FieldSource.format`."""
    by: tuple[str, ...] = ()
    """Functions that make the column's value of the field's."""
    of_key: tuple[str, ...] = ()
    """Functions that make the field's value of the column's."""
    unknown: str = ""
    """The function between both that nobody can compute here; empty for none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The fields of a place by which its records hold keys of one table."""

    table: str
    columns: tuple[tuple[FieldComparison, ...], ...]
    """Of each column of the key; none where all records have the same value there."""


@dataclass(frozen=True)
class KeyRows:
    """Keys of one table."""

    rows: pa.Table
    complete: bool = False
    """Whether somebody has named the values from which the program makes these keys."""

    @cached_property
    def columns(self) -> tuple[KeyColumn, ...]:
        """Its columns' values."""
        return tuple(KeyColumn(column.combine_chunks()) for column in self.rows.columns)

    @cached_property
    def combined(self) -> frozenset[tuple[int, ...]]:
        """Each key by the numbers of its values."""
        return frozenset(zip(*(column.of_keys for column in self.columns), strict=True))

    def needles(self, rule: "Rule") -> tuple[bytes, ...] | None:
        """Bytes of which one stands in each record with a key, unless it is escaped; None where nobody can tell."""
        if any(each.by or each.of_key or each.unknown for some in rule.columns for each in some):
            return None
        for comparisons, column in zip(rule.columns, self.columns, strict=True):
            is_text = column.kind == "text" and NULL not in column.of_keys and len(column.texts) <= _FEW
            if comparisons and is_text and not any(_FRACTION.fullmatch(text) for text in column.texts):
                return tuple(text.encode(errors="surrogateescape") for text in column.texts)
        return None


@dataclass
class Matches:
    """Records that hold a key, those that may, and by which fields."""

    mask: Mask
    fields: dict[str, int] = field(default_factory=dict)
    """By field, how many records hold a key there."""
    unproved: dict[str, int] = field(default_factory=dict)
    """By the reason, how many others of which nobody can tell."""


@dataclass
class _Parsed:
    """The values of a column, parsed: JSON by record, and structs with the record of each."""

    documents: list[tuple[int, Any]] = field(default_factory=list)
    structs: list[tuple[pa.Array, Rows]] = field(default_factory=list)


@dataclass
class _Documents:
    """Parsed values of some records, each parsed once."""

    rows: pa.Table
    formats: Formats | None
    needles: str | None
    unread: dict[int, str] = field(default_factory=dict)
    """By record, why nobody can tell what it has."""
    _known: dict[tuple[str, str], "_Parsed"] = field(default_factory=dict)

    def of(self, comparison: FieldComparison) -> Iterator[Leaves | tuple[int, Any]]:
        """The field's values: those of columns, and those of parsed records, one by one."""
        where, how = comparison.field, comparison.format
        for found in of_record(self.rows, Field(where.column) if how else where):
            if not (found.below or how):
                yield found
                continue
            steps = where.steps if how else found.below
            place, is_whole = (where.column, how), steps == where.steps
            read = self._known.get(place) if is_whole else None
            if read is None:
                read = self._parsed(found, how)
                if is_whole:
                    self._known[place] = read
            for row, document in read.documents:
                try:
                    for value in leaves_of(document, steps):
                        yield row, value
                except Unreadable:
                    self.unread[row] = f"{comparison.text} goes on below text that is no JSON"
            for values, rows in read.structs:
                for each in leaves(values, steps, rows):
                    if each.below:
                        yield from self._below(each, comparison)
                    else:
                        yield each

    def _below(self, found: Leaves, comparison: FieldComparison) -> Iterator[tuple[int, Any]]:
        for row, text in zip(found.rows.tolist(), found.values.to_pylist(), strict=True):
            try:
                for value in leaves_of(as_text(text), found.below):
                    yield row, value
            except Unreadable:
                self.unread[row] = f"{comparison.text} goes on below text that is no JSON"

    def _parsed(self, found: Leaves, how: str) -> "_Parsed":
        read = _Parsed()
        data = found.values.cast(pa.binary())
        is_format = np.asarray(pc.starts_with(data, _MAGIC)) if how else np.zeros(len(data), np.bool_)
        if is_format.any():
            at = np.flatnonzero(is_format)
            read.structs.extend(self._of_format(data.take(pa.array(at)), found.rows[at], how))
        rest = np.flatnonzero(~is_format)
        if rest.size:
            data, rows = data.take(pa.array(rest)), found.rows[rest]
            candidates = self._candidates(data)
            for row, value, may in zip(rows.tolist(), data.to_pylist(), candidates.tolist(), strict=True):
                if may or not _is_json(value):
                    self._read(row, value, read)
        return read

    def _candidates(self, data: pa.Array) -> Mask:
        """Which values may hold a key: those with one of the needles, and those with an escape."""
        if self.needles is None:
            return np.ones(len(data), np.bool_)
        return np.asarray(pc.match_substring_regex(data, self.needles))

    def _read(self, row: int, value: bytes, read: "_Parsed") -> None:
        if not value:
            return
        if value.startswith(_ARROW) and (sent := message_rows(value)) is not None:
            read.structs.append(
                (pa.StructArray.from_arrays([*map(one_array, sent.columns)], names=sent.column_names), _all(row, sent))
            )
            return
        try:
            document, whole = parsed(value)
            read.documents.append((row, document))
        except Unreadable:
            whole = False
        if not whole:
            binary = value.startswith(_MAGIC)
            self.unread[row] = "bytes of an unknown schema" if binary else "neither JSON nor of a known schema"

    def _of_format(self, data: pa.Array, rows: Rows, how: str) -> list[tuple[pa.Array, Rows]]:
        why = "no way to decode messages of a schema registry here"
        if self.formats is not None:
            try:
                parts, bad = self.formats.decoded(how, data)
            except SlackwaterError as error:
                why = error.sentence
            else:
                self.unread |= {int(rows[at]): said for at, said in bad.items()}
                return [(values, rows[at]) for values, at in parts]
        self.unread |= dict.fromkeys(rows.tolist(), why)
        return []


def match(
    rows: pa.Table, rules: Sequence[Rule], keys: Mapping[str, KeyRows], formats: Formats | None = None
) -> Matches:
    """Look for keys in records of one place."""
    found = Matches(np.zeros(rows.num_rows, np.bool_))
    if not rows.num_rows or not rules:
        return found
    documents = _Documents(rows, formats, _needles(rules, keys))
    unproved: dict[int, str] = {}
    for rule in rules:
        _match_rule(documents, rule, keys[rule.table], found, unproved)
    for row, why in (documents.unread | unproved).items():
        if not found.mask[row]:
            found.unproved[why] = found.unproved.get(why, 0) + 1
    return found


def _match_rule(documents: _Documents, rule: Rule, keys: KeyRows, found: Matches, unproved: dict[int, str]) -> None:
    count = documents.rows.num_rows
    places = list[dict[int, set[int]]]()
    """Of each column the records with a value of a key, and which."""
    by_field: dict[str, Mask] = {}
    open_ones = list[tuple[int, Mask, str]]()
    label = ", ".join(" or ".join(each.text for each in some) for some in rule.columns if some)
    for number, (comparisons, wanted) in enumerate(zip(rule.columns, keys.columns, strict=True)):
        some, filled = dict[int, set[int]](), np.zeros(count, np.bool_)
        for each in comparisons:
            mine, there = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
            for rows, hits in _values_in(documents, each, wanted):
                there[rows] = True
                for row, meant in hits:
                    mine[row] = True
                    some.setdefault(row, set()).update(meant)
            text = each.text if len(keys.columns) == 1 else label
            by_field[text] = by_field.get(text, np.zeros(count, np.bool_)) | mine
            filled |= there
            if (each.unknown or not wanted.kind) and not keys.complete:
                how = f"through {each.unknown}" if each.unknown else f"as {wanted.values.type}"
                open_ones.append((number, there, f"{each.text} leads to {rule.table} {how}"))
        if not comparisons:
            some = {row: {*wanted.of_keys} for row in range(count)}
        elif NULL in wanted.of_keys:
            for row in np.flatnonzero(~filled).tolist():
                some.setdefault(row, set()).add(NULL)
        places.append(some)
    held = np.zeros(count, np.bool_)
    for row in set.intersection(*map(set, places)) if places else ():
        held[row] = len(places) == 1 or any(key in keys.combined for key in product(*(each[row] for each in places)))
    left = held & ~found.mask
    for text, mine in by_field.items():
        # A record counts once.
        if new := int((mine & left).sum()):
            found.fields[text] = found.fields.get(text, 0) + new
        left &= ~mine
    found.mask |= held
    for number, there, why in open_ones:
        others = [np.isin(np.arange(count), [*each]) for at, each in enumerate(places) if at != number]
        for row in np.flatnonzero(np.logical_and.reduce([there, *others])).tolist():
            unproved.setdefault(row, why)


def _values_in(
    documents: _Documents, comparison: FieldComparison, wanted: KeyColumn
) -> Iterator[tuple[Rows | list[int], list[tuple[int, set[int]]]]]:
    """The records that have values in a field; and those where one equals a key's, with the numbers of these."""
    made = wanted.made_by(comparison.of_key)
    meant: dict[int, set[int]] = {}
    for code, original in zip(made.of_keys, wanted.of_keys, strict=True):
        meant.setdefault(code, set()).add(original)
    there, hits = list[int](), list[tuple[int, set[int]]]()
    for found in documents.of(comparison):
        if isinstance(found, Leaves):
            codes = made.codes_of(found.values, comparison.by)
            at = np.flatnonzero(codes >= 0)
            yield found.rows, [*zip(found.rows[at].tolist(), map(meant.__getitem__, codes[at].tolist()), strict=True)]
        else:
            row, value = found
            there.append(row)
            if (code := made.code(value, comparison.by)) >= 0:
                hits.append((row, meant[code]))
    yield there, hits


def _needles(rules: Sequence[Rule], keys: Mapping[str, KeyRows]) -> str | None:
    """Return a regular expression of what each value that may hold a key has in it; None where any value may."""
    words: list[bytes] = []
    for rule in rules:
        if (mine := keys[rule.table].needles(rule)) is None:
            return None
        words += mine
    return "|".join(["\\\\", *map(_as_bytes, words)])


def _as_bytes(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _is_json(value: bytes) -> bool:
    try:
        msgspec.json.decode(value, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return not value
    return True


def _all(row: int, sent: pa.Table) -> Rows:
    return np.full(sent.num_rows, row)


def message_rows(value: bytes) -> pa.Table | None:
    """The rows of a message between stages; None of other bytes."""
    if not value.startswith(_ARROW):
        return None
    try:
        with pa.ipc.open_stream(value) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError):
        return None  # bytes that only begin so
