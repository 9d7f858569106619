"""Failures of a state's function: a task finds the keys or records that cause them."""

import os
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Unavailable
from slackwater.pipeline.api.update import update
from slackwater.state.failing import (
    RECORD,
    Failure,
    Items,
    StateFailed,
    StateFailure,
    UnrelatedFailure,
    describe_error,
    find_failures,
    merge_reporting_failures,
    try_one_by_one,
)
from slackwater.state.kinds.aggregate import aggregate, mean
from slackwater.state.kinds.aggregate import sum as sum_of
from slackwater.state.kinds.update import Function as Update
from slackwater.state.step import Step, group_by_key
from slackwater.store.objects.counting import ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import TableLookUps
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, Table


def refuses(bad: set[int]) -> Update:
    def function(rows: pa.Table, state: pa.Table) -> pa.Table:
        wrong = bad & set(rows["amount"].to_pylist())
        if wrong:
            raise ValueError(f"{min(wrong)} is not taken")
        return pa.table({"n": np.zeros(state.num_rows, np.int64)})

    return function


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60)), min_size=1, max_size=80),
    st.sets(st.integers(0, 60), max_size=4),
)
def test_exactly_the_keys_with_failing_rows_are_reported(moves: list[tuple[int, int]], bad: set[int]) -> None:
    accounts = pa.table({"account": pa.array([key for key, _ in moves], pa.int64())})
    rows = accounts.append_column("amount", pa.array([amount for _, amount in moves], pa.int64()))
    rows = rows.add_column(0, "_hash", pa.array(hash_keys(accounts, ["account"])))
    rows = rows.append_column("number", pa.array(range(len(moves)), pa.int64()))
    kept = pa.schema([("n", pa.int64())])
    bound = update(refuses(bad), state=kept).bind([rows.select(["account", "amount"]).schema], ("account",))
    rows, groups = group_by_key(rows, ["account"])
    keys = rows.select(["account"]).take(pa.array(groups.starts))
    hashes = rows["_hash"].take(pa.array(groups.starts)).to_numpy()
    old = pa.table({"n": pa.nulls(groups.num, pa.int64())})
    guilty = {key for key, amount in moves if amount in bad}
    expected = {
        hashed for hashed, key in zip(hashes.tolist(), keys["account"].to_pylist(), strict=True) if key in guilty
    }
    numbers = rows["number"].to_numpy()
    wanted = (bound, rows.select(["account", "amount"]), groups, keys, old, hashes)
    if not expected:
        assert merge_reporting_failures(*wanted, max_reported=100).values.num_rows
        return
    with pytest.raises(StateFailed) as caught:
        merge_reporting_failures(*wanted, max_reported=100)
    assert set(caught.value.reported.keys) == expected
    assert caught.value.reported.why.kind == "ValueError"
    with pytest.raises(StateFailed) as caught:
        merge_reporting_failures(*wanted, records=numbers, max_reported=100)
    found = caught.value.reported.records
    amounts = dict(zip(numbers.tolist(), rows["amount"].to_pylist(), strict=True))
    assert {number: amounts[number] for number in found} == {n: each for n, each in amounts.items() if each in bad}
    assert all(why.message == f"{amounts[number]} is not taken" for number, why in found.items())


def test_reports_of_several_tasks_are_combined() -> None:
    why = [Failure(kind, "no", "") for kind in ("A", "B")]
    both = StateFailed.from_reports(
        [StateFailure(why[0], (1, 2), {}), StateFailure(why[1], (3,), {4: why[1]})]
    ).reported
    assert both == StateFailure(why[0], (1, 2, 3), {4: why[1]})


@given(st.data(), st.integers(1, 3_000), st.integers(0, 20))
def test_all_failing_items_are_found_or_more_than_the_maximum(data: st.DataObject, count: int, most: int) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=30))

    def attempt(items: Items) -> None:
        if wrong := bad & set(items.tolist()):
            raise ValueError(min(wrong))

    found = find_failures(count, try_one_by_one(attempt), most)
    assert len(found) > most if len(bad) > most else found.keys() == bad


def test_a_task_without_memory_left_is_not_blamed_on_an_item() -> None:
    def attempt(_items: Items) -> None:
        raise pa.ArrowMemoryError("malloc failed")

    with pytest.raises(UnrelatedFailure):
        find_failures(10, try_one_by_one(attempt), 5)


