"""Effects of a batch on the state: aggregates, upserts and user functions, without Spark."""

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from operator import itemgetter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import BadRecord, NotFound, Refused, Usage
from slackwater.pipeline.spark.user_errors import as_user_error
from slackwater.state.kinds.kind import BoundState, Groups, MergeResult

from tests.models.profiles import scaled

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("t", pa.int64())])

N = pa.schema([("n", pa.int64())])

row = st.fixed_dictionaries(
    {
        "k": st.integers(0, 3),
        "v": st.none() | st.integers(-1000, 1000),
        "x": st.none() | st.integers(-50, 50).map(lambda n: n / 4),
        "s": st.none() | st.sampled_from(["", "a", "b", "ä"]),
        "t": st.none() | st.integers(0, 5),
    }
)
batches = st.lists(st.lists(row, min_size=1, max_size=12), min_size=1, max_size=5)


class Model:
    """A table as a dict from key to value row, driven through `BoundState.merge`."""

    def __init__(self, state: BoundState, schema: pa.Schema = ROWS) -> None:
        self.state = state
        self.schema = schema
        self.rows: dict[int, dict[str, object]] = {}

    def merge(self, batch: Sequence[dict[str, object]]) -> MergeResult:
        rows = pa.Table.from_pylist(list(batch), schema=self.schema).sort_by("k")
        keys = sorted({int(one["k"]) for one in batch})  # type: ignore[call-overload]
        ids = np.searchsorted(keys, rows["k"].to_numpy()).astype(np.int32)
        groups = Groups(ids, np.flatnonzero(np.diff(ids, prepend=-1)))
        absent = dict.fromkeys(self.state.values.names)
        old = pa.Table.from_pylist([self.rows.get(key, absent) for key in keys], schema=self.state.values)
        merged = self.state.merge(rows, groups, pa.table({"k": pa.array(keys, pa.int64())}), old)
        values = merged.values.to_pylist()
        for position, key in enumerate(keys):
            if merged.changed is not None and not merged.changed[position]:
                continue
            if merged.deleted is not None and merged.deleted[position]:
                self.rows.pop(key, None)
            else:
                self.rows[key] = values[position]
        return merged


@scaled(50, in_ci=500)
@given(batches)
def test_aggregates_over_batches_equal_sql_over_all_rows(history: list[list[dict[str, object]]]) -> None:
    declared = sw.aggregate(
        n=sw.count(),
        n_v=sw.count("v"),
        total=sw.sum("v"),
        weight=sw.sum("x"),
        low=sw.min("s"),
        high=sw.max("x"),
        average=sw.mean("v"),
    )
    model = Model(declared.bind([ROWS], ("k",)))
    for batch in history:
        model.merge(batch)
    everything = pa.Table.from_pylist([one for batch in history for one in batch], schema=ROWS)
    expected = (
        duckdb.connect()
        .from_arrow(everything)
        .query(
            "r",
            "select k, count(*) n, count(v) n_v, sum(v)::bigint total, sum(x) weight, min(s) low, max(x) high, "
            "avg(v) average from r group by k",
        )
        .to_arrow_table()
        .to_pylist()
    )
    got = [
        {"k": key, **{name: value for name, value in values.items() if not name.startswith("_")}}
        for key, values in model.rows.items()
    ]
    assert sorted(got, key=lambda one: one["k"]) == sorted(expected, key=lambda one: one["k"])  # type: ignore[arg-type,return-value]


@given(batches)
def test_first_and_last_depend_on_their_order_column_not_on_arrival(history: list[list[dict[str, object]]]) -> None:
    declared = sw.aggregate(oldest=sw.first("v", by="t"), newest=sw.last("v", by="t"))
    model = Model(declared.bind([ROWS], ("k",)))
    for batch in history:
        model.merge(batch)
    for key, values in model.rows.items():
        dated = [one for batch in history for one in batch if one["k"] == key and one["t"] is not None]
        if not dated:
            assert values["oldest"] is None
            assert values["newest"] is None
            continue
        times = [int(one["t"]) for one in dated]  # type: ignore[call-overload]
        assert values["oldest"] in {one["v"] for one in dated if one["t"] == min(times)}
        assert values["newest"] in {one["v"] for one in dated if one["t"] == max(times)}


