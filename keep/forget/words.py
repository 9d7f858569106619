"""In which records a key stands that are no rows of its table: those in flight, rejected ones, the input archive's.

A row of a table is known by its key, these by what stands in them. For each of a key's values:

- Text, and bytes, are looked for in all that is text or bytes: a record's key, value and headers, and each such column.
  In text they are found as whole words: `user-7` is neither in `user-77` nor in `xuser-7`. In what is not text, as
  Avro or Protobuf, where lengths and other bytes stand between the values, they are found wherever they stand. JSON is
  searched for the word as JSON escapes it, too.
- Anything else, such as a number or a time, is found where it can be told: as a record's Kafka key, in its text or, for
  whole numbers, in the four or eight bytes that Kafka's serialisers write; in JSON as the value of a field that is
  called like the key's column; in a column of that name. The digits alone stand in too many records.

A key of several columns stands in a record in which each of its values does; nulls and empty values are passed over.

Of records that are messages between stages, compressed Arrow, the rows are looked into one by one: as bytes they would
hide what they have; and a message has rows of many keys, which stay.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
_AT_ONCE = 200
"""Words that one regular expression looks for."""
_FEW = 20
"""So many words are looked for one by one."""


@dataclass(frozen=True, slots=True)
class Words:
    """One key, as records have it."""

    texts: tuple[tuple[bytes, ...], ...]
    """Of each value that is text or bytes, how it may be written."""
    others: tuple[tuple[str, Any], ...]
    """Column and value of the others."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Words":
        """From a key's values, by column."""
        there = {name: value for name, value in row.items() if value is not None and value not in ("", b"")}
        texts = tuple(_spellings(value) for value in there.values() if isinstance(value, str | bytes))
        return cls(texts, tuple((name, value) for name, value in there.items() if not isinstance(value, str | bytes)))

    @property
    def is_told(self) -> bool:
        """Whether anything can be looked for."""
        return bool(self.texts or self.others)


def holding(rows: pa.Table, words: Sequence[Words], *, key: str = "") -> Mask:
    """Which rows hold any of these keys. `key` is the column that has the records' Kafka keys, if one does."""
    found = np.zeros(rows.num_rows, np.bool_)
    texts = [each for each in words if each.texts]
    numbers = [each for each in words if each.others and not each.texts]
    if len(texts) > _FEW and rows.num_rows:
        # Most records hold none of them.
        for start in range(0, len(texts), _AT_ONCE):
            group = texts[start : start + _AT_ONCE]
            some = np.flatnonzero(_with_any([word for each in group for word in each.texts[0]], rows) & ~found)
            if some.size:
                found[some] = _holding(rows.take(pa.array(some)), group, key)
        texts = []
    if len(numbers) > _FEW and rows.num_rows:
        by_name: dict[str, dict[bytes, Any]] = {}
        for (name, value), *more in (each.others for each in numbers):
            if not more and _TOKEN.fullmatch(text := _text(value)):
                by_name.setdefault(name, {})[text] = value
        leaves = list(_leaves(rows))
        for name, values in by_name.items():
            found |= _with_value(name, values, rows, leaves, key)
        numbers = [each for each in numbers if len(each.others) > 1 or not _TOKEN.fullmatch(_text(each.others[0][1]))]
    return found | _holding(rows, [*texts, *numbers], key)


def _holding(rows: pa.Table, words: Sequence[Words], key: str) -> Mask:
    found = np.zeros(rows.num_rows, np.bool_)
    leaves = list(_leaves(rows)) if rows.num_rows and words else []
    for each in words if rows.num_rows else ():
        mine = np.ones(rows.num_rows, np.bool_)
        for spellings in each.texts:
            mine &= _with_text(spellings, leaves, rows.num_rows)
        for name, value in each.others:
            mine &= _with_value(name, {_text(value): value}, rows, leaves, key)
        found |= mine
    return found


