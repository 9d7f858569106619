"""A `StatefulProcessor` and a pandas function give the same rows as a simple model of Spark's documentation."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.state.kinds.kind import with_input_metadata
from slackwater.store.compaction.merge import iter_visible_rows
from slackwater.store.versions.side_tables import as_main_table, table_name

from tests.models.profiles import scaled
from tests.state.event_time.falling import DELAY, MINUTE_MS, Stage
from tests.state.kinds.spark_model import (
    OPS,
    OUTPUT,
    RICH,
    STATE,
    TIMER_OPS,
    Commanded,
    CommandedFrames,
    CommandedFunction,
    PlainPandasState,
    PlainSpark,
)

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("at", TIME), ("at_ms", pa.int64()), ("op", pa.string()), ("n", pa.int64())])
BEGIN_MS = 1_000 * MINUTE_MS

rows = st.tuples(
    st.sampled_from("abcd"),
    st.integers(0, 60),
    st.sampled_from(OPS) | st.sampled_from(TIMER_OPS),
    st.integers(1, 9_999),
)
steps = st.tuples(st.lists(rows, max_size=6), st.integers(1, 3_000))
schedules = st.lists(steps | st.just("restart"), min_size=1, max_size=8)
modes = st.tuples(st.sampled_from(["None", "ProcessingTime", "EventTime"]), st.booleans())


timeouts = st.sampled_from(["NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"])


def stage_of(processor: Commanded, time_mode: str, *, in_pandas: bool = False) -> Stage:
    state = sw.processor(processor, OUTPUT, time_mode=time_mode, in_pandas=in_pandas)
    return Stage(state.bind([with_input_metadata(ROWS, "t", "at")], ("k",)), ("k",), ROWS, state.stored)


def by_key(given: list[Any]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in given:
        found[row["k"]].append((row["n"], row["seen"]))
    return dict(found)


def rows_of(stage: Stage, name: str = "") -> list[dict[str, Any]]:
    """Return the rows of the table or of a side table, without tombstones."""
    at = as_main_table(stage.head, table_name("s", name) if name else "s")
    assert at.table is not None
    parts = [
        rows
        for partition in range(stage.table.partitions)
        for rows in iter_visible_rows(stage.store, stage.resources.kept, at.ssts, at.table, partition, 0)
    ]
    return [row for part in parts for row in part.to_pylist()]


def kept(stage: Stage) -> dict[str, dict[str, Any]]:
    """Return the table in the form of `PlainSpark.table`."""
    found = {}
    parts: dict[str, dict[str, list[Any]]] = {"every": defaultdict(list), "by_name": defaultdict(list)}
    for row in rows_of(stage, "every"):
        parts["every"][row["k"]].append((row["_position"], tuple(row["every"].values())))
    for row in rows_of(stage, "by_name"):
        parts["by_name"][row["k"]].append((tuple(row["_key"].values()), tuple(row["by_name"].values())))
    for row in rows_of(stage):
        mine: dict[str, Any] = {
            name: [(None, tuple(value.values()))] for name in ("last", "kept") if (value := row[name]) is not None
        }
        if row["every"]:
            mine["every"] = [(None, value) for _, value in sorted(parts["every"][row["k"]])]
            assert len(mine["every"]) == row["every"]
        if row["by_name"]:
            mine["by_name"] = sorted(parts["by_name"][row["k"]], key=str)
            assert len(mine["by_name"]) == row["by_name"]
        if row["rich"] is not None:
            at, day, words, inner, counts = row["rich"].values()
            inner = tuple(inner.values())
            mine["rich"] = [(None, RICH.toInternal((at, day, words, inner, dict(counts))))]
        if row.get("timers"):
            mine["timers"] = row["timers"]
        found[row["k"]] = mine
    return found


@scaled(40, in_ci=1_000)
@given(schedules, modes, st.booleans(), st.booleans())
def test_a_class_gives_the_rows_that_spark_documents(
    schedule: list[Any], mode: tuple[str, bool], in_pandas: bool, has_large_maps: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if has_large_maps:
            patch.setattr("slackwater.state.kinds.parts._MAX_AHEAD_PARTS", 0)
        check_class(schedule, mode, in_pandas)


def check_class(schedule: list[Any], mode: tuple[str, bool], in_pandas: bool) -> None:
    time_mode, lives = mode
    ttl_ms = 2_000 if lives and time_mode == "ProcessingTime" else None
    ours = (CommandedFrames if in_pandas else Commanded)(time_mode, ttl_ms)
    plain, stage = PlainSpark(time_mode, DELAY * MINUTE_MS), stage_of(ours, time_mode, in_pandas=in_pandas)
    timers = time_mode != "None"
    for batch, now_ms in batches(schedule, stage, timers=timers):
        expected = plain.batch(Commanded(time_mode, ttl_ms), batch, now_ms)
        found = stage.batch([{**row, "at": row["at_ms"] * 1_000} for row in batch], now_ms)
        assert by_key(found) == by_key(expected)
        assert kept(stage) == plain.table
        assert not timers or stage.head.event_time.wall_ms == now_ms, "a replay is told the same time"  # type: ignore[union-attr]


@scaled(40, in_ci=1_000)
@given(schedules, timeouts)
def test_a_function_gives_the_rows_that_spark_documents(schedule: list[Any], timeout: Any) -> None:
    function, plain = CommandedFunction(timeout), PlainPandasState(timeout, DELAY * MINUTE_MS)
    state = sw.pandas_state(function, OUTPUT, STATE, timeout)
    stage = Stage(state.bind([with_input_metadata(ROWS, "t", "at")], ("k",)), ("k",), ROWS, state.stored)
    for batch, now_ms in batches(schedule, stage):
        expected = plain.batch(function, batch, now_ms)
        found = stage.batch([{**row, "at": row["at_ms"] * 1_000} for row in batch], now_ms)
        assert by_key(found) == by_key(expected)
        assert {row["k"]: (row["n"], row["s"]) for row in rows_of(stage) if row["_defined"]} == plain.state
        assert {row["k"]: row["_due_at"] - 1 for row in rows_of(stage) if row["_due_at"]} == plain.timeouts


def batches(schedule: list[Any], stage: Stage, *, timers: bool = True) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield the rows and the clock of each batch. Between some batches, another runner takes over."""
    now_ms = BEGIN_MS
    for step in [*schedule, ([], 5_000), ([], 20_000)]:
        if isinstance(step, str):
            stage.restart()
            continue
        events, passes_ms = step
        now_ms += passes_ms
        yield (
            [
                {
                    "k": k,
                    "at_ms": BEGIN_MS + minute * MINUTE_MS,
                    "op": op if timers or op not in TIMER_OPS else "nothing",
                    "n": n,
                }
                for k, minute, op, n in events
            ],
            now_ms,
        )
