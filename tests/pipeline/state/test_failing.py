"""A state's function that fails tells for which keys, found in the task."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Unavailable
from slackwater.pipeline.state.failing import StateFailed, merge_or_tell
from slackwater.pipeline.state.merge import group
from slackwater.pipeline.state.update import Update, update
from slackwater.store.sst.hashing import hash_keys


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
def test_exactly_the_keys_with_rows_that_fail_are_told(moves: list[tuple[int, int]], bad: set[int]) -> None:
    accounts = pa.table({"account": pa.array([key for key, _ in moves], pa.int64())})
    rows = accounts.append_column("amount", pa.array([amount for _, amount in moves], pa.int64()))
    rows = rows.add_column(0, "_hash", pa.array(hash_keys(accounts, ["account"])))
    kept = pa.schema([("n", pa.int64())])
    bound = update(refuses(bad), state=kept).bind([rows.drop_columns(["_hash"]).schema], ("account",))
    rows, groups = group(rows, ["account"])
    keys = rows.select(["account"]).take(pa.array(groups.starts))
    hashes = rows["_hash"].take(pa.array(groups.starts)).to_numpy()
    old = pa.table({"n": pa.nulls(groups.num, pa.int64())})
    guilty = {key for key, amount in moves if amount in bad}
    expected = {
        hashed for hashed, key in zip(hashes.tolist(), keys["account"].to_pylist(), strict=True) if key in guilty
    }
    if not expected:
        assert merge_or_tell(bound, rows.select(["account", "amount"]), groups, keys, old, hashes).values.num_rows
        return
    with pytest.raises(StateFailed) as caught:
        merge_or_tell(bound, rows.select(["account", "amount"]), groups, keys, old, hashes)
    told = json.loads(str(caught.value))
    assert set(told["keys"]) == expected
    assert told["kind"] == "ValueError"
    assert "is not taken" in told["message"]


def test_what_several_tasks_tell_is_told_as_one() -> None:
    told = [{"keys": keys, "kind": kind, "message": "no", "stack": ""} for keys, kind in (([1, 2], "A"), ([3], "B"))]
    both = json.loads(str(StateFailed.of([json.dumps(each) for each in told])))
    assert (both["keys"], both["kind"]) == ([1, 2, 3], "A")


def test_a_function_that_raises_an_error_of_ours_tells_its_keys_as_with_any_other() -> None:
    def function(_rows: pa.Table, _state: pa.Table) -> pa.Table:
        raise Unavailable("a service of the user's")

    rows = pa.table({"account": pa.array([1], pa.int64()), "amount": pa.array([1], pa.int64())})
    bound = update(function, state=pa.schema([("n", pa.int64())])).bind([rows.schema], ("account",))
    sorted_rows, groups = group(rows.add_column(0, "_hash", pa.array([5], pa.int64())), ["account"])
    old = pa.table({"n": pa.nulls(1, pa.int64())})
    with pytest.raises(StateFailed, match='"kind": "Unavailable"'):
        merge_or_tell(bound, sorted_rows.drop_columns(["_hash"]), groups, rows.select(["account"]), old, np.array([5]))