@given(st.lists(row, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_batch_gives_the_same_state_for_any_order_of_its_rows(batch: list[dict[str, object]], random: object) -> None:
    shuffled = list(batch)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for declared in (
        sw.aggregate(oldest=sw.first("s", by="t"), newest=sw.last("x", by="t"), n=sw.count()),
        sw.upsert(by="t"),
    ):
        one, other = Model(declared.bind([ROWS], ("k",))), Model(declared.bind([ROWS], ("k",)))
        one.merge(batch)
        other.merge(shuffled)
        assert one.rows == other.rows


@given(batches)
def test_an_upsert_keeps_the_row_with_the_largest_value_of_by(history: list[list[dict[str, object]]]) -> None:
    model = Model(sw.upsert(by="t").bind([ROWS], ("k",)))
    for batch in history:
        model.merge(batch)
    for key in range(4):
        times = [one["t"] for batch in history for one in batch if one["k"] == key and one["t"] is not None]
        assert (model.rows[key]["t"] if times else None) == max(times, default=None)  # type: ignore[type-var]
        assert (key in model.rows) == bool(times)


def test_an_upsert_changes_deletes_and_emits_only_affected_rows() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("gone", pa.bool_())])
    state = sw.upsert(by="t", delete_when="gone").bind([schema], ("k",))
    rows = pa.table({"k": [1, 2, 3], "t": [5, 1, 7], "gone": [False, False, True]}, schema=schema)
    old = pa.table({"t": pa.array([None, 4, 6], pa.int64())})
    groups = Groups(np.arange(3, dtype=np.int32), np.arange(3))
    merged = state.merge(rows, groups, rows.select(["k"]), old)
    assert merged.changed is not None
    assert merged.deleted is not None
    assert merged.changed.tolist() == [True, False, True]
    assert merged.deleted.tolist() == [False, False, True]
    assert merged.emitted[0].to_pylist() == [{"k": 1, "t": 5}]
    assert state.values.names == ["t"]


def test_an_aggregate_emits_its_visible_columns_with_their_values_after_the_batch() -> None:
    model = Model(sw.aggregate(average=sw.mean("v")).bind([ROWS], ("k",)))
    model.merge([{"k": 1, "v": 1}])
    merged = model.merge([{"k": 1, "v": 4}, {"k": 2, "v": None}])
    assert merged.emitted[0].to_pylist() == [{"k": 1, "average": 2.5}, {"k": 2, "average": None}]


def test_sums_of_decimals_keep_their_scale_and_sums_of_integers_do_not_wrap() -> None:
    schema = pa.schema([("k", pa.int64()), ("d", pa.decimal128(10, 2)), ("v", pa.int64())])
    state = sw.aggregate(d=sw.sum("d"), v=sw.sum("v")).bind([schema], ("k",))
    assert state.values.field("d").type == pa.decimal128(38, 2)
    rows = pa.Table.from_pylist(
        [{"k": 1, "d": "1.10", "v": 2**63 - 1}], schema=schema.set(1, pa.field("d", pa.string()))
    )
    rows = rows.cast(schema)
    groups = Groups(np.zeros(1, np.int32), np.zeros(1, np.int64))
    old = pa.Table.from_pylist([{"d": None, "v": None}], schema=state.values)
    after = state.merge(rows, groups, rows.select(["k"]), old).values
    with pytest.raises(BadRecord, match=r"^v of key k=1 would be 18446744073709551614, which does not fit a long$"):
        state.merge(rows, groups, rows.select(["k"]), after)


EDGES = (1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63))
LONGEST = 10**38 - 1
DECIMALS = pa.schema([("k", pa.int64()), ("v", pa.decimal128(38, 0)), ("p", pa.decimal128(38, 9))])


def near(*edges: int) -> st.SearchStrategy[int | None]:
    """Return a strategy for nulls, and for numbers near zero, near a type's limits and near half of them."""
    most = max(edges)
    some = st.sampled_from([*edges, *(edge // 2 for edge in edges), *(edge // 3 for edge in edges)])
    return st.none() | some | st.integers(-3, 3) | st.integers(-most, most)


@scaled(100, in_ci=2_000)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), near(*EDGES)), min_size=1, max_size=6), min_size=1, max_size=3))
def test_sums_of_integers_are_exact_or_refused_and_means_are_always_exact(
    history: list[list[tuple[int, int | None]]],
) -> None:
    sums, means = (
        Model(kind.bind([ROWS], ("k",)))
        for kind in (sw.aggregate(total=sw.sum("v")), sw.aggregate(middle=sw.mean("v"), n=sw.count("v")))
    )
    check_history(sums, means, history, -(2**63), 2**63 - 1)


@scaled(100, in_ci=2_000)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), near(LONGEST, -LONGEST)), min_size=1, max_size=6), min_size=1, max_size=3
    ),
    st.sampled_from(["v", "p"]),
)
def test_sums_of_decimals_are_exact_or_refused(history: list[list[tuple[int, int | None]]], column: str) -> None:
    digits = DECIMALS.field(column).type.scale
    with localcontext(Context(prec=80)):
        scaled_down = [
            [(key, None if value is None else Decimal(value).scaleb(-digits)) for key, value in batch]
            for batch in history
        ]
        most = Decimal(LONGEST).scaleb(-digits)
        sums = Model(sw.aggregate(total=sw.sum(column)).bind([DECIMALS], ("k",)), DECIMALS)
        check_history(sums, None, scaled_down, -most, most, column)
        means = Model(sw.aggregate(total=sw.mean(column)).bind([DECIMALS], ("k",)), DECIMALS)
        check_history(means, None, scaled_down, -most, most, column, "_total_sum")


