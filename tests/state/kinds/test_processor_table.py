"""The state of a `StatefulProcessor` as a table: its variables are columns, which may change within limits."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import slackwater as sw
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, TimestampType
from slackwater.errors import Corruption, NotFound, Refused, SlackwaterError, Usage
from slackwater.snapshot.change.copies import Masks, check_masks
from slackwater.snapshot.change.edit import newest_active_cut
from slackwater.state.kinds.kind import with_input_metadata
from slackwater.state.kinds.state_variables import SPAN
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import AppInfo

from tests.state.event_time.falling import Stage
from tests.state.kinds.spark_model import OUTPUT, struct
from tests.state.kinds.test_processor import ROWS, rows_of

N = struct(n=LongType())
TEXT = struct(s=StringType())
Init = Callable[[StatefulProcessorHandle, "Scripted"], None]
Rows = Callable[["Scripted", Any, list[Any]], Any]


class Scripted(StatefulProcessor):
    """Processor that runs two given functions."""

    def __init__(self, init: Init, rows: Rows = lambda _self, _key, _rows: None) -> None:
        self._init, self._rows, self.initial = init, rows, False
        self.v: Any = None
        self.w: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self._init(handle, self)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        seen = self._rows(self, key, list(rows))
        yield Row(k=key[0], n=None, seen=None if seen is None else str(seen))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        self.v.update((initialState.n * 100,))

    def close(self) -> None: ...


def value(name: str = "v", schema: Any = N, ttl_ms: int | None = None) -> Init:
    def init(handle: StatefulProcessorHandle, made: Scripted) -> None:
        made.v = handle.getValueState(name, schema, ttl_ms)

    return init


def count(made: Scripted, _key: Any, rows: list[Any]) -> Any:
    made.v.update(((made.v.get() or (0,))[0] + len(rows),))
    return made.v.get()


def stage_of(made: StatefulProcessor, **more: Any) -> Stage:
    state = sw.processor(made, OUTPUT, **more)
    return Stage(state.bind([with_input_metadata(ROWS, "t", None)], ("k",)), ("k",), ROWS, state.stored)


def row(k: str, n: int = 1) -> dict[str, object]:
    return {"k": k, "at": 0, "at_ms": 0, "op": "", "n": n}


def test_state_variables_are_columns_of_the_same_names() -> None:
    def init(handle: StatefulProcessorHandle, _made: Scripted) -> None:
        handle.getValueState("visits", struct(n=LongType(), last=TimestampType()))
        handle.getListState("pages", struct(page=StringType()), 1_000)
        handle.getMapState("by_page", struct(page=StringType()), N)
        handle.deleteIfExists("of_old")

    state = sw.processor(Scripted(init), OUTPUT, time_mode="ProcessingTime")
    text, fields = pa.struct([("page", pa.string())]), pa.struct([("n", pa.int64())])
    assert state.bind([ROWS], ("k",)).values == pa.schema(
        [
            ("visits", pa.struct([("n", pa.int64()), ("last", pa.timestamp("us", "UTC"))])),
            ("pages", pa.int64()),
            ("_span_pages", SPAN),
            ("_expires_pages", pa.int64()),
            ("by_page", pa.int64()),
            ("timers", pa.list_(pa.int64())),
            ("_due_at", pa.int64()),
        ]
    )
    assert state.bind([ROWS], ("k",)).side_tables == {
        "pages": (
            pa.schema([("k", pa.string()), ("_position", pa.int64())]),
            pa.schema([("pages", text), ("_expires_pages", pa.int64())]),
        ),
        "by_page": (pa.schema([("k", pa.string()), ("_key", text)]), pa.schema([("by_page", fields)])),
    }
    assert state.stored == {
        "kind": "processor",
        "time_mode": "ProcessingTime",
        "variables": {
            "visits": {"form": "value"},
            "pages": {"form": "list", "ttl_ms": 1_000},
            "by_page": {"form": "map"},
        },
    }


def test_variables_can_be_added_and_removed_while_others_keep_their_values() -> None:
    def more(handle: StatefulProcessorHandle, made: Scripted) -> None:
        made.v = handle.getValueState("v", N, 5_000)
        made.w = handle.getListState("w", N)

    def both(made: Scripted, key: Any, rows: list[Any]) -> Any:
        made.w.appendValue((rows[0].n,))
        return count(made, key, rows), list(made.w.get())

    def gone(handle: StatefulProcessorHandle, made: Scripted) -> None:
        handle.deleteIfExists("v")
        made.w = handle.getListState("w", N)

    stage = stage_of(Scripted(value(), count))
    stage.batch([row("a"), row("a"), row("b")])
    assert stage.migrate(sw.processor(Scripted(more, both), OUTPUT, time_mode="ProcessingTime")) == (
        "+ w int64; existing rows have null",
        "+ timers list<int64>; existing rows have null",
        "+ timers by ProcessingTime: new rows fall due; existing ones once they are rewritten",
    )
    assert [each["seen"] for each in stage.batch([row("a", 7)], 10_000)] == ["((3,), [(7,)])"]
    assert [each["seen"] for each in stage.batch([row("a", 8), row("b", 9)], 16_000)] == [
        "((1,), [(7,), (8,)])",
        "((2,), [(9,)])",
    ], "what is written since lives five seconds, and what was before has no end"
    stage.migrate(sw.processor(Scripted(gone), OUTPUT, time_mode="ProcessingTime"))
    parts = [(each["k"], each["_position"], each["w"]["n"]) for each in rows_of(stage, "w")]
    assert sorted(parts) == [("a", 0, 7), ("a", 1, 8), ("b", 0, 9)]
    assert {each["k"]: each["w"] for each in rows_of(stage)} == {"a": 2, "b": 1}


def of_lists(words: str, by_n: str, schema: Any = N, key: Any = N, ttl_ms: int | None = None) -> Scripted:
    """Return a processor that adds each row to a list and to a map, and emits their elements."""

    def init(handle: StatefulProcessorHandle, made: Scripted) -> None:
        made.words = handle.getListState(words, schema, ttl_ms)
        made.by_n = handle.getMapState(by_n, key, N)

    def add(made: Any, _key: Any, rows: list[Any]) -> Any:
        for each in rows:
            made.words.appendValue((each.n, None)[: len(schema.fields)])
            made.by_n.updateValue((each.n,), (each.n,))
        return list(made.words.get()), sorted((key[0], item[0]) for key, item in made.by_n.iterator())

    return Scripted(init, add)


def test_lists_and_maps_are_renamed_and_widened_with_their_elements() -> None:
    stage = stage_of(of_lists("w", "m"))
    stage.batch([row("a", 1), row("a", 2), row("b", 3)])
    wide = sw.processor(of_lists("words", "m2", struct(n=LongType(), s=StringType())), OUTPUT)
    assert stage.migrate(wide, {"w": "words", "m": "m2"}) == (
        "~ w is renamed to words",
        "~ m is renamed to m2",
        "~ words is struct<n: int64, s: string>, was struct<n: int64>",
    )
    assert [*stage.head.side_tables] == ["m2", "words"]
    (seen,) = (each["seen"] for each in stage.batch([row("a", 4)]))
    assert seen == str(([(1, None), (2, None), (4, None)], [(1, 1), (2, 2), (4, 4)]))
    assert {each["k"]: (each["words"], each["m2"]) for each in rows_of(stage)} == {"a": (3, 3), "b": (1, 1)}
    with pytest.raises(Refused, match=r"its key is now \(k string, _key struct<s: string>\)"):
        stage.migrate(sw.processor(of_lists("words", "m2", struct(n=LongType(), s=StringType()), TEXT), OUTPUT))
    with pytest.raises(Refused, match="may not fit"):
        stage.migrate(sw.processor(of_lists("words", "m2", struct(n=StringType())), OUTPUT))


def test_a_list_that_a_later_migration_restores_is_empty_and_a_ttl_may_be_added() -> None:
    stage = stage_of(of_lists("w", "m"), time_mode="ProcessingTime")
    stage.batch([row("a", 1)])
    stage.migrate(sw.processor(of_lists("w", "m", ttl_ms=1_000), OUTPUT, time_mode="ProcessingTime"))
    assert [each["seen"] for each in stage.batch([row("a", 2)], 10_000)] == ["([(1,), (2,)], [(1, 1), (2, 2)])"]
    assert [each["seen"] for each in stage.batch([row("a", 3)], 12_000)] == ["([(1,), (3,)], [(1, 1), (2, 2), (3, 3)])"]
    for name in ("other", "w"):
        stage.migrate(sw.processor(of_lists(name, "m"), OUTPUT, time_mode="ProcessingTime"))
    assert rows_of(stage, "w") == []
    assert [each["seen"] for each in stage.batch([row("a", 4)], 13_000)] == [
        "([(4,)], [(1, 1), (2, 2), (3, 3), (4, 4)])"
    ]


def test_a_store_error_while_elements_are_read_is_raised_even_if_the_class_catches_it() -> None:
    def add(made: Any, _key: Any, rows: list[Any]) -> Any:
        try:
            return list(made.w.get())
        except Exception:
            return "caught"
        finally:
            made.w.appendValue((rows[0].n,))

    def init(handle: StatefulProcessorHandle, made: Scripted) -> None:
        made.w = handle.getListState("w", N)

    stage = stage_of(Scripted(init, add))
    stage.batch([row("a", 1)])
    (sst,) = stage.head.side_tables["w"].ssts
    data = stage.store.get(sst.object)
    stage.store.delete(sst.object)
    for max_reported in (None, 5):
        stage.max_reported = max_reported
        with pytest.raises(Corruption, match="missing"):
            stage.batch([row("a", 2)])
    stage.store.put(sst.object, data)
    assert [each["seen"] for each in stage.batch([row("a", 2)])] == ["[(1,)]"]


def test_elements_masked_in_a_clone_become_elements_of_nulls(tmp_path: Path) -> None:
    stage = stage_of(of_lists("w", "m"))
    apps.ensure_app(stage.store, AppInfo("a", 1))
    stage.batch([row("a", 1), row("a", 2)])
    with pytest.raises(Refused, match=r"s\.w cannot be masked: it counts the elements of a list"):
        check_masks(newest_active_cut(stage.store, "a", "s"), Masks.from_options({"s.w": "null"}))
    stage.clone({"s_w.w": "null"}, SstCache(tmp_path, 1 << 30))
    assert [each["seen"] for each in stage.batch([row("a", 3)])] == [
        str(([(None,), (None,), (3,)], [(1, 1), (2, 2), (3, 3)]))
    ]


def test_another_form_of_a_variable_or_another_time_of_timers_is_another_state() -> None:
    def as_list(handle: StatefulProcessorHandle, made: Scripted) -> None:
        made.v = handle.getListState("v", N)

    stage = stage_of(Scripted(value(), count), time_mode="ProcessingTime")
    stage.batch([row("a")])
    with pytest.raises(Refused, match="column 'v' is now int64"):
        stage.migrate(sw.processor(Scripted(as_list), OUTPUT, time_mode="ProcessingTime"))
    for other in ("EventTime", "None"):
        with pytest.raises(Refused, match=rf"its state is now processor\(time_mode={other}\)"):
            stage.migrate(sw.processor(Scripted(value(), count), OUTPUT, time_mode=other))


def test_a_class_can_be_replaced_by_an_update_over_its_variables() -> None:
    def add(rows: pa.Table, state: pa.Table) -> pa.Table:
        more = np.bincount(rows["_key"].to_numpy(), minlength=state.num_rows)
        n = pa.compute.fill_null(pa.compute.struct_field(state["v"], "n"), 0)
        made = pa.StructArray.from_arrays([pa.compute.add(n, pa.array(more)).combine_chunks()], names=["n"])
        return pa.table({"v": made})

    def soon(made: Scripted, key: Any, rows: list[Any]) -> Any:
        made.handle.registerTimer(5_000)
        return count(made, key, rows)

    stage = stage_of(Scripted(value(), soon), time_mode="ProcessingTime")
    stage.batch([row("a"), row("a"), row("b")], 1_000)
    assert stage.migrate(sw.update(add, state=pa.schema([("v", pa.struct([("n", pa.int64())]))]))) == (
        "- timers list<int64>",
        "- timers by ProcessingTime: rows no longer fall due",
    )
    stage.batch([row("a")], 10_000)
    assert {each["k"]: each["v"]["n"] for each in rows_of(stage)} == {"a": 3, "b": 1}


def test_each_batch_begins_with_a_fresh_instance_and_rows_sorted_by_order_by() -> None:
    def remembers(made: Scripted, key: Any, rows: list[Any]) -> Any:
        made.seen = [*getattr(made, "seen", []), *(each.n for each in rows)]  # type: ignore[attr-defined]
        return made.seen  # type: ignore[attr-defined]

    stage = stage_of(Scripted(value(), remembers), order_by="n")
    assert [each["seen"] for each in stage.batch([row("a", 3), row("a", 1), row("a", 2)])] == ["[1, 2, 3]"]
    assert [each["seen"] for each in stage.batch([row("a", 4)])] == ["[4]"]


def test_values_of_numpy_and_pandas_are_kept_as_python_values_and_read_values_may_be_changed() -> None:
    every = struct(n=LongType(), f=IntegerType(), at=TimestampType(), words=ArrayType(StringType()))

    def write(made: Scripted, _key: Any, rows: list[Any]) -> Any:
        if (before := made.v.get()) is None:
            words = np.array(["x", "y"])
            made.v.update((np.int64(1), np.int32(2), pd.Timestamp("2026-01-01", tz="UTC"), list(words)))
            return [type(each).__name__ for each in made.v.get()]
        before[3].append("z")
        return made.v.get()[3]

    stage = stage_of(Scripted(value(schema=every), write))
    assert [each["seen"] for each in stage.batch([row("a")])] == ["['int', 'int', 'datetime', 'list']"]
    assert [each["seen"] for each in stage.batch([row("a")])] == ["['x', 'y']"]


def test_the_initial_state_of_keys_is_read_from_its_own_input() -> None:
    state = sw.processor(Scripted(value(), count), OUTPUT, initial_state="old")
    schemas = [
        with_input_metadata(ROWS, "t", None),
        with_input_metadata(pa.schema([("k", pa.string()), ("n", pa.int64())]), "old", None),
    ]
    bound = state.bind(schemas, ("k",))
    times = ROWS.field("at")  # that of the stage's watermark
    tagged = pa.schema(
        [
            ("k", pa.string()),
            times,
            *((name, pa.int64() if name == "_1_n" else kind(name)) for name in bound.needed_columns),
        ]
    )
    stage = Stage(bound, ("k",), tagged, state.stored)
    found = stage.batch(
        [
            {"k": "a", "_input": 0, "_0_n": 1},
            {"k": "a", "_input": 1, "_1_n": 4},
            {"k": "b", "_input": 1, "_1_n": 5},
            {"k": "c", "_input": 0, "_0_n": 1},
        ]
    )
    assert {each["k"]: each["seen"] for each in found} == {"a": "(401,)", "c": "(1,)"}
    assert {each["k"]: each["v"]["n"] for each in rows_of(stage)} == {"a": 401, "b": 500, "c": 1}


def kind(name: str) -> pa.DataType:
    return pa.int32() if name == "_input" else ROWS.field(name[3:]).type


def twice(handle: StatefulProcessorHandle, _made: Scripted) -> None:
    handle.getValueState("v", N)
    handle.getListState("v", N)


def uses(handle: StatefulProcessorHandle, _made: Scripted) -> None:
    handle.getValueState("v", N).get()


def calls(handle: StatefulProcessorHandle, _made: Scripted) -> None:
    handle.registerTimer(1)


def by_lists(handle: StatefulProcessorHandle, _made: Scripted) -> None:
    handle.getMapState("m", struct(words=ArrayType(StringType())), N)


@pytest.mark.parametrize(
    ("init", "more", "why"),
    [
        (value("k"), {}, "'k' is part of the key already"),
        (value("_v"), {}, "'_v' starts with '_'"),
        (value("timers"), {"time_mode": "EventTime"}, "the name of the column of timers"),
        (value(ttl_ms=5), {"time_mode": "EventTime"}, "'v' has a time to live, which needs processing time"),
        (value(ttl_ms=0), {"time_mode": "ProcessingTime"}, "has a time to live of 0 ms"),
        (value(schema=struct()), {}, "value state 'v' cannot be kept"),
        (twice, {}, "asks for list state 'v' twice"),
        (uses, {}, "uses value state 'v', and there is no key yet"),
        (calls, {}, "init\\(\\) uses registerTimer of its handle"),
        (by_lists, {}, "the key of map state 'm' has the field 'words'"),
        (value(), {"order_by": "nothing"}, "no column"),
        (value(), {"initial_state": "t2"}, "no input"),
        (value(), {"initial_state": "t"}, "takes two: the rows, and the initial state of keys"),
    ],
)
def test_an_impossible_declaration_is_refused_by_name_before_anything_is_written(
    init: Init, more: dict[str, Any], why: str
) -> None:
    with pytest.raises((Refused, Usage, NotFound), match=why):
        stage_of(Scripted(init), **more)


@pytest.mark.parametrize("more", [{"time_mode": "Sometimes"}, {"output_mode": "Complete"}])
def test_an_unknown_or_unsupported_mode_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Usage, match=r"expected 'None', 'ProcessingTime'|expected 'Update' or 'Append'"):
        sw.processor(Scripted(value()), OUTPUT, **more)
    with pytest.raises(Usage, match="timeout is 'Never'"):
        sw.pandas_state(count, OUTPUT, N, "Never")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (lambda made, _key, _rows: made.v.update(5), "got int; expected a tuple of n"),
        (lambda made, _key, _rows: made.v.update((1, 2)), "got 2 values; expected 1: n"),
        (
            lambda made, _key, _rows: made.v.update(("x",)),
            "state variable 'v': a value of field 'n' does not fit int64",
        ),
        (lambda made, _key, _rows: made.handle.getValueState("late", N), "asks for state variable 'late'"),
        (lambda made, _key, _rows: made.handle.registerTimer(1), "has timers, but time_mode is 'None'"),
    ],
)
def test_forbidden_calls_of_a_class_are_refused_by_name(rows: Rows, why: str) -> None:
    with pytest.raises(SlackwaterError, match=why):
        stage_of(Scripted(value(), rows)).batch([row("a")])
