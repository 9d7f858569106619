"""The text of a key is parsed to the same key, for all types of columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.client.show.values import format_key_value
from slackwater.errors import Usage
from slackwater.snapshot.query.columns import parse_key
from slackwater.snapshot.query.key_text import NULL, format_key, format_value, parse_key_text, parse_value
from slackwater.store.sst.arrow_types import python_rows
from slackwater.store.versions.manifest import Column, Table

_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["", NULL, r"\\N", r"\n", "[1]", "-5", "null"]
)
_TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))  # noqa: DTZ001  with a zone below
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": _TEXT,
    "binary": st.binary(max_size=9),
    "bool": st.booleans(),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False),
    "decimal128(18, 2)": st.decimals(-(10**15), 10**15, places=2),
    "date32[day]": st.dates(),
    "timestamp[us]": _TIMES,
    "timestamp[us, tz=UTC]": _TIMES.map(lambda at: at.replace(tzinfo=UTC)),
    "struct<s: string, x: double, b: binary>": st.fixed_dictionaries(
        {"s": st.none() | _TEXT, "x": st.none() | st.floats(allow_nan=False), "b": st.none() | st.binary(max_size=3)}
    ),
}


@st.composite
def keys(draw: st.DrawFn) -> tuple[Table, tuple[Any, ...]]:
    """Draw a table with a key of one to three columns, and one key."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    table = Table(tuple(Column(f"k{n}", kind) for n, kind in enumerate(kinds)), (), 1)
    return table, tuple(draw(st.none() | KINDS[kind]) for kind in kinds)


@given(keys())
def test_the_text_of_any_key_parses_to_that_key(drawn: tuple[Table, tuple[Any, ...]]) -> None:
    table, key = drawn
    expected = list(python_rows(parse_key("t", table, key)))
    assert list(python_rows(parse_key("t", table, parse_key_text("t", table, format_key(key))))) == expected
    # As arguments of the command line: a word for each column, as tables show it.
    assert list(python_rows(parse_key("t", table, [parse_value(format_value(value)) for value in key]))) == expected
    shown = [format_key_value(value) for (row,) in [expected] for value in row.values()]
    assert list(python_rows(parse_key("t", table, [parse_value(str(word)) for word in shown]))) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, r"\N"),
        (r"\N", r"\\N"),
        (r"\\N", r"\\\N"),
        (r"\n", r"\n"),
        ("", ""),
        ("NULL", "NULL"),
        (-5, "-5"),
        (b"\x00\xff", "00ff"),
        (True, "true"),
        (date(2026, 11, 1), "2026-11-01"),
        (Decimal("0.10"), "0.10"),
        ({"s": None, "n": -1}, '{"s": null, "n": -1}'),
    ],
)
def test_keys_have_the_documented_texts(value: object, text: str) -> None:
    assert format_value(value) == text


def test_a_key_of_several_columns_is_a_json_array_with_null_for_null() -> None:
    table = Table((Column("a", "string"), Column("b", "int32")), (), 1)
    assert format_key((None, -5)) == "[null, -5]"
    assert json.loads(format_key((NULL, 1))) == [NULL, 1]
    with pytest.raises(Usage, match="a key of several columns is a JSON array"):
        parse_key_text("t", table, "x")
