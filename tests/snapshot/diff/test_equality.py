"""Rows without an equal row in another table. Floats are equal if only the order of a sum may have changed them."""

import json
import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.diff.equality import (
    Tolerance,
    flag_unmatched_rows,
    pair_similar_rows,
    sort_list_elements,
    unequal_records,
)
from slackwater.snapshot.diff.key_changes import KeyChanges

ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=8)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def table(rows: list[tuple[object, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


@given(ROWS, ROWS)
def test_each_row_without_an_equal_row_is_counted(ours: list[tuple[object, ...]], theirs: list[object]) -> None:
    mine, others = flag_unmatched_rows(table(ours), table(theirs))  # type: ignore[arg-type]
    left = list(theirs)
    expected = 0
    for row in ours:
        if row in left:
            left.remove(row)
        else:
            expected += 1
    assert (mine.sum(), others.sum()) == (expected, len(left))


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=60), st.randoms())
def test_a_sum_in_another_order_is_equal(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    sums = [pa.table({"k": [1], "sum": [float(np.sum(np.cumsum(each)[-1:]))]}) for each in (values, shuffled)]
    mine, others = flag_unmatched_rows(*sums, max(map(abs, values)))
    assert not mine.any()
    assert not others.any()


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@given(st.floats(-1e6, 1e6, width=32), st.floats(2e-5, 1.0))
def test_floats_that_differ_by_more_are_unequal(kind: pa.DataType, value: float, part: float) -> None:
    other = value + math.copysign(max(abs(value), 1.0) * part, value)
    pair = [pa.table({"x": pa.array([each], kind)}) for each in (value, other)]
    assert flag_unmatched_rows(*pair)[0].any()


@given(st.floats(-1e-312, 1e-312), st.floats(-1e-312, 1e-312))
def test_subnormal_floats_are_equal_only_if_identical(value: float, other: float) -> None:
    pair = [pa.table({"x": pa.array([number])}) for number in (value, other)]
    assert flag_unmatched_rows(*pair)[0].any() == (value != other)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, -0.0])
def test_null_nan_and_infinity_equal_only_themselves(value: float | None) -> None:
    one = pa.table({"x": pa.array([value], pa.float64())})
    other = pa.table({"x": pa.array([value if value != 0 else 0.0], pa.float64())})
    assert not flag_unmatched_rows(one, other)[0].any()
    assert flag_unmatched_rows(one, pa.table({"x": pa.array([1.0])}))[0].any()


def test_floats_within_lists_and_structs_are_compared_likewise() -> None:
    kind = pa.list_(pa.struct([("n", pa.int64()), ("sum", pa.float64())]))
    rows = [[{"n": 1, "sum": 0.1 + 0.2}], None, []]
    near = [[{"n": 1, "sum": 0.3}], None, []]
    far = [[{"n": 1, "sum": 0.4}], None, []]
    one, same, other = (pa.table({"each": pa.array(each, kind)}) for each in (rows, near, far))
    assert not flag_unmatched_rows(one, same)[0].any()
    assert flag_unmatched_rows(one, other)[0].tolist() == [True, False, False]


def test_lists_whose_order_means_nothing_are_sorted() -> None:
    one, other = (pa.table({"each": pa.array([each, None, [3]])}) for each in ([1, 2, 2], [2, 1, 2]))
    assert flag_unmatched_rows(one, other)[0].any()
    assert not flag_unmatched_rows(sort_list_elements(one), sort_list_elements(other))[0].any()


def test_floats_within_maps_are_compared_likewise() -> None:
    kind = pa.map_(pa.string(), pa.float64())
    rows, close, far = ([[("a", value)], None] for value in (0.1 + 0.2, 0.3, 0.4))
    table, same, other = (pa.table({"m": pa.array(values, kind)}) for values in (rows, close, far))
    assert not flag_unmatched_rows(table, same)[0].any()
    assert flag_unmatched_rows(table, other)[0].tolist() == [True, False]


