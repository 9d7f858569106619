from datetime import UTC, date, datetime, time, timedelta

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
"""Milliseconds of a day in 2023, which are wrongly read as seconds."""


def numpys(text: str) -> str:
    """Return NumPy's text of a time in Python's format: a fraction of no or six digits, and a year of four or more."""
    if text.startswith("-"):
        year, _, rest = text[1:].partition("-")
        text = f"-{year:0>4}-{rest}"
    whole, _, fraction = text.replace("T", " ").partition(".")
    return f"{whole}.{fraction.ljust(6, '0')}" if fraction.strip("0") else whole


@given(st.lists(INT32 | st.integers(-800_000, 3_000_000)))
def test_every_day_equals_numpys(days: list[int]) -> None:
    found = python_values(pa.array(days, pa.int32()).cast(pa.date32()))
    assert list(map(str, found)) == [numpys(str(np.datetime64(day, "D"))) for day in days]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@given(st.lists(INT64 | st.integers(-(10**15), 10**15)))
def test_every_time_equals_numpys(unit: str, ticks: list[int]) -> None:
    expected = [numpys(str(np.datetime64(tick, unit))) for tick in ticks]
    column = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit))
    assert list(map(str, python_values(column))) == expected
    zoned = [f"{text}+00:00" for text in expected]
    assert list(map(str, python_values(column.cast(pa.timestamp(unit, "UTC"))))) == zoned


def test_times_beyond_pythons_range_are_shown_in_utc_and_others_in_their_zone() -> None:
    column = pa.array([YEAR_55840, 0], pa.int64()).cast(pa.timestamp("s", "Europe/Berlin"))
    far, near = python_values(column)
    assert (far, str(near)) == ("55840-11-08 22:13:20+00:00", "1970-01-01 01:00:00+01:00")


def test_values_that_python_can_represent_equal_arrows() -> None:
    rows = [
        {"a": 1, "b": [date(1, 1, 1)], "c": {"d": datetime(9999, 12, 31, tzinfo=UTC)}, "e": time(23, 59), "f": None},
        {"a": None, "b": None, "c": None, "e": None, "f": None},
    ]
    table = pa.Table.from_pylist(rows)
    assert python_rows(table) == table.to_pylist() == rows
    assert python_rows(table.select([])) == [{}, {}]
    assert python_rows(table.slice(0, 0)) == []


def test_times_beyond_pythons_range_are_found_within_other_values() -> None:
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


def test_a_duration_beyond_pythons_range_is_shown_with_its_unit() -> None:
    assert python_values(pa.array([2**62], pa.duration("s"))) == [f"{2**62} s"]


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
RAW = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**14), 10**14) | st.integers(-5, 90_000)


@given(RAW)
def test_nanoseconds_are_shown_if_there_are_any(ticks: int) -> None:
    for zone, shown in ((None, ""), ("UTC", "+00:00")):
        (found,) = python_values(pa.array([ticks], pa.int64()).cast(pa.timestamp("ns", zone)))
        text = str(np.datetime64(ticks, "ns")).replace("T", " ")
        expected = text if ticks % 1000 else numpys(text.removesuffix("000") if "." in text else text)
        assert str(found) == f"{expected}{shown}"


@pytest.mark.parametrize("unit", ["us", "ns"])
@given(RAW)
def test_a_time_of_day_is_shown_as_such_or_as_a_number_with_its_unit(unit: str, ticks: int) -> None:
    (found,) = python_values(pa.array([ticks], pa.int64()).view(pa.time64(unit)))
    if not 0 <= ticks < 86_400 * PER_SECOND[unit]:
        assert found == f"{ticks} {unit}"
        return
    rest, part = divmod(ticks, PER_SECOND[unit])
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    digits = f"{part * 10**9 // PER_SECOND[unit]:09}"
    fraction = "" if not part else f".{digits}" if ticks % 1000 and unit == "ns" else f".{digits[:6]}"
    assert str(found) == clock + fraction


@pytest.mark.parametrize("unit", list(PER_SECOND))
@given(RAW)
def test_a_duration_is_shown_as_such_or_as_a_number_with_its_unit(unit: str, ticks: int) -> None:
    (found,) = python_values(pa.array([ticks], pa.int64()).view(pa.duration(unit)))
    if isinstance(found, str):
        assert found == f"{ticks} {unit}"
        microseconds = ticks * 10**6 / PER_SECOND[unit]
        assert (unit == "ns" and ticks % 1000) or abs(microseconds) > 86_399_999_000_000 * 10**6
    else:
        assert isinstance(found, timedelta)
        whole = (found.days * 86_400 + found.seconds) * 10**6 + found.microseconds
        assert whole * PER_SECOND[unit] == ticks * 10**6


def test_times_within_other_values_are_shown_like_others() -> None:
    kind = pa.struct([("t", pa.time64("us")), ("l", pa.list_(pa.timestamp("ns")))])
    inner = [
        pa.array([10**15], pa.int64()).view(pa.time64("us")),
        pa.array([[1]], pa.list_(pa.int64())).cast(kind[1].type),
    ]
    (found,) = python_values(pa.StructArray.from_arrays(inner, fields=list(kind)))
    assert found == {"t": f"{10**15} us", "l": ["1970-01-01 00:00:00.000000001"]}
