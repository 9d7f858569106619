"""The mapping from a query's state to a stage's columns, and the errors if there is none."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming import StatefulProcessorHandle
from pyspark.sql.types import IntegerType, LongType, StringType
from slackwater.errors import Refused
from slackwater.operations.attach.protocol import DELETED
from slackwater.operations.from_spark.adopt.adoption import AdoptedBatch
from slackwater.operations.from_spark.adopt.grouped import GroupedMapping
from slackwater.operations.from_spark.adopt.mapping import RowMapping, StateMapping, map_tables
from slackwater.state.kinds.aggregate import Aggregates
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.kind import BoundState, Groups, Kind, with_input_metadata
from slackwater.state.kinds.pandas_state import PandasState
from slackwater.state.kinds.session import Sessions
from slackwater.state.kinds.update import Update
from slackwater.store.compaction.merge import iter_visible_rows
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.schema import DUE, arrow_schema
from slackwater.store.versions.manifest import Column, Table
from slackwater.store.versions.side_tables import side_manifests

from tests.models.profiles import scaled
from tests.operations.attach.memory_checkpoint import MemoryCheckpoint, MemoryTable
from tests.operations.from_spark.adopt.adopting import adoption, declared, table_of
from tests.state.kinds.spark_model import OUTPUT, struct
from tests.state.kinds.test_processor_table import Scripted

TIME = pa.timestamp("us", "UTC")
COUNTRY = pa.schema([("country", pa.string())])
ROWS = pa.schema(
    [
        ("country", pa.string()),
        ("cents", pa.int64()),
        ("price", pa.decimal128(6, 2)),
        ("weight", pa.float64()),
        ("at", TIME),
    ]
)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rows_of(mapping: RowMapping | GroupedMapping, *states: pa.Table) -> list[dict[str, Any]]:
    """Map whole states, and return the rows."""
    tables = mapping.map_all([state.to_batches() for state in states])
    return [row for each in tables for row in each.to_pylist()]


def of_buffer(kind: Aggregates, fields: list[tuple[str, pa.DataType]], *values: object) -> dict[str, Any]:
    """Map a buffer of these fields and values, and return the row."""
    buffer = pa.schema(fields)
    mapping = map_tables([MemoryTable("", COUNTRY, buffer)], declared(kind, ROWS, ["country"]), "stage s")
    state = pa.table([["DE"], *([value] for value in values)], schema=pa.schema([*COUNTRY, *buffer]))
    ((row),) = rows_of(mapping, state)
    return row


def refused(kind: Kind, table: MemoryTable, key: list[str] | None = None) -> str:
    with pytest.raises(Refused) as caught:
        map_tables([table], declared(kind, ROWS, key or ["country"]), "stage shop/totals")
    return caught.value.message


INT, DOUBLE, BOOL = pa.int64(), pa.float64(), pa.bool_()
DECIMAL = pa.decimal128(16, 2)


def test_buffer_fields_are_matched_by_position() -> None:
    kind = sw.aggregate(first=sw.sum("cents"), orders=sw.count(), mean=sw.mean("weight"), second=sw.sum("cents"))
    fields = [("sum", INT), ("count", INT), ("sum_2", DOUBLE), ("count_2", INT), ("sum_3", INT)]
    made = of_buffer(kind, fields, 7, 3, 4.5, 2, 8)
    assert made == {
        "country": "DE", "first": 7, "orders": 3, "mean": 2.25, "_mean_sum": 4.5, "_mean_count": 2, "second": 8,
    }  # fmt: skip


def test_sum_and_mean_of_no_values_are_null() -> None:
    kind = sw.aggregate(price=sw.sum("price"), mean=sw.mean("cents"))
    fields = [("sum", DECIMAL), ("isEmpty", BOOL), ("sum_2", DOUBLE), ("count", INT)]
    nothing = {"country": "DE", "price": None, "mean": None, "_mean_sum": None, "_mean_count": 0}
    assert of_buffer(kind, fields, Decimal("0.00"), True, 0.0, 0) == nothing
    some = {"country": "DE", "price": Decimal("1.50"), "mean": 2.5, "_mean_sum": 5, "_mean_count": 2}
    assert of_buffer(kind, fields, Decimal("1.50"), False, 5.0, 2) == some


def test_sums_of_short_decimals_get_their_scale_back() -> None:
    kind = sw.aggregate(price=sw.sum("price"), mean=sw.mean("price"))
    made = of_buffer(kind, [("sum", INT), ("sum_2", DOUBLE), ("count", INT)], 1_234, 1_234.0, 2)
    assert made["price"] == Decimal("12.34")
    assert (made["_mean_sum"], made["mean"]) == (Decimal("12.34"), 6.17)


def test_an_overflowed_sum_is_refused_and_not_taken_for_null() -> None:
    kind = sw.aggregate(price=sw.sum("price"))
    with pytest.raises(Refused, match="the sums of 1 keys overflowed Spark's decimals"):
        of_buffer(kind, [("sum", DECIMAL), ("isEmpty", BOOL)], None, False)


def test_the_sum_behind_a_mean_of_integers_may_exceed_a_long() -> None:
    made = of_buffer(sw.aggregate(mean=sw.mean("cents")), [("sum", DOUBLE), ("count", INT)], 3e19, 2)
    assert (made["_mean_sum"], made["mean"]) == (Decimal(3 * 10**19), 1.5e19)


def test_first_and_last_continue_with_any_order_column() -> None:
    kind = sw.aggregate(
        a=sw.first("cents", by="at"),
        b=sw.last("cents", by="at"),
        c=sw.last("cents", by="weight"),
        d=sw.first("cents", by="price"),
    )
    pair = [("valueWithExtremumOrdering", INT), ("extremumOrdering", DOUBLE)]
    fields = [
        ("first", INT),
        ("valueSet", BOOL),
        ("last", INT),
        ("valueSet_2", BOOL),
        *pair,
        ("first_2", INT),
        ("valueSet_3", BOOL),
    ]
    made = of_buffer(kind, fields, 1, True, 2, True, 3, 9.5, None, False)
    assert (made["a"], made["b"], made["c"], made["_c_by"], made["d"], made["_d_by"]) == (1, 2, 3, 9.5, None, None)
    assert made["_a_by"].year == 1
    assert made["_b_by"] is None
    bound = kind.bind([ROWS], ("country",))
    later = {"country": "DE", "cents": 5, "price": Decimal("1.00"), "weight": 10.0, "at": NOON - timedelta(days=20_000)}
    merged = bound.merge(
        pa.Table.from_pylist([later], ROWS), Groups(np.zeros(1, np.int32), np.zeros(1, np.int64)),
        pa.table({"country": ["DE"]}), pa.Table.from_pylist([made], bound.values),
    ).values.to_pylist()[0]  # fmt: skip
    assert (merged["a"], merged["b"], merged["c"], merged["d"]) == (1, 5, 5, 5)


def test_a_mismatch_is_reported_with_its_position() -> None:
    table = MemoryTable("", COUNTRY, pa.schema([("count", INT), ("max", pa.string())]))
    assert (
        "column 'cents' is sum(cents): expected sum (sum, isEmpty) or sum (sum) at position 2 of the state, found max"
        in (refused(sw.aggregate(orders=sw.count(), cents=sw.sum("cents")), table))
    )
    assert "column 'cents' is int64, but 'max' of the state is string" in (
        refused(sw.aggregate(orders=sw.count(), cents=sw.max("cents")), table)
    )
    more = MemoryTable("", COUNTRY, pa.schema([("count", INT), *((f"MS_{n}", INT) for n in range(52))]))
    said = refused(sw.aggregate(orders=sw.count()), more)
    assert "the state has 52 more fields than the declared aggregates: MS_0 int64, MS_1 int64" in said
    assert "of approx_count_distinct, which no aggregate of slackwater can continue: declare it as update(...)" in said
    key = MemoryTable("", pa.schema([("country", INT)]), pa.schema([("count", INT)]))
    assert "key column 'country' is string, but 'country' of the state is int64" in (
        refused(sw.aggregate(orders=sw.count()), key)
    )


def test_keys_are_matched_by_name_and_expressions_by_position() -> None:
    key = pa.schema([("groupingexpression", pa.string()), ("at", TIME)])
    table = declared(sw.aggregate(orders=sw.count()), ROWS, ["at", "country"])
    mapping = map_tables([MemoryTable("", key, pa.schema([("count", INT)]))], table, "stage s")
    state = pa.table([["DE"], pa.array([NOON], TIME), [3]], schema=pa.schema([*key, ("count", INT)]))
    assert rows_of(mapping, state) == [{"at": NOON, "country": "DE", "orders": 3}]
    changes = mapping.map_changes([state.append_column(DELETED, pa.array([True]))])
    assert changes.to_pylist() == [{"at": NOON, "country": "DE", "orders": None, DELETED: True}]


def test_a_global_aggregate_becomes_one_row_with_key_0() -> None:
    state = MemoryTable("", pa.schema([("row", INT)]), pa.schema([("count", INT), ("sum", INT)]), "total")
    rows = pa.schema([("row", pa.int32()), ("one", pa.int32()), ("cents", INT)])
    kind = sw.aggregate(orders=sw.count(), cents=sw.sum("cents"))
    mapping = map_tables([state], declared(kind, rows, ["row"]), "stage s")
    assert rows_of(mapping, pa.table({"row": [0], "count": [3], "sum": [7]})) == [{"row": 0, "orders": 3, "cents": 7}]
    with pytest.raises(Refused, match=r"a single row \(total\), but the stage's key is one: declare key='row'"):
        map_tables([state], declared(kind, rows, ["one"]), "stage s")


def test_buffers_without_a_corresponding_aggregate_become_columns_of_an_update() -> None:
    """Such aggregates are `approx_count_distinct`, `collect_list` and `stddev`.

    A function can interpret their fields.
    """
    deviation = [("n", DOUBLE), ("avg", DOUBLE), ("m2", DOUBLE)]
    buffers = pa.schema([("MS_0", INT), ("MS_1", INT), ("buf", pa.binary()), *deviation])
    columns = tuple(Column(each.name, from_arrow(each.type)) for each in buffers)
    kept = Table((Column("country", "string"),), columns, 1, Update().stored)
    mapping = map_tables([MemoryTable("", COUNTRY, buffers)], kept, "stage s")
    row = {"country": "DE", "MS_0": 1, "MS_1": 2, "buf": b"x", "n": 3.0, "avg": 4.0, "m2": 5.0}
    assert rows_of(mapping, pa.Table.from_pylist([row])) == [row]


def test_a_distinct_key_becomes_a_row_of_an_update() -> None:
    seen = Table((Column("country", "string"),), (Column("seen", "bool"),), 1, Update().stored)
    mapping = map_tables([MemoryTable("", COUNTRY, pa.schema([]), "distinct")], seen, "stage s")
    assert rows_of(mapping, pa.table({"country": ["DE"]})) == [{"country": "DE", "seen": True}]
    kept = MemoryTable("", COUNTRY, pa.schema([("expires_at", TIME)]), "distinct-within-watermark")
    until = (Column("until", "timestamp[us, tz=UTC]"), Column(DUE, "int64"))
    mapping = map_tables([kept], Table((Column("country", "string"),), until, 1, Update("until").stored), "stage s")
    made = rows_of(mapping, pa.table({"country": ["DE"], "expires_at": pa.array([5_000_001], TIME)}))
    assert [(row["until"].second, row[DUE]) for row in made] == [(5, 5_001)]


def test_state_of_a_pandas_function_has_its_fields_and_its_timeout() -> None:
    values = pa.schema([("n", INT), ("last", pa.string()), ("has_state", BOOL), ("due_at", TIME)])
    columns = [("n", "int64"), ("last", "string"), ("_defined", "bool"), (DUE, "int64")]
    table = Table(
        (Column("country", "string"),),
        tuple(Column(*each) for each in columns),
        1,
        PandasState("ProcessingTimeTimeout").stored,
    )
    mapping = map_tables([MemoryTable("", COUNTRY, values, "pandas")], table, "stage s")
    state = pa.table(
        [
            ["DE", "FR", "IT"],
            [1, None, None],
            ["x", None, None],
            [True, False, True],
            pa.array([None, 70_000, 0], TIME),
        ],
        schema=pa.schema([*COUNTRY, *values]),
    )
    assert rows_of(mapping, state) == [
        {"country": "DE", "n": 1, "last": "x", "_defined": True, DUE: None},
        {"country": "FR", "n": None, "last": None, "_defined": False, DUE: 71},
        {"country": "IT", "n": None, "last": None, "_defined": True, DUE: 1},
    ]
    without = MemoryTable("", COUNTRY, pa.schema([*values][:2]), "pandas")
    with pytest.raises(Refused, match="the function has a timeout, but the state has none: it has n int64, last str"):
        map_tables([without], table, "stage s")


def merged(bound: BoundState, schema: pa.Schema, rows: list[dict[str, Any]], key: list[str]) -> list[dict[str, Any]]:
    """Return the rows that a stage stores for one key, visible or not."""
    table = pa.Table.from_pylist(rows, schema=schema)
    groups = Groups(np.zeros(len(rows), np.int32), np.zeros(1, np.int64))
    keys = table.select(key).slice(0, 1)
    old = pa.Table.from_pylist([dict.fromkeys(bound.values.names)], bound.values)
    values = bound.merge(table, groups, keys, old).values
    return [one | other for one, other in zip(keys.to_pylist(), values.to_pylist(), strict=True)]


def test_sessions_of_a_key_become_one_row_as_the_stage_stores_them(tmp_path: Path) -> None:
    session = pa.struct([("start", TIME), ("end", TIME)])
    rows = pa.schema([("country", pa.string()), ("visit", session), ("weight", DOUBLE)])
    kind = Sessions(FinalKind(sw.aggregate(n=sw.count(), mean=sw.mean("weight"))), "visit")
    bound = kind.bind([rows], ("country", "visit"))
    table = table_of(kind, COUNTRY, bound)
    key = pa.schema([("country", pa.string()), ("sessionStartTime", TIME)])
    values = pa.schema(
        [
            ("session_window", session),
            ("count", INT),
            ("sum", DOUBLE),
            ("count_2", INT),
        ]
    )
    mapping = map_tables([MemoryTable("", key, values, "session")], table, "stage s")

    def spark(*sessions: tuple[int, int, int, float]) -> pa.Table:
        made = [
            {
                "country": "DE", "sessionStartTime": NOON + timedelta(minutes=start),
                "session_window": {"start": NOON + timedelta(minutes=start), "end": NOON + timedelta(minutes=end)},
                "count": count, "sum": total, "count_2": count,
            }
            for start, end, count, total in sessions
        ]  # fmt: skip
        return pa.Table.from_pylist(made, pa.schema([*key, *values]))

    def row(start: int, weight: float) -> dict[str, Any]:
        at = NOON + timedelta(minutes=start)
        return {"country": "DE", "visit": {"start": at, "end": at + timedelta(minutes=3)}, "weight": weight}

    first = [row(20, 3.0), row(0, 1.0), row(2, 2.0)]
    assert rows_of(mapping, spark((20, 23, 1, 3.0), (0, 5, 2, 3.0))) == merged(bound, rows, first, ["country"])
    # If a session grows, Spark stores another row; if it ends, the row disappears.
    change = pa.concat_tables([spark((20, 23, 1, 3.0)), spark((18, 23, 2, 7.0))])
    (now,) = mapping.map_changes([change.append_column(DELETED, pa.array([True, False]))]).to_pylist()
    (expected,) = merged(bound, rows, [*first, row(18, 4.0)], ["country"])
    assert {name: value for name, value in now.items() if name != DELETED} == expected
    change = spark((0, 5, 2, 3.0), (18, 23, 2, 7.0)).append_column(DELETED, pa.array([True, True]))
    (gone,) = mapping.map_changes([change]).to_pylist()
    assert (gone["country"], gone[DELETED]) == ("DE", True)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_that_wait_for_a_join_become_lists_as_the_stage_stores_them(how: Any) -> None:
    sides = (
        with_input_metadata(pa.schema([("country", pa.string()), ("av", INT), ("at", TIME)]), "orders", "at"),
        with_input_metadata(pa.schema([("country", pa.string()), ("bv", INT), ("bt", TIME)]), "payments", "bt"),
    )
    kind = sw.join("orders", "payments", within="1 hour", how=how)
    bound = kind.bind(sides, ("country",))
    table = table_of(kind, COUNTRY, bound)
    key = pa.schema([("field0", pa.string()), ("index", INT)])
    left, right = (
        MemoryTable(
            name, key, pa.schema([each.remove_metadata() for each in [*side, pa.field("matched", BOOL)]]), "join"
        )
        for name, side in zip(("", "right"), sides, strict=True)
    )
    mapping = map_tables([left, right], table, "stage s", bound)

    def spark(table: MemoryTable, *rows: tuple[int, int, int, bool]) -> pa.Table:
        schema = pa.schema([*table.key, *table.values])
        made = [("DE", index, "DE", value, NOON + timedelta(minutes=minute), met) for index, value, minute, met in rows]
        return pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in made], schema)

    mine = spark(left, (0, 1, 10, True), (1, 2, 5, False))
    whole = rows_of(mapping, mine, spark(right, (0, 7, 300, False)))
    (row,) = whole
    assert [each["av"] for each in row["orders"]] == [2, 1], "by time"
    assert [each["bv"] for each in row["payments"]] == [7]
    alone, last = (round((NOON + timedelta(minutes=at)).timestamp() * 1_000) + 3_600_001 for at in (5, 300))
    assert row[DUE] == (alone if how == "left" else last)
    if how == "left":
        assert row["_matched"] == [False, True]
    gone = spark(right, (0, 7, 300, False)).append_column(DELETED, pa.array([True]))
    none = spark(left).append_column(DELETED, pa.array([], BOOL))
    (row,) = mapping.map_changes([none, gone]).to_pylist()
    assert row["payments"] == []
    assert arrow_schema(table.values).names == [name for name in row if name not in ("country", DELETED)]


def test_several_operators_do_not_fit_one_table() -> None:
    tables = [
        MemoryTable("", COUNTRY, pa.schema([("count", INT)])),
        MemoryTable("distinct", COUNTRY, pa.schema([]), "distinct"),
    ]
    with pytest.raises(Refused, match=r"the query has several tables \(its own \(aggregate\), distinct \(distinct\)\)"):
        map_tables(tables, declared(sw.aggregate(n=sw.count()), ROWS, ["country"]), "stage s")


def test_the_state_variables_of_a_processor_become_one_row_per_key() -> None:
    element = pa.struct([("x", pa.int32())])

    def init(handle: StatefulProcessorHandle, _made: Scripted) -> None:
        handle.getValueState("v", struct(n=LongType(), last=StringType()))
        handle.getListState("l", struct(x=IntegerType()))
        handle.getMapState("m", struct(k=StringType()), struct(c=LongType()))
        handle.getValueState("t", struct(n=LongType()), 5_000)

    kind = sw.processor(Scripted(init), OUTPUT, time_mode="ProcessingTime")
    bound = kind.bind([pa.schema([("country", pa.string())])], ("country",))
    table = table_of(kind, COUNTRY, bound, 1)

    def state(name: str, values: list[Any], more: list[Any], *rows: tuple[Any, ...]) -> tuple[MemoryTable, pa.Table]:
        made = MemoryTable(
            name, pa.schema([*COUNTRY, *(pa.field(*each) for each in more)]), pa.schema(values), "transform"
        )
        schema = pa.schema([*made.key, *made.values])
        return made, pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)

    tables, rows = zip(
        state("", [("n", INT), ("last", pa.string())], [], ("DE", 3, "x")),
        state("l", [("list_value", pa.list_(element))], [], ("DE", [{"x": 1}, {"x": 2}]), ("FR", [{"x": 9}])),
        state("m", [("c", INT)], [("k", pa.string())], ("DE", "b", 2), ("DE", "a", 1)),
        state("t", [("n", INT), ("expires_at", TIME)], [], ("DE", 7, at_ms(90))),
        state("timers", [], [("due_at", TIME)], ("DE", at_ms(80)), ("DE", at_ms(70))),
        strict=True,
    )
    mapping = map_tables(tables, table, "stage s", bound)
    found = {row["country"]: row for row in rows_of(mapping, *rows)}
    assert found["DE"] == {
        "country": "DE", "v": {"n": 3, "last": "x"}, "l": 2, "_span_l": {"first": 0, "next": 2}, "m": 2,
        "t": {"n": 7}, "_expires_t": 90, "timers": [70, 80], DUE: 70,
    }  # fmt: skip
    one = {"l": 1, "_span_l": {"first": 0, "next": 1}}
    assert found["FR"] == dict.fromkeys(table_names(table)) | {"country": "FR", **one}
    assert parts_of(mapping, "l") == [("DE", 0, {"x": 1}), ("DE", 1, {"x": 2}), ("FR", 0, {"x": 9})]
    assert parts_of(mapping, "m") == [("DE", {"k": "a"}, {"c": 1}), ("DE", {"k": "b"}, {"c": 2})]
    none = [each.slice(0, 0).append_column(DELETED, pa.array([], BOOL)) for each in rows]
    none[4] = rows[4].slice(1).append_column(DELETED, pa.array([True]))
    (now,) = mapping.map_changes(none).to_pylist()
    assert (now["timers"], now[DUE], now["v"]) == ([80], 80, {"n": 3, "last": "x"})
    assert parts_of(mapping, "l", all_keys=False) == [("DE", 0, {"x": 1}), ("DE", 1, {"x": 2})]


LISTS = st.dictionaries(st.sampled_from("abc"), st.none() | st.lists(st.integers(0, 3), min_size=1), max_size=3)
MAPS = st.dictionaries(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), st.none() | st.integers(0, 3))


@scaled(25, in_ci=300)
@given(st.lists(st.tuples(LISTS, MAPS), min_size=1, max_size=6))
def test_lists_and_maps_of_each_batch_become_rows_of_side_tables(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Any]
) -> None:
    def init(handle: StatefulProcessorHandle, _made: Scripted) -> None:
        handle.getListState("l", struct(x=IntegerType()))
        handle.getMapState("m", struct(k=StringType()), struct(c=LongType()))

    kind = sw.processor(Scripted(init), OUTPUT)
    bound = kind.bind([COUNTRY], ("country",))
    elements = pa.list_(pa.struct([("x", pa.int32())]))
    tables = (
        MemoryTable("l", COUNTRY, pa.schema([("list_value", elements)]), "transform"),
        MemoryTable("m", pa.schema([*COUNTRY, ("k", pa.string())]), pa.schema([("c", INT)]), "transform"),
    )
    checkpoint = MemoryCheckpoint(tables)
    for number, (lists, maps) in enumerate(batches, start=1):
        changes: dict[str, Any] = {
            "l": {(k,): None if xs is None else ([{"x": x} for x in xs],) for k, xs in lists.items()},
            "m": {key: None if c is None else (c,) for key, c in maps.items()},
        }
        checkpoint.commit(changes, {"orders": (number, 0)}, number * 1_000)
    store, cache = MemoryStore(), SstCache(tmp_path_factory.mktemp("cache"), 1 << 30)
    steps: list[AdoptedBatch] = []
    adoption(store, cache, checkpoint, table_of(kind, COUNTRY, bound), on_step=steps.append, bound=bound).run()
    assert [step.batch for step in steps if step.manifest.traits.reads_records or step.manifest.version == 1] == [
        *range(len(batches))
    ]
    for step in steps:
        state = checkpoint.state(step.batch)
        expected = {
            "l": [(k, at, x) for (k,), (xs,) in state["l"].items() for at, x in enumerate(xs)],  # type: ignore[arg-type]
            "m": [(k, {"k": name}, {"c": c}) for (k, name), (c,) in state["m"].items()],
        }
        for side in side_manifests(step.manifest):
            assert side.table is not None
            rows = [
                tuple(row[column.name] for column in side.table.columns)
                for partition in range(side.table.partitions)
                for part in iter_visible_rows(store, cache, side.ssts, side.table, partition, 0)
                for row in part.to_pylist()
            ]
            assert sorted(rows, key=str) == sorted(expected[side.name], key=str)


def parts_of(mapping: StateMapping, side: str, *, all_keys: bool = True) -> list[tuple[Any, ...]]:
    parts = [row for rows in mapping.part_rows(side, all_keys=all_keys) for row in rows.to_pylist()]
    return sorted((tuple(row.values()) for row in parts), key=str)


def at_ms(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1_000, UTC)


def table_names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def test_nan_is_not_mapped_to_a_maximum() -> None:
    kind = sw.aggregate(least=sw.min("weight"), most=sw.max("weight"))
    fields = [("min", DOUBLE), ("max", DOUBLE)]
    assert of_buffer(kind, fields, float("nan"), 3.0)["least"] is None
    with pytest.raises(Refused, match="column 'most': the maximum of 1 keys is NaN"):
        of_buffer(kind, fields, 1.0, float("nan"))