@given(st.lists(st.floats(1, 1e9), min_size=2, max_size=60), st.randoms())
def test_a_key_whose_sum_came_in_another_order_has_not_changed(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    sides = [pa.table({"sum": [math.fsum([0.0]) + sum(order), 1.0]}) for order in (values, shuffled)]
    there = np.array([True, True])
    changes = KeyChanges.compare(pa.table({"k": [1, 2]}), *sides, there, there, tolerance=Tolerance())
    assert changes.kinds().tolist() == ["same", "same"]
    # It says so where the two are not the same to the last bit.
    is_near = changes.near_equal.get("sum", np.array([False, False])).tolist()
    assert is_near == [sum(values) != sum(shuffled), False]


@given(st.floats(1, 1e6), st.floats(1e-6, 1.0))
def test_a_key_with_another_value_has_changed(value: float, part: float) -> None:
    sides = [pa.table({"sum": [number]}) for number in (value, value * (1 + part))]
    there = np.array([True])
    assert KeyChanges.compare(pa.table({"k": [1]}), *sides, there, there, tolerance=Tolerance()).kinds() == ["changed"]


def sent(*values: object) -> pa.Table:
    data = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", pa.string())])
    return pa.Table.from_pylist([{"key": b"k", "value": value, "headers": None} for value in data], schema)


def test_records_of_json_are_equal_but_for_the_last_bits_of_floats() -> None:
    ours = sent({"k": "a", "sum": 0.1 + 0.2}, {"k": "b", "sum": 1.5}, {"k": "c", "n": 1}, b"\xff", [["k", 1.5]])
    theirs = sent({"sum": 0.3, "k": "a"}, {"k": "b", "sum": 1.6}, {"k": "c", "n": 2}, b"\xfe", {"k": 1.5})
    left = unequal_records(ours, theirs)
    assert [rows["value"].to_pylist() for rows in left] == [
        ours["value"].to_pylist()[1:],
        theirs["value"].to_pylist()[1:],
    ]


def test_of_equal_records_only_the_surplus_of_a_side_remains() -> None:
    ours, theirs = sent({"sum": 0.1 + 0.2}, {"sum": 0.1 + 0.2}), sent({"sum": 0.3})
    assert [rows.num_rows for rows in unequal_records(ours, theirs)] == [1, 0]


def test_rows_of_a_function_are_compared_by_their_columns() -> None:
    ours, theirs = pa.table({"k": ["a", "b"], "sum": [0.1 + 0.2, 1.0]}), pa.table({"k": ["a", "b"], "sum": [0.3, 2.0]})
    assert [rows["k"].to_pylist() for rows in unequal_records(ours, theirs)] == [["b"], ["b"]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10**6)), max_size=20), st.randoms())
def test_rows_are_paired_whose_floats_differ_in_their_last_bits(rows: list[tuple[int, int]], random: object) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    ours = [(k, x / 7) for k, x in rows]
    theirs = [(k, math.nextafter(x, math.inf)) for k, x in ours]
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    mine, others = pair_similar_rows(table(ours, schema), table([theirs[at] for at in order], schema))
    assert mine.tolist() == [*range(len(rows))]
    assert sorted(others.tolist()) == [*range(len(rows))]
    assert [rows[order[at]] for at in others] == rows


def test_a_row_is_paired_once_and_preferably_with_an_identical_row() -> None:
    schema = pa.schema([("x", pa.float64())])
    one, next_one = 0.1, math.nextafter(0.1, 1)
    mine, others = pair_similar_rows(
        table([(one,), (next_one,), (5.0,)], schema), table([(next_one,), (one,), (6.0,)], schema)
    )
    assert (mine.tolist(), others.tolist()) == ([0, 1], [1, 0])


VALUES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int64(): st.integers(0, 2),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
    pa.string(): st.sampled_from(["", "a", "ä"]),
    pa.binary(): st.sampled_from([b"", b"a"]),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.integers(0, 1),
    pa.decimal128(9, 2): st.integers(0, 1),
    pa.list_(pa.float64()): st.lists(st.sampled_from([1.0, math.nan, None]), max_size=2),
    pa.struct([("a", pa.int64())]): st.fixed_dictionaries({"a": st.none() | st.integers(0, 1)}),
}


@given(st.data())
def test_values_of_each_type_differ_as_in_duckdb(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=4))
    count = data.draw(st.integers(1, 4))

    def table() -> pa.Table:
        columns = [
            pa.array(data.draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind)
            for kind in kinds
        ]
        return pa.table({f"c{number}": column for number, column in enumerate(columns)})

    before, after = table(), table()
    every, keys = np.ones(count, np.bool_), pa.table({"k": np.arange(count)})
    found = KeyChanges.compare(keys, before, after, every, every).differing
    tests = ", ".join(f"b.{name} IS DISTINCT FROM a.{name} AS {name}" for name in before.column_names)
    with duckdb.connect() as con:
        con.register("b", before.append_column("place", pa.array(np.arange(count))))
        con.register("a", after.append_column("place", pa.array(np.arange(count))))
        expected = con.sql(f"SELECT {tests} FROM b JOIN a USING (place) ORDER BY place").to_arrow_table()
    assert {name: flags.tolist() for name, flags in found.items()} == expected.to_pydict()
