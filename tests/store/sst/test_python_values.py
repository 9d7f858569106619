from datetime import UTC, date, datetime, time

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.store.sst.arrow_types import python_rows, python_values

INT32 = st.integers(-(2**31) + 1, 2**31 - 1)
INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
YEAR_55840 = 1_700_000_000_000
"""Milliseconds of a day in 2023, in seconds."""


def numpys(text: str) -> str:
    """NumPy's way to write a time, in Python's: fractions of none or six digits, years of four or more."""
    if text.startswith("-"):
        year, _, rest = text[1:].partition("-")
        text = f"-{year:0>4}-{rest}"
    whole, _, fraction = text.replace("T", " ").partition(".")
    return f"{whole}.{fraction.ljust(6, '0')}" if fraction.strip("0") else whole


@given(st.lists(INT32 | st.integers(-800_000, 3_000_000)))
def test_every_day_is_the_day_that_numpy_says(days: list[int]) -> None:
    found = python_values(pa.array(days, pa.int32()).cast(pa.date32()))
    assert list(map(str, found)) == [numpys(str(np.datetime64(day, "D"))) for day in days]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@given(st.lists(INT64 | st.integers(-(10**15), 10**15)))
def test_every_time_is_the_time_that_numpy_says(unit: str, ticks: list[int]) -> None:
    expected = [numpys(str(np.datetime64(tick, unit))) for tick in ticks]
    column = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit))
    assert list(map(str, python_values(column))) == expected
    zoned = [f"{text}+00:00" for text in expected]
    assert list(map(str, python_values(column.cast(pa.timestamp(unit, "UTC"))))) == zoned


def test_far_times_with_a_zone_are_told_in_utc_and_near_ones_in_the_zone() -> None:
    column = pa.array([YEAR_55840, 0], pa.int64()).cast(pa.timestamp("s", "Europe/Berlin"))
    far, near = python_values(column)
    assert (far, str(near)) == ("55840-11-08 22:13:20+00:00", "1970-01-01 01:00:00+01:00")


def test_what_python_can_hold_is_what_arrow_gives() -> None:
    rows = [
        {"a": 1, "b": [date(1, 1, 1)], "c": {"d": datetime(9999, 12, 31, tzinfo=UTC)}, "e": time(23, 59), "f": None},
        {"a": None, "b": None, "c": None, "e": None, "f": None},
    ]
    table = pa.Table.from_pylist(rows)
    assert python_rows(table) == table.to_pylist() == rows
    assert python_rows(table.select([])) == [{}, {}]
    assert python_rows(table.slice(0, 0)) == []


def test_far_times_are_found_within_other_values() -> None:
    sql = """SELECT {'t': TIMESTAMP '20000-01-01 00:00:01.5', 'n': NULL} AS s, [DATE '0044-03-15 (BC)', NULL] AS l,
        map {DATE '20000-01-01': TIMESTAMP '10000-01-01'} AS m, array_value(DATE '10000-01-01') AS a,
        union_value(d := DATE '10000-01-01') AS u, 'x' AS x"""
    with duckdb.connect() as con:
        rows = con.sql(sql).to_arrow_table()
    assert python_rows(rows) == [
        {
            "s": {"t": "20000-01-01 00:00:01.500000", "n": None},
            "l": ["-0043-03-15", None],
            "m": [("20000-01-01", "10000-01-01 00:00:00")],
            "a": ["10000-01-01"],
            "u": "10000-01-01",
            "x": "x",
        }
    ]


def test_a_span_that_python_cannot_hold_is_told_with_its_unit() -> None:
    assert python_values(pa.array([2**62], pa.duration("s"))) == [f"{2**62} s"]