def check_history(
    sums: Model,
    means: Model | None,
    history: Sequence[Sequence[tuple[int, Any]]],
    least: Any,
    most: Any,
    column: str = "v",
    total: str = "total",
) -> None:
    """Compare batches with sums in Python.

    An overflow must be refused, name its key, and leave the rows as they were.
    """
    seen: dict[int, list[Any]] = {}
    for batch in history:
        rows: list[dict[str, object]] = [{"k": key, column: value} for key, value in batch]
        values = {key: [v for k, v in [*sorted(batch, key=itemgetter(0))] if k == key] for key, _ in batch}
        if means is not None:
            means.merge(rows)
        after = {key: [*seen.get(key, ()), *(v for v in some if v is not None)] for key, some in values.items()}
        large = [key for key, some in after.items() if not least <= sum(some) <= most]
        if large:
            with pytest.raises(BadRecord, match="which does not fit") as caught:
                sums.merge(rows)
            assert f"of key k={min(large)} would be {Decimal(sum(after[min(large)])):f}," in caught.value.message
            return
        sums.merge(rows)
        seen |= after
        assert {key: sums.rows[key][total] for key in seen} == {key: sum(s) if s else None for key, s in seen.items()}
        for key, row in (means.rows if means is not None else {}).items():
            assert row["n"] == len(seen[key])
            assert row["middle"] == (float(sum(seen[key])) / len(seen[key]) if seen[key] else None)


def test_three_decimals_whose_sum_would_wrap_around_are_refused() -> None:
    rows = [{"k": 7, "v": Decimal(9 * 10**37)}] * 3
    for kind, what in ((sw.sum("v"), "total"), (sw.mean("v"), "the sum behind total")):
        model = Model(sw.aggregate(total=kind).bind([DECIMALS], ("k",)), DECIMALS)
        said = f"^{what} of key k=7 would be 270{'0' * 36}, which does not fit a decimal\\(38, 0\\)$"
        with pytest.raises(BadRecord, match=said):
            model.merge(rows)
        assert not model.rows


def test_a_mean_of_integers_is_computed_even_if_their_sum_overflows() -> None:
    model = Model(sw.aggregate(middle=sw.mean("v")).bind([ROWS], ("k",)))
    for _ in range(3):
        model.merge([{"k": 1, "v": 2**62}] * 3)
    assert model.rows[1]["middle"] == float(2**62)


