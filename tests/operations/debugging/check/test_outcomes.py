"""Replays of a version, without Spark: built-in kinds of state ignore row order; faulty functions are detected."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.operations.debugging.check.outcomes import RunOutcome, compare_outcomes, compute_outcome
from slackwater.operations.debugging.replay.program import LoadedProgram
from slackwater.operations.debugging.replay.stage_replay import StageReplay
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.state.kinds.kind import Kind, with_input_metadata
from slackwater.state.multi_input import INPUT_COLUMN, tagged_name
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, EventTime, Manifest, Table

from tests.models.profiles import scaled

AT = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("x", pa.int64()), ("f", pa.float64())])
SIDES = [
    with_input_metadata(pa.schema([("k", pa.int64()), ("a", pa.int64()), ("at", AT)]), "l", "at"),
    with_input_metadata(pa.schema([("k", pa.int64()), ("b", pa.int64()), ("to", AT)]), "r", "to"),
]
AGGREGATE = sw.aggregate(n=sw.count(), sum=sw.sum("f"), mean=sw.mean("f"), last=sw.last("x", by="seq"))
WITHIN_MS = 1000
Rows = list[tuple[int, int, float]]


def summed(
    rows: pa.Table, state: pa.Table, each: Callable[[pa.Table, pa.Table], pa.Array]
) -> tuple[pa.Table, pa.Table]:
    """Return an update's new state (the number of rows, and `each` of the batch's rows) and its emitted rows."""
    counts = np.bincount(rows["_key"].to_numpy(), minlength=state.num_rows)
    after = pa.table({"n": pc.add(pc.fill_null(state["n"], 0), counts), "v": each(rows, state)})
    return after, pa.table({"k": state["k"], **dict(zip(after.column_names, after.columns, strict=True))})


def update(each: Callable[[pa.Table, pa.Table], pa.Array], **more: object) -> Kind:
    columns = pa.schema([("n", pa.int64()), ("v", pa.int64())])
    emits = pa.schema([("k", pa.int64()), *columns])
    return sw.update(partial(summed, each=each), state=columns, emits=emits, **more)  # type: ignore[arg-type]


def total(rows: pa.Table, state: pa.Table) -> pa.Array:
    added = np.zeros(state.num_rows, np.int64)
    np.add.at(added, rows["_key"].to_numpy(), rows["x"].to_numpy())
    return pc.add(pc.fill_null(state["v"], 0), added)


def last_that_came(rows: pa.Table, state: pa.Table) -> pa.Array:
    last = np.zeros(state.num_rows, np.int64)
    last[rows["_key"].to_numpy()] = rows["x"].to_numpy()
    return pa.array(last)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def replay_of(state: Kind, folder: Path, partitions: int, schemas: list[pa.Schema]) -> StageReplay:
    """Return a replay of version 2 of a stage whose version 1 has no rows."""
    bound = state.bind(schemas, ("k",))
    values = tuple(Column(one.name, from_arrow(one.type)) for one in bound.values)
    table = Table((Column("k", "int64"),), values, partitions, state.stored)
    late_by = bound.lateness_columns(None)
    shape = StageSchemas({}, {}, ("k",), table, bound, lateness_columns=late_by)
    app, out = sw.App("a"), sw.repartition("out", key="k")
    app.stage(name="s", reads=sw.topic("t"), key="k", state=state, writes=out)(lambda rows: rows)
    cache = SstCache(folder / "cache", 1 << 30)
    store = MemoryStore()
    program = LoadedProgram(app, None, {"s": shape}, store, cache, {}, store)  # type: ignore[arg-type]
    before = Manifest("a", "s", 1, 1, "w", 1, "claim", table=table)
    after = replace(before, version=2, kind="batch", event_time=EventTime(bound_ms=1 << 40) if late_by else None)
    return StageReplay(program, before, after)


def rows_of(rows: Rows) -> pa.Table:
    columns = {"k": [k for k, *_ in rows], "seq": range(len(rows)), "x": [x for _, x, _ in rows]}
    made = pa.table({**columns, "f": [f for *_, f in rows]}, schema=ROWS)
    return made.append_column("_hash", pa.array(hash_keys(made, ["k"])))


def sides_of(rows: Rows) -> pa.Table:
    """Return the rows split between the two sides of a join, with times within the join's span."""
    keys, values = pa.array([k for k, *_ in rows], pa.int64()), [x for _, x, _ in rows]
    sides = [at % 2 for at in range(len(rows))]
    made = pa.table({INPUT_COLUMN: pa.array(sides, pa.int32()), "k": keys})
    for side, names in enumerate((("a", "at"), ("b", "to"))):
        mine = [value if of == side else None for value, of in zip(values, sides, strict=True)]
        made = made.append_column(tagged_name(side, names[0]), pa.array(mine, pa.int64()))
        times = [None if value is None else value % 4 * WITHIN_MS * 1000 for value in mine]
        made = made.append_column(tagged_name(side, names[1]), pa.array(times, AT))
    return made.append_column("_hash", pa.array(hash_keys(made, ["k"])))