def _with_any(words: Sequence[bytes], rows: pa.Table) -> Mask:
    """Which rows have any of these bytes anywhere."""
    found, leaves = np.zeros(rows.num_rows, np.bool_), list(_leaves(rows))
    for start in range(0, len(words), _AT_ONCE):
        some = words[start : start + _AT_ONCE]
        pattern = "|".join("".join(f"\\x{byte:02x}" for byte in word) for word in some)
        for leaf in leaves:
            matches = pc.fill_null(pc.match_substring_regex(leaf.values, pattern), False)
            found[leaf.rows[np.asarray(matches)]] = True
    return found


def _with_text(spellings: Sequence[bytes], leaves: Sequence["_Leaf"], count: int) -> Mask:
    found = np.zeros(count, np.bool_)
    for leaf in leaves:
        for word in spellings:
            at = np.flatnonzero(leaf.having(word))
            for place in at.tolist():
                row = leaf.rows[place]
                found[row] = found[row] or _stands_in(word, leaf.values[place].as_py())
    return found


def _with_value(name: str, values: Mapping[bytes, Any], rows: pa.Table, leaves: Sequence["_Leaf"], key: str) -> Mask:
    """Which rows have one of these values, by their texts, of the column `name` of the key. Looks through them once."""
    found = np.zeros(rows.num_rows, np.bool_)
    if name in rows.column_names and not _is_bytes(rows.schema.field(name).type):
        with suppress(pa.ArrowException, TypeError):  # a column of another kind may have the name
            found |= np.asarray(pc.is_in(rows[name], pa.array(values.values()).cast(rows.schema.field(name).type)))
    if key:
        written = pa.array([word for value in values.values() for word in _as_kafka_key(value)], pa.binary())
        found |= np.asarray(pc.is_in(rows[key], written))
    # Of many numbers each is read, and looked up.
    told = _TOKEN.pattern if all(map(_TOKEN.fullmatch, values)) else b"|".join(map(re.escape, values))
    field = re.compile(rb'"' + re.escape(name.encode()) + rb'"\s*:\s*"?(' + told + rb")(?![0-9A-Za-z_.+-])")
    for leaf in leaves:
        for place in np.flatnonzero(leaf.having(f'"{name}"'.encode())).tolist():
            row = leaf.rows[place]
            found[row] = found[row] or any(each[1] in values for each in field.finditer(leaf.values[place].as_py()))
    return found


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column's text or bytes, wherever in it they stand, and the row of each."""

    values: pa.Array
    """Binary."""
    rows: npt.NDArray[np.int64]

    def having(self, word: bytes) -> Mask:
        """Which of them have these bytes anywhere."""
        return np.asarray(pc.fill_null(pc.match_substring(self.values, word), False))


def _leaves(rows: pa.Table) -> Iterator[_Leaf]:
    numbers = np.arange(rows.num_rows)
    for column in rows.columns:
        yield from _leaves_of(pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0), numbers)


def _leaves_of(values: pa.Array, rows: npt.NDArray[np.int64]) -> Iterator[_Leaf]:
    kind = values.type
    if _is_bytes(kind):
        yield _Leaf(values.cast(pa.binary()), rows)
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            yield from _leaves_of(part, rows)
    elif pa.types.is_map(kind):
        entries = values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        yield from _leaves_of(entries, rows)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parents = np.asarray(pc.list_parent_indices(values))
        yield from _leaves_of(pc.list_flatten(values), rows[parents])
    elif pa.types.is_dictionary(kind):
        yield from _leaves_of(values.dictionary_decode(), rows)


def _is_bytes(kind: pa.DataType) -> bool:
    is_one = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(each(kind) for each in is_one) or bool(pa.types.is_fixed_size_binary(kind))


