"""Partial aggregates, which Spark sends instead of rows, lead to the same state as the rows."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import BadRecord
from slackwater.state.kinds.aggregate import ROWS_COLUMN, TASKS_COLUMN, num_partials, num_rows, partial_column
from slackwater.state.kinds.kind import BoundState, Groups

from tests.models.profiles import scaled

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("x", pa.float64()), ("t", pa.int64())])
DECLARED = sw.aggregate(
    n=sw.count(),
    n_v=sw.count("v"),
    total=sw.sum("v"),
    weight=sw.sum("x"),
    average=sw.mean("v"),
    low=sw.min("v"),
    high=sw.max("x"),
    oldest=sw.first("v", by="t"),
    newest=sw.last("v", by="t"),
)
Row = Mapping[str, Any]
LARGE = 1 << 61
rows = st.fixed_dictionaries(
    {
        "k": st.integers(0, 2),
        "v": st.none() | st.integers(-9, 9) | st.sampled_from([-LARGE, LARGE]),
        "x": st.none() | st.integers(-50, 50).map(lambda n: n / 4),
        "t": st.none() | st.integers(0, 3),
    }
)


def added_up(key: int, batch: Sequence[Row]) -> dict[str, Any]:
    """Return the row of partial aggregates that replaces several rows of a key in Spark's plan."""
    v, x = ([row[name] for row in batch if row[name] is not None] for name in "vx")
    dated = [row for row in batch if row["t"] is not None]
    times = [row["t"] for row in dated]
    found: dict[str, Any] = {"k": key, ROWS_COLUMN: len(batch), partial_column("count", "n"): len(batch)}
    found |= {partial_column("count", name): len(v) for name in ("n_v", "average")}
    for name in ("total", "average"):
        found[partial_column("sum", name)] = sum(one >> 32 for one in v) if v else None
        found[partial_column("low", name)] = sum(one & 0xFFFFFFFF for one in v) if v else None
    found |= {partial_column("sum", "weight"): sum(x) if x else None}
    found |= {
        partial_column("value", "low"): min(v, default=None),
        partial_column("value", "high"): max(x, default=None),
    }
    for name, at in (("oldest", min(times, default=None)), ("newest", max(times, default=None))):
        ties = [row["v"] for row in dated if row["t"] == at]
        # The larger of equals, as in the table; null comes last.
        found[partial_column("value", name)] = max((one for one in ties if one is not None), default=None)
        found[partial_column("by", name)] = at
    return found


def merged(state: BoundState, table: pa.Table) -> list[Any]:
    keys = sorted(set(table["k"].to_pylist()))
    ids = np.searchsorted(keys, table["k"].to_numpy()).astype(np.int32)
    groups = Groups(ids, np.flatnonzero(np.diff(ids, prepend=-1)))
    old = pa.table({field.name: pa.nulls(len(keys), field.type) for field in state.values})
    found: list[Any] = state.merge(table, groups, pa.table({"k": keys}), old).values.to_pylist()
    return found


def by_key(batch: Iterable[Row]) -> dict[int, list[Row]]:
    ordered = sorted(batch, key=lambda row: int(row["k"]))
    return {key: list(each) for key, each in groupby(ordered, key=lambda row: int(row["k"]))}


@scaled(50, in_ci=500)
@given(st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=4))
def test_partial_aggregates_give_the_same_state_as_their_rows(tasks: list[list[Row]]) -> None:
    bound = DECLARED.bind([SCHEMA], ("k",))
    everything = [row for task in tasks for row in task]
    parts = [added_up(key, each) for task in tasks for key, each in by_key(task).items()]
    kinds = {name: pa.int64() for name in parts[0]}
    kinds |= dict.fromkeys((partial_column("sum", "weight"), partial_column("value", "high")), pa.float64())
    partials = pa.Table.from_pylist(parts, schema=pa.schema(list(kinds.items()))).sort_by("k")
    plain = pa.Table.from_pylist([dict(row) for row in everything], schema=SCHEMA).sort_by("k")
    totals = [sum(row["v"] or 0 for row in each) for each in by_key(everything).values()]
    if any(not -(1 << 63) <= total < 1 << 63 for total in totals):
        for table in (partials, plain):
            with pytest.raises(BadRecord, match="does not fit a long"):
                merged(bound, table)
        return
    assert merged(bound.over_partials(tuple(kinds)), partials) == merged(bound, plain)
    assert num_rows(partials) == num_rows(plain) == len(everything)


def test_partial_aggregates_carry_the_counts_of_rows_and_tasks() -> None:
    assert num_rows(pa.table({ROWS_COLUMN: pa.array([], pa.int64())})) == 0
    assert num_partials(pa.table({TASKS_COLUMN: pa.array([0b101, None, 1 << 62], pa.int64())})) == 3
    assert num_partials(pa.table({"k": [1, 2]})) == 0
