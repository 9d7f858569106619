"""Generated tests contain the committed values."""

import datetime
import decimal
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.operations.debugging.replay.compare import ChannelComparison, Comparison, SentRows
from slackwater.operations.debugging.replay.expectation import (
    check_same_folder,
    format_test,
    sorted_rows,
    write_test,
)
from slackwater.operations.debugging.replay.literals import literal, with_canonical_nan
from slackwater.snapshot.diff.key_changes import KeyChanges

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.datetimes()
    | st.datetimes(timezones=st.just(datetime.UTC))
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=5
)


@given(values)
def test_a_literal_evaluates_to_its_value(value: object) -> None:
    names = {"datetime": datetime, "decimal": decimal, "math": math}
    assert [eval(literal(value), names)] == [with_canonical_nan(value)]  # noqa: S307  our own text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            datetime.datetime(2013, 6, 24, 14, 50, tzinfo=datetime.UTC),
            "datetime.datetime(2013, 6, 24, 14, 50, tzinfo=datetime.UTC)",
        ),
        (datetime.datetime(2013, 6, 24), "datetime.datetime(2013, 6, 24)"),  # noqa: DTZ001
        (decimal.Decimal("1.50"), 'decimal.Decimal("1.50")'),
        (-math.inf, "-math.inf"),
        ({"a": [1.5, None]}, "{'a': [1.5, None]}"),
        ([("a", 1), ("b",)], "[('a', 1), ('b',)]"),
    ],
)
def test_a_literal_is_written_in_its_usual_form(value: object, text: str) -> None:
    assert literal(value) == text


def test_sorted_rows_do_not_depend_on_their_original_order() -> None:
    rows = pa.table({"a": [2, 1, 1], "b": [math.nan, 1.0, math.nan]})
    assert sorted_rows(rows) == sorted_rows(rows.take([2, 0, 1]))


def comparison(replayed: int) -> Comparison:
    """Return a comparison of two keys. One of them differs unless `replayed` is the committed value."""
    keys = pa.table({"carrier": ["AA", "UA"]})
    before, after = (pa.table({"flights": [5, count], "mean": [math.nan, 0.5]}) for count in (7, replayed))
    there = np.array([True, True])
    changed = KeyChanges.compare(keys, before, after, there, there)
    return Comparison("flights", "carriers", 13, 0, (("flights", 9),), keys, 2, changed, 0, ())


def test_a_generated_test_expects_the_committed_values_of_differing_keys() -> None:
    text = format_test("case.zip", "../flights.py", comparison(replayed=6))
    assert text.splitlines()[-3:] == [
        "def test_carriers_v13() -> None:",
        "    batch = replayed(HERE / 'case.zip', program=HERE / '../flights.py')",
        "    assert batch.row('UA') == {'carrier': 'UA', 'flights': 7, 'mean': 0.5}",
    ]
    compile(text, "test.py", "exec")


def test_a_generated_test_expects_every_key_if_none_differs() -> None:
    text = format_test("case.zip", None, comparison(replayed=7))
    assert "    batch = replayed(HERE / 'case.zip')\n" in text
    assert "import math\n" in text
    assert "    assert batch.row('AA') == {'carrier': 'AA', 'flights': 5, 'mean': math.nan}\n" in text
    assert "    assert batch.row('UA') == {'carrier': 'UA', 'flights': 7, 'mean': 0.5}\n" in text


def test_for_many_sent_rows_the_generated_test_expects_their_count_and_the_missing_ones() -> None:
    rows = pa.table({"n": list(range(30))})
    channel = ChannelComparison("by-carrier", SentRows(rows), rows.slice(1), rows.slice(0, 1), rows.slice(0, 0))
    found = Comparison("flights", "legs", 4, 0, (), None, 0, None, 0, (channel,))
    assert format_test("case.zip", None, found).splitlines()[-2:] == [
        "    assert len(batch.sent['by-carrier']) == 30",
        "    assert {'n': 0} in batch.sent['by-carrier']",
    ]


def test_a_generated_test_refers_to_its_bundle_by_a_relative_path(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="lie in different folders"):
        check_same_folder(tmp_path / "a" / "test.py", tmp_path / "case.zip")
    check_same_folder(tmp_path / "test_it.py", tmp_path / "case.zip")
    write_test(tmp_path / "test_it.py", tmp_path / "case.zip", tmp_path.parent / "flights.py", comparison(6))
    assert "HERE / '../flights.py'" in (tmp_path / "test_it.py").read_text()
