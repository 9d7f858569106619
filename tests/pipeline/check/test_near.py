"""Rows that are not the same, of two tables in any order: floats are, but for what the order of a sum makes of them."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.check.differences import in_order, unlike

ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=8)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def table(rows: list[tuple[object, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


@given(ROWS, ROWS)
def test_each_row_is_counted_as_often_as_it_is_missing(ours: list[tuple[object, ...]], theirs: list[object]) -> None:
    mine, others = unlike(table(ours), table(theirs))  # type: ignore[arg-type]
    left = list(theirs)
    expected = 0
    for row in ours:
        if row in left:
            left.remove(row)
        else:
            expected += 1
    assert (mine.sum(), others.sum()) == (expected, len(left))


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=60), st.randoms())
def test_a_sum_in_another_order_is_the_same(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    sums = [pa.table({"k": [1], "sum": [float(np.sum(np.cumsum(each)[-1:]))]}) for each in (values, shuffled)]
    mine, others = unlike(*sums, max(map(abs, values)))
    assert not mine.any()
    assert not others.any()


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@given(st.floats(-1e6, 1e6, width=32), st.floats(2e-5, 1.0))
def test_floats_that_differ_by_more_are_not_the_same(kind: pa.DataType, value: float, part: float) -> None:
    other = value + math.copysign(max(abs(value), 1.0) * part, value)
    pair = [pa.table({"x": pa.array([each], kind)}) for each in (value, other)]
    assert unlike(*pair)[0].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, -0.0])
def test_what_is_no_number_is_itself(value: float | None) -> None:
    one = pa.table({"x": pa.array([value], pa.float64())})
    other = pa.table({"x": pa.array([value if value != 0 else 0.0], pa.float64())})
    assert not unlike(one, other)[0].any()
    assert unlike(one, pa.table({"x": pa.array([1.0])}))[0].any()


def test_floats_within_lists_and_structs_are_compared_likewise() -> None:
    kind = pa.list_(pa.struct([("n", pa.int64()), ("sum", pa.float64())]))
    rows = [[{"n": 1, "sum": 0.1 + 0.2}], None, []]
    near = [[{"n": 1, "sum": 0.3}], None, []]
    far = [[{"n": 1, "sum": 0.4}], None, []]
    one, same, other = (pa.table({"each": pa.array(each, kind)}) for each in (rows, near, far))
    assert not unlike(one, same)[0].any()
    assert unlike(one, other)[0].tolist() == [True, False, False]


def test_lists_whose_order_means_nothing_are_brought_into_one() -> None:
    one, other = (pa.table({"each": pa.array([each, None, [3]])}) for each in ([1, 2, 2], [2, 1, 2]))
    assert unlike(one, other)[0].any()
    assert not unlike(in_order(one), in_order(other))[0].any()