def counted(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    n = pc.add(pc.fill_null(state["n"], 0), np.bincount(rows["_key"].to_numpy()))
    return pa.table({"n": n, "_deleted": pc.greater(n, 2)}), rows.select(["k", "t"])


KEYS, TIMES = pa.schema([("k", pa.int64())]), pa.schema([("t", pa.int64())])


def split(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, ...]:
    n = pc.add(pc.fill_null(state["n"], 0), np.bincount(rows["_key"].to_numpy()))
    return pa.table({"n": n}), state.filter(pc.greater(n, 1)), rows


def test_an_update_function_emits_rows_for_each_output() -> None:
    model = Model(sw.update(split, state=N, emits=(KEYS, TIMES), order_by="t").bind([ROWS], ("k",)))
    merged = model.merge([{"k": 1, "t": 9}, {"k": 1, "t": 3}, {"k": 2, "t": 1}])
    assert [rows.to_pylist() for rows in merged.emitted] == [[{"k": 1}], [{"t": 3}, {"t": 9}, {"t": 1}]]
    assert [rows.schema for rows in merged.emitted] == [KEYS, TIMES]


@pytest.mark.parametrize(
    ("emits", "said"),
    [
        ((KEYS,), "returned 3 tables; expected 2: the state, and rows for each of the 1 that emits= declares"),
        ((KEYS, TIMES, KEYS), "returned 3 tables; expected 4: the state, and rows for each of the 3"),
        ((TIMES, TIMES), r"emitted rows lack column 't' \(int64\)"),
    ],
)
def test_an_update_function_that_emits_undeclared_rows_is_refused(emits: tuple[pa.Schema, ...], said: str) -> None:
    model = Model(sw.update(split, state=N, emits=emits).bind([ROWS], ("k",)))
    with pytest.raises(Refused, match=said):
        model.merge([{"k": 1, "t": 9}])


def test_an_update_function_that_emits_a_column_twice_is_refused_by_its_name() -> None:
    twice = pa.table([[1], [2], [3]], names=["t", "k", "t"])
    model = Model(sw.update(lambda _rows, state: (state, twice), state=N, emits=(TIMES,)).bind([ROWS], ("k",)))
    with pytest.raises(Refused, match="the update function's emitted rows have column 't' 2 times") as refused:
        model.merge([{"k": 1, "t": 9}])
    assert "another name" in refused.value.hint
    declared = pa.schema([("t", pa.int64()), ("t", pa.int64())])
    for how, where in (({"state": N, "emits": declared}, "emits"), ({"state": declared}, "the state")):
        with (
            pytest.raises(Usage, match=f"^stage 'orders': {where} has column 't' twice"),
            as_user_error("the state of stage 'orders'"),
        ):
            sw.update(counted, **how).bind([ROWS], ("k",))  # type: ignore[arg-type]


def test_an_update_function_that_returns_no_table_is_refused() -> None:
    state = sw.update(lambda _rows, state: (state, [1], state), state=N, emits=(KEYS, KEYS))
    with pytest.raises(Refused, match="the update function returned list; expected an Arrow table"):
        Model(state.bind([ROWS], ("k",))).merge([{"k": 1, "t": 9}])


def test_an_update_function_sees_its_state_sorted_rows_and_may_delete() -> None:
    model = Model(
        sw.update(counted, state=N, emits=pa.schema([("k", pa.int64()), ("t", pa.int64())]), order_by="t").bind(
            [ROWS], ("k",)
        )
    )
    merged = model.merge([{"k": 1, "t": 9}, {"k": 1, "t": 3}, {"k": 2, "t": 1}])
    assert model.rows == {1: {"n": 2}, 2: {"n": 1}}
    assert merged.emitted[0]["t"].to_pylist() == [3, 9, 1]
    model.merge([{"k": 1, "t": 10}])
    assert model.rows == {2: {"n": 1}}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rows, state: pa.table({"m": [1]}), "lack column 'n'"),
        (lambda rows, state: pa.table({"n": [1, 2, 3]}), "expected 1, one for each row"),
        (lambda rows, state: pa.table({"n": ["many"]}), "does not fit int64"),
        (lambda rows, state: pa.table([[1], [2]], names=["n", "n"]), "state rows have column 'n' 2 times"),
        (
            lambda rows, state: pa.table([[1], [True], [True]], names=["n", "_deleted", "_deleted"]),
            "state rows have column '_deleted' 2 times",
        ),
    ],
)
def test_an_invalid_result_of_an_update_function_is_refused(function: object, said: str) -> None:
    model = Model(sw.update(function, state=N).bind([ROWS], ("k",)))  # type: ignore[arg-type]
    with pytest.raises(Refused, match=said):
        model.merge([{"k": 1}])


@given(st.permutations(range(4)))
def test_nested_columns_break_ties_between_rows_with_equal_by(arrival: list[int]) -> None:
    schema = pa.schema(
        [("k", pa.int64()), ("t", pa.int64()), ("l", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int8()))]
    )
    rows = [{"k": 1, "t": 1, "l": tags, "m": pairs} for tags in (None, ["a", "b"]) for pairs in ([], [("x", 1)])]
    state = sw.upsert(by="t").bind([schema], ("k",))
    groups = Groups(np.zeros(4, np.int32), np.zeros(1, np.int64))
    old = pa.Table.from_pylist([{"t": None, "l": None, "m": None}], schema=state.values)

    def latest(rows: list[dict[str, object]]) -> pa.Table:
        table = pa.Table.from_pylist(rows, schema=schema)
        return state.merge(table, groups, table.select(["k"]).slice(0, 1), old).values

    assert latest([rows[number] for number in arrival]) == latest(rows)


def test_impossible_declarations_are_refused_by_name() -> None:
    with pytest.raises(NotFound, match="the nearest: v"):
        sw.aggregate(n=sw.sum("vv")).bind([ROWS], ("k",))
    with pytest.raises(Usage, match="expected a number"):
        sw.aggregate(n=sw.sum("s")).bind([ROWS], ("k",))
    with pytest.raises(Usage, match="part of the key"):
        sw.aggregate(k=sw.count()).bind([ROWS], ("k",))
    with pytest.raises(Usage, match="starts with '_'"):
        sw.aggregate(_n=sw.count()).bind([ROWS], ("k",))
    with pytest.raises(Usage, match="boolean"):
        sw.upsert(by="t", delete_when="v").bind([ROWS], ("k",))
    with pytest.raises(NotFound, match="column"):
        sw.update(counted, state=N, order_by="z").bind([ROWS], ("k",))