_TOKEN = re.compile(rb"[0-9A-Za-z_.+-]+")
"""All that a number goes on with."""
_WORD = re.compile(rb"[0-9A-Za-z_\x80-\xff]")
_PLAIN = re.compile(rb"[ !#-.0-\[\]-~]+")
"""What JSON writes as it is."""
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def _stands_in(word: bytes, data: bytes) -> bool:
    """Whether a word stands in some bytes that have it: as a whole word in text, anywhere in what is none."""
    if not _is_text(data):
        return True
    at = data.find(word)
    while at >= 0:
        end = at + len(word)
        before, after = data[max(at - 1, 0) : at], data[end : end + 1]
        begins = not (_WORD.match(before) and _WORD.match(word))
        if begins and not (_WORD.match(after) and _WORD.match(word[-1:])):
            return True
        # Avro and Protobuf write a text's length before it, which may look like a letter.
        if before and before[0] in (len(word), 2 * len(word)):
            return True
        at = data.find(word, at + 1)
    return False


def _is_text(data: bytes) -> bool:
    if _CONTROL.search(data):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _spellings(value: str | bytes) -> tuple[bytes, ...]:
    """A text as UTF-8, and as JSON writes it, with and without what is beyond ASCII escaped; bytes as they are."""
    word = value.encode() if isinstance(value, str) else value
    if _PLAIN.fullmatch(word):
        return (word,)
    try:
        text = word.decode()
    except UnicodeDecodeError:
        return (word,)
    escaped = [json.dumps(text, ensure_ascii=only)[1:-1].encode() for only in (False, True)]
    return tuple(dict.fromkeys([word, *escaped, *(each.replace(b"/", b"\\/") for each in escaped)]))


def _text(value: Any) -> bytes:
    return (json.dumps(value) if isinstance(value, bool) else str(value)).encode()


def _as_kafka_key(value: Any) -> tuple[bytes, ...]:
    """How Kafka's serialisers, and most programs, write a value as a record's key."""
    numbers: list[bytes] = []
    if isinstance(value, int) and not isinstance(value, bool):
        sizes = (size for size in (4, 8) if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1))
        numbers = [value.to_bytes(size, "big", signed=True) for size in sizes]
    return (_text(value), *numbers)


_BEGINS = b"\xff\xff\xff\xff"
"""How a stream of Arrow begins, and no text."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""As stages write them."""


def taken(rows: pa.Table, words: Sequence[Words]) -> tuple[pa.Table, int]:
    """Records without those that hold a key, messages without such rows; how many records and rows went."""
    plain, messages = _split(rows)
    gone = holding(plain, words, key="key")
    count, values = int(gone.sum()), dict[int, bytes]()
    for at, sent in messages.items():
        mine = holding(sent, words)
        if mine.any() and not gone[at]:
            count += int(mine.sum())
            gone[at] = mine.all()
            values[at] = _encoded(sent.filter(pa.array(~mine)))
    if values:
        made = [values.get(at, value) for at, value in enumerate(rows["value"].to_pylist())]
        rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(made, pa.binary()))
    return (rows.filter(pa.array(~gone)) if gone.any() else rows), count


def holding_any(rows: pa.Table, words: Sequence[Words], *, key: str = "") -> bool:
    """Whether any of the rows holds a key, be they records or not."""
    plain, messages = _split(rows)
    masks: list[Mask] = [holding(plain, words, key=key), *(holding(sent, words) for sent in messages.values())]
    return any(bool(np.any(each)) for each in masks)


def _split(rows: pa.Table) -> tuple[pa.Table, dict[int, pa.Table]]:
    """The rows, with null for each value that is a message, and these messages' rows by place."""
    at = rows.schema.get_field_index("value")
    if at < 0 or not pa.types.is_binary(rows.schema.field(at).type):
        return rows, {}
    values = rows.column(at).to_pylist()
    found = {place: sent for place, value in enumerate(values) if value and (sent := _decoded(value)) is not None}
    if not found:
        return rows, {}
    left = [None if place in found else value for place, value in enumerate(values)]
    return rows.set_column(at, "value", pa.array(left, pa.binary())), found


def _decoded(value: bytes) -> pa.Table | None:
    if not value.startswith(_BEGINS):
        return None
    try:
        with pa.ipc.open_stream(value) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError):
        return None  # bytes that only begin so


def _encoded(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())