def run(replay: StageReplay, batches: list[pa.Table], partitions: int = 3) -> RunOutcome:
    return compute_outcome(replay, {"": batches}, partitions, 1_000)


KINDS: dict[str, tuple[Kind, list[pa.Schema], Callable[[Rows], pa.Table]]] = {
    "aggregate": (AGGREGATE, [ROWS], rows_of),
    "upsert": (sw.upsert(by="seq"), [ROWS], rows_of),
    "update": (update(total), [ROWS], rows_of),
    "join": (sw.join("l", "r", within="1 second", how="left"), SIDES, sides_of),
}


@pytest.mark.parametrize("kind", KINDS)
@scaled(20)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1 << 30), st.floats(-1e9, 1e9)), min_size=1, max_size=12),
    st.data(),
)
def test_a_kind_of_state_gives_the_same_result_for_any_order_of_rows(
    scratch: Path, kind: str, given_rows: Rows, data: st.DataObject
) -> None:
    state, schemas, make = KINDS[kind]
    rows = make(given_rows)
    replay = replay_of(state, scratch, 3, schemas)
    whole = run(replay, [rows])
    order = pa.array(data.draw(st.permutations(range(rows.num_rows)), "order"), pa.int64())
    ends = sorted(data.draw(st.lists(st.integers(0, rows.num_rows), max_size=2), "ends"))
    parts = [rows.slice(first, last - first) for first, last in zip([0, *ends], [*ends, rows.num_rows], strict=True)]
    assert not compare_outcomes(replay, whole, run(replay, [rows.take(order)]))
    assert not compare_outcomes(replay, whole, run(replay, parts))
    assert not compare_outcomes(replay, whole, run(replay, [rows], data.draw(st.integers(1, 5), "partitions")))


ONE: Rows = [(1, 10, 0.5), (2, 20, 0.5), (1, 30, 0.5), (2, 40, 0.5), (3, 50, 0.5)]


def test_an_update_that_takes_the_last_row_depends_on_order(scratch: Path) -> None:
    replay, rows = replay_of(update(last_that_came), scratch, 3, [ROWS]), rows_of(ONE)
    found = compare_outcomes(replay, run(replay, [rows]), run(replay, [rows.take([4, 3, 2, 1, 0])]))
    assert found.keys is not None
    assert found.keys.keys["k"].to_pylist() == [1, 2]
    assert [found.keys.before["v"].to_pylist(), found.keys.after["v"].to_pylist()] == [[30, 40], [10, 20]]
    assert found.sent["out"].missing.num_rows == found.sent["out"].added.num_rows == 2


def test_an_update_with_order_by_does_not_depend_on_order(scratch: Path) -> None:
    replay, rows = replay_of(update(last_that_came, order_by="seq"), scratch, 3, [ROWS]), rows_of(ONE)
    assert not compare_outcomes(replay, run(replay, [rows]), run(replay, [rows.take([4, 3, 2, 1, 0])]))
    assert not compare_outcomes(replay, run(replay, [rows]), run(replay, [rows.slice(0, 2), rows.slice(2)]))


def test_an_update_that_counts_other_keys_depends_on_partitions(scratch: Path) -> None:
    replay = replay_of(update(lambda _rows, state: pa.array([state.num_rows] * state.num_rows)), scratch, 3, [ROWS])
    rows = rows_of(ONE)
    assert compare_outcomes(replay, run(replay, [rows]), run(replay, [rows], 1)).keys
    assert not compare_outcomes(replay, run(replay, [rows]), run(replay, [rows]))


def test_an_upsert_with_equal_times_depends_on_batch_boundaries(scratch: Path) -> None:
    replay = replay_of(sw.upsert(by="f"), scratch, 1, [ROWS])
    rows = rows_of([(1, 40, 0.5), (1, 30, 0.5)])
    whole = run(replay, [rows])
    assert not compare_outcomes(replay, whole, run(replay, [rows.take([1, 0])]))
    assert compare_outcomes(replay, whole, run(replay, [rows.slice(1), rows.slice(0, 1)])).keys


def test_emitted_rows_may_differ_between_batches_but_the_last_row_must_not(scratch: Path) -> None:
    rows = rows_of(ONE)
    batches = [rows.slice(0, 2), rows.slice(2)]
    replay = replay_of(update(total), scratch, 3, [ROWS])
    assert not compare_outcomes(replay, run(replay, [rows]), run(replay, batches)).sent
    by_batch = update(lambda rows, state: pa.array(np.full(state.num_rows, rows.num_rows)))
    replay = replay_of(by_batch, scratch, 1, [ROWS])
    found = compare_outcomes(replay, run(replay, [rows], 1), run(replay, batches, 1)).sent["out"]
    assert sorted(found.missing["k"].to_pylist()) == []
    assert sorted(found.added["v"].to_pylist()) == [3, 3, 3]
