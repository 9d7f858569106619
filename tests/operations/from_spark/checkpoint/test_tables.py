"""Spark's state rows as tables with flat columns."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)
from slackwater.errors import Refused
from slackwater.operations.attach.protocol import has_timeout
from slackwater.operations.from_spark.checkpoint.operators import Operator, OperatorTable
from slackwater.operations.from_spark.checkpoint.tables import StateTable, make_state_table

INSTANT = pa.timestamp("us", "UTC")
WINDOW = StructType([StructField("start", TimestampType()), StructField("end", TimestampType())])


def _struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def _table(kind: str, **columns: DataType) -> StateTable:
    kept = OperatorTable("", "default")
    operator = Operator(0, kind, kind, ("default",), 2, (kept,))
    return make_state_table("", operator, kept, _struct(*columns.items(), ("partition_id", IntegerType())))


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return list(zip(schema.names, schema.types, strict=True))


def test_buffer_fields_of_the_same_name_are_numbered() -> None:
    buffers = _struct(("sum", LongType()), ("count", LongType()), ("Sum", LongType()), ("MS[0]", LongType()))
    table = _table("aggregate", key=_struct(("sum", StringType())), value=buffers)
    assert _columns(table.key) == [("sum", pa.string())]
    assert table.values.names == ["sum_2", "count", "Sum_3", "MS_0"]
    assert [each.field_indices for each in table.reader_columns] == [(0,), (0,), (1,), (2,), (3,)]
    assert table.kind == "aggregate"


def test_a_window_in_the_key_is_a_struct_under_any_name() -> None:
    table = _table("aggregate", key=_struct(("hop", WINDOW), ("k", StringType())), value=_struct(("count", LongType())))
    assert _columns(table.key) == [("hop", pa.struct([("start", INSTANT), ("end", INSTANT)])), ("k", pa.string())]
    assert table.kind == "window"


def test_the_key_of_a_session_is_not_repeated_in_the_values() -> None:
    key = _struct(("k", StringType()), ("sessionStartTime", TimestampType()))
    value = _struct(("session_window", WINDOW), ("k", StringType()), ("count", LongType()))
    assert _table("session", key=key, value=value).values.names == ["session_window", "count"]


def test_a_global_aggregate_gets_a_key_and_a_distinct_row_has_no_values() -> None:
    total = _table("aggregate", key=_struct(), value=_struct(("count", LongType())))
    assert (_columns(total.key), total.kind) == ([("row", pa.int64())], "total")
    table = _table("distinct", key=_struct(("k", StringType())), value=_struct(("__dummy__", NullType())))
    assert not table.values


@pytest.mark.parametrize("kind", ["pandas", "map-groups"])
def test_user_state_keeps_its_field_names_and_its_timeout_becomes_a_time(kind: str) -> None:
    key, inside = _struct(("k", StringType())), _struct(("n", LongType()))
    table = _table(kind, key=key, value=_struct(("groupState", inside), ("timeoutTimestamp", LongType())))
    # A state whose fields are all null differs from a missing state.
    assert _columns(table.values) == [("n", pa.int64()), ("has_state", pa.bool_()), ("due_at", INSTANT)]
    assert has_timeout(table.values)
    assert not has_timeout(_table(kind, key=key, value=_struct(("groupState", inside))).values)


def test_nested_structs_get_distinct_field_names() -> None:
    inside = _struct(("a", LongType()), ("A", StringType()), ("x.y", ArrayType(_struct(("b c", VariantType())))))
    table = _table("aggregate", key=_struct(("n", inside)), value=_struct(("first", inside), ("n", NullType())))
    kept = pa.struct([("a", pa.int64()), ("A_2", pa.string()), ("x_y", pa.list_(pa.struct([("b_c", pa.string())])))])
    assert _columns(table.schema) == [("n", kept), ("first", kept)]


def test_a_user_struct_named_like_sparks_own_is_kept() -> None:
    of = _struct(("value", _struct(("n", LongType()))), ("other", LongType()))
    table = _table("transform", key=_struct(("k", StringType())), value=of)
    assert _columns(table.values) == [("value", pa.struct([("n", pa.int64())])), ("other", pa.int64())]


def test_state_variables_are_tables_with_their_own_keys() -> None:
    key, inside = _struct(("k", StringType())), _struct(("n", LongType()))
    ttl = _struct(("value", inside), ("ttlExpirationMs", LongType()))
    assert _columns(_table("transform", key=key, value=ttl).values) == [("n", pa.int64()), ("expires_at", INSTANT)]
    by_o = _table("transform", key=key, user_map_key=_struct(("o", LongType())), user_map_value=ttl)
    assert (by_o.key.names, by_o.values.names) == (["k", "o"], ["n", "expires_at"])
    seen = _table("transform", key=key, list_value=ArrayType(inside))
    assert _columns(seen.values) == [("list_value", pa.list_(pa.struct([("n", pa.int64())])))]
    timers = _table("transform", key=key, expiration_timestamp_ms=LongType())
    assert (_columns(timers.key), len(timers.values)) == ([("k", pa.string()), ("due_at", INSTANT)], 0)


def test_a_type_without_a_table_type_is_refused_with_its_column() -> None:
    value = _struct(("a", _struct(("b", CalendarIntervalType()))))
    with pytest.raises(Refused, match=r"column value\.a\.b of state 'aggregate' has Spark's type 'interval'"):
        _table("aggregate", key=_struct(("k", StringType())), value=value)


def test_a_key_that_distinguishes_the_sign_of_zero_is_refused() -> None:
    table = _table("distinct", key=_struct(("price", DoubleType()), ("k", StringType())))
    table.check_keys(pa.table({"price": [0.0, None], "k": ["a", "b"]}))
    with pytest.raises(Refused, match=r"the state 'distinct' has a key with -0\.0 in 'price'") as refused:
        table.check_keys(pa.table({"price": [0.0, -0.0], "k": ["a", "a"]}))
    assert "or drop duplicates of price + 0.0" in refused.value.hint
