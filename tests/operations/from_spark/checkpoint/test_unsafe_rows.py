"""Spark's UnsafeRow format: values are read as Spark reports them."""

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from slackwater.operations.from_spark.checkpoint.unsafe_rows import UnknownLayout, decode_rows, is_readable

from tests.models.profiles import scaled

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

EARLY, LATE = datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)  # noqa: DTZ001  in UTC where there is a zone


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**precision - 1
    context = decimal.Context(prec=precision)
    return st.integers(-most, most).map(lambda number: decimal.Decimal(number).scaleb(-scale, context))


SIMPLE: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), _whole(8)),
    (ShortType(), _whole(16)),
    (IntegerType(), _whole(32)),
    (LongType(), _whole(64)),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (StringType(), st.text(st.characters(codec="utf-8"), max_size=12)),
    (BinaryType(), st.binary(max_size=12)),
    (DateType(), st.dates(EARLY.date(), LATE.date())),
    (TimestampType(), st.datetimes(EARLY, LATE, timezones=st.just(datetime.UTC))),
    (TimestampNTZType(), st.datetimes(EARLY, LATE)),
    (DayTimeIntervalType(), st.timedeltas(datetime.timedelta(-9_999), datetime.timedelta(9_999))),
    (DecimalType(9, 2), _decimals(9, 2)),
    (DecimalType(18, 0), _decimals(18, 0)),
    (DecimalType(38, 10), _decimals(38, 10)),
]
Typed = tuple[DataType, st.SearchStrategy[Any]]


def _struct(of: list[Typed]) -> Typed:
    kind = StructType([StructField(f"f{number}", each) for number, (each, _) in enumerate(of)])
    return kind, st.tuples(*(st.none() | values for _, values in of))


def _list(of: Typed) -> Typed:
    return ArrayType(of[0]), st.lists(st.none() | of[1], max_size=4)


def _map(of: tuple[Typed, Typed]) -> Typed:
    return MapType(of[0][0], of[1][0]), st.dictionaries(of[0][1], st.none() | of[1][1], max_size=3)


KEYS = [each for each in SIMPLE if not isinstance(each[0], FloatType | DoubleType | DecimalType)]
TYPES = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(_struct),
        inner.map(_list),
        st.tuples(st.sampled_from(KEYS), inner).map(_map),
    ),
    max_leaves=8,
)
TABLES = st.lists(TYPES, min_size=1, max_size=70).flatmap(
    lambda of: st.tuples(st.just(_struct(of)[0]), st.lists(_struct(of)[1], min_size=1, max_size=8))
)


@given(of=TABLES)
@scaled(8)
def test_rows_are_read_as_spark_reads_them(of: tuple[StructType, list[Any]]) -> None:
    kind, rows = of
    session = SparkSession.builder.getOrCreate().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    frame = session.createDataFrame(rows, kind).coalesce(1)
    laid = [bytes(each.getBytes()) for each in frame._jdf.queryExecution().executedPlan().executeCollect()]
    # One byte before the first row: rows need not begin where the buffer begins.
    data = b"\x07" + b"".join(laid)
    starts = 1 + np.cumsum([0, *map(len, laid)])[:-1]
    assert is_readable(kind)
    found = decode_rows(np.frombuffer(data, np.uint8), starts, kind)
    found.validate(full=True)
    assert repr(found.to_pylist()) == repr(frame.toArrow().to_pylist())


def test_a_truncated_row_is_refused() -> None:
    kind = StructType([StructField("a", StringType()), StructField("b", LongType())])
    row = np.array([0, (24 << 32) | 3, 5, int.from_bytes(b"abc", "little")], np.int64).view(np.uint8)
    assert decode_rows(row, np.array([0]), kind).to_pylist() == [{"a": "abc", "b": 5}]
    for size in range(26):
        with pytest.raises(UnknownLayout):
            decode_rows(row[:size], np.array([0]), kind)


def test_an_unsupported_type_is_left_to_spark() -> None:
    for kind in ("interval", "variant", "array<struct<a: variant>>", "map<string, interval>"):
        assert not is_readable(DataType.fromDDL(kind)), kind
    assert pa.types.is_struct(decode_rows(np.zeros(8, np.uint8), np.array([0]), StructType([])).type)
