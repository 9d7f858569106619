"""Pairs of equal rows in two tables, compared with Python's multisets."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.diff.equality import pair_equal_rows, surplus_rows

SCHEMA = pa.schema([("k", pa.string()), ("x y", pa.float64()), ("l", pa.list_(pa.int64()))])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "x y": st.sampled_from([0.0, 1.5, float("nan"), None]),
            "l": st.sampled_from([[1], [], [None, 2], None]),
        }
    ),
    max_size=20,
)


def text(row: dict[str, object]) -> str:
    return repr(sorted(row.items()))


@given(ROWS, ROWS)
def test_each_row_with_an_equal_one_in_the_other_table_is_paired(
    ours: list[dict[str, object]], theirs: list[dict[str, object]]
) -> None:
    mine, other = pair_equal_rows(*(pa.Table.from_pylist(rows, SCHEMA) for rows in (ours, theirs)))
    assert len({*mine.tolist()}) == len(mine) == len({*other.tolist()})
    # In Python NaN is equal to nothing: its text is.
    for one, two in zip(mine.tolist(), other.tolist(), strict=True):
        assert text(ours[one]) == text(theirs[two])
    both = Counter(map(text, ours)) & Counter(map(text, theirs))
    assert len(mine) == both.total()
    assert mine.tolist() == sorted(mine.tolist())


def test_equal_rows_are_paired_in_order() -> None:
    rows = pa.table({"k": ["a", "b", "a", "a"]})
    mine, other = pair_equal_rows(rows, pa.table({"k": ["a", "a", "c"]}))
    assert (mine.tolist(), other.tolist()) == ([0, 2], [0, 1])
    assert all(part.dtype == np.int64 for part in (mine, other))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(pa.int32(), pa.int64()), (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"))],
)
def test_values_of_two_types_are_equal_if_they_mean_the_same(ours: pa.DataType, theirs: pa.DataType) -> None:
    one, other = (pa.table({"k": pa.array([7]).cast(kind)}) for kind in (ours, theirs))
    assert len(pair_equal_rows(one, other)[0]) == 1
    assert surplus_rows(one, other).num_rows == 0