def test_if_too_many_keys_fail_the_search_ends_with_one_more_than_the_maximum() -> None:
    calls = []

    def function(rows: pa.Table, _state: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        raise ValueError("a bug of the program")

    count, most = 5_000, 10
    accounts = pa.table({"account": pa.array(range(count), pa.int64())})
    rows = accounts.add_column(0, "_hash", pa.array(hash_keys(accounts, ["account"])))
    bound = update(function, state=pa.schema([("n", pa.int64())])).bind([accounts.schema], ("account",))
    rows, groups = group_by_key(rows, ["account"])
    hashes, old = rows["_hash"].to_numpy(), pa.table({"n": pa.nulls(count, pa.int64())})
    with pytest.raises(StateFailed) as caught:
        merge_reporting_failures(
            bound, rows.select(["account"]), groups, rows.select(["account"]), old, hashes, max_reported=most
        )
    assert most < len(caught.value.reported.keys) < 4 * most
    assert len(calls) < 10 * most


def test_a_function_that_raises_an_error_of_our_classes_has_its_keys_reported() -> None:
    def function(_rows: pa.Table, _state: pa.Table) -> pa.Table:
        raise Unavailable("a service of the user's")

    rows = pa.table({"account": pa.array([1], pa.int64()), "amount": pa.array([1], pa.int64())})
    bound = update(function, state=pa.schema([("n", pa.int64())])).bind([rows.schema], ("account",))
    sorted_rows, groups = group_by_key(rows.add_column(0, "_hash", pa.array([5], pa.int64())), ["account"])
    old = pa.table({"n": pa.nulls(1, pa.int64())})
    plain, keys = sorted_rows.drop_columns(["_hash"]), rows.select(["account"])
    with pytest.raises(StateFailed, match="Unavailable"):
        merge_reporting_failures(bound, plain, groups, keys, old, np.array([5]), max_reported=1)


def test_a_single_key_is_not_retried_and_records_are_reported_if_rows_have_their_numbers() -> None:
    calls: list[int] = []

    def function(rows: pa.Table, _state: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        if 7 in rows["amount"].to_pylist():
            raise ValueError("seven")
        return pa.table({"n": pa.nulls(pc.count_distinct(rows["account"]).as_py(), pa.int64())})

    accounts = pa.table({"account": pa.array([1, 1, 2], pa.int64())})
    rows = accounts.append_column("amount", pa.array([7, 7, 1], pa.int64()))
    rows = rows.add_column(0, "_hash", pa.array(hash_keys(accounts, ["account"])))
    rows = rows.append_column(RECORD, pa.array([30, 30, 31], pa.int64()))
    bound = update(function, state=pa.schema([("n", pa.int64())])).bind(
        [rows.select(["account", "amount"]).schema], ("account",)
    )
    table = Table((Column("account", "int64"),), (Column("n", "int64"),), 1, {})
    cache = SstCache(Path(os.devnull) / "cache", 0)
    stored = TableLookUps(MemoryStore(), cache, table, (), 0, ReadCounters())
    with pytest.raises(StateFailed) as caught:
        Step(table, bound, 1, 0, max_reported=10).apply(rows, stored)
    assert caught.value.reported.records.keys() == {30}
    # All rows, each half of the keys, what is left once more; nothing of a record that is alone with its key.
    assert calls == [3, 2, 1, 1]
    assert caught.value.reported.why.stack.startswith("Traceback")
    assert "XX" not in caught.value.reported.why.stack
    with pytest.raises(ValueError, match="seven"):
        Step(table, bound, 1, 0).apply(rows, stored)


def test_for_an_overflowing_sum_records_are_reported_without_which_it_fits() -> None:
    most = 9 * 10**37
    moves = [("a", most), ("b", 5), ("c", most), ("a", -most), ("c", most), ("c", -1), ("b", 7)]
    schema = pa.schema([("wallet", pa.string()), ("wei", pa.decimal128(38, 0))])
    plain = pa.table([[key for key, _ in moves], [Decimal(wei) for _, wei in moves]], schema=schema)
    rows = plain.append_column("_hash", pa.array(hash_keys(plain, ["wallet"])))
    rows, groups = group_by_key(rows.append_column("number", pa.array(range(len(moves)))), ["wallet"])
    bound = aggregate(total=sum_of("wei"), mean=mean("wei")).bind([schema], ("wallet",))
    keys = rows.select(["wallet"]).take(pa.array(groups.starts))
    old = pa.table([pa.nulls(groups.num, field.type) for field in bound.values], schema=bound.values)
    hashes, numbers = rows["_hash"].take(pa.array(groups.starts)).to_numpy(), rows["number"].to_numpy()
    with pytest.raises(StateFailed) as caught:
        merge_reporting_failures(
            bound, rows.select(schema.names), groups, keys, old, hashes, records=numbers, max_reported=10
        )
    ((number, why),) = caught.value.reported.records.items()
    assert (number, why.kind) == (4, "BadRecord")
    assert why.message.startswith("total of key wallet='c' would be 1")
    with pytest.raises(StateFailed) as caught:
        merge_reporting_failures(bound, rows.select(schema.names), groups, keys, old, hashes, max_reported=10)
    assert caught.value.reported.keys == tuple(hash_keys(pa.table({"wallet": ["c"]}), ["wallet"]).tolist())


def test_an_error_may_quote_text_that_is_not_utf8() -> None:
    found = describe_error(ValueError(b"M\xfcnchen".decode(errors="surrogateescape")))
    assert found.message == "M\\udcfcnchen"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Failure) == found
