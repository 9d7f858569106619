"""Records that make an operator of a plan fail: all are found, each with its error, for any operator."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.pipeline.reject.operators import OperatorSearch
from slackwater.pipeline.spark.plans import hide_record_numbers
from slackwater.state.failing import RECORD, Failure, TooManyFailing

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

COUNT = 2_000
BAD = frozenset({0, 7, 8, 1_234, 1_999})


def text() -> Column:
    return F.col("value")


def refused(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"{text} is no amount")
    return int(text)


def in_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"id": frame["id"], "amount": frame["value"].map(refused)})


def in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        amounts = pa.array([refused(text) for text in batch["value"].to_pylist()], pa.int64())
        yield pa.RecordBatch.from_arrays([batch["id"], amounts], ["id", "amount"])


def iterated(columns: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for column in columns:
        yield column.map(refused)


def by_pandas(column: pd.Series) -> pd.Series:
    return column.map(refused)


OPERATORS: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "a cast": (lambda rows: rows.select("id", text().cast("long")), "NumberFormatException", "'bad {}'"),
    "raise_error": (
        lambda rows: rows.select("id", F.when(text().startswith("bad"), F.raise_error(text())).otherwise(1)),
        "SparkRuntimeException",
        "bad {}",
    ),
    "json, cast and filtered": (
        lambda rows: rows.select(
            "id", F.from_json(F.concat(F.lit('{"a":'), text(), F.lit("}")), "a long", {"mode": "FAILFAST"}).alias("j")
        ).where("j.a >= 0"),
        "",
        "",
    ),
    "explode": (
        lambda rows: rows.select("id", F.explode(F.array(text().cast("long"), F.lit(1)))),
        "NumberFormatException",
        "'bad {}'",
    ),
    "one output of two": (
        lambda rows: rows.select("id", text().alias("a")).union(rows.select("id", text().cast("long").cast("string"))),
        "NumberFormatException",
        "'bad {}'",
    ),
    "a UDF": (
        lambda rows: rows.select("id", F.udf(refused, "long", useArrow=True)(text()).alias("a")).where("a >= 0"),
        "ValueError",
        "bad {} is no amount",
    ),
    "a pickled UDF": (
        lambda rows: rows.select(F.udf(refused, "long", useArrow=False)(F.trim(text()))),
        "ValueError",
        "bad {} is no amount",
    ),
    "a UDF of a UDF": (
        lambda rows: rows.select(
            F.udf(lambda n: n + 1, "long", useArrow=True)(F.udf(refused, "long", useArrow=True)(text()))
        ),
        "ValueError",
        "bad {} is no amount",
    ),
    "a UDF with an argument by name": (
        lambda rows: rows.select(F.udf(refused, "long", useArrow=True)(text=text())),
        "ValueError",
        "bad {} is no amount",
    ),
    "a UDF that holds megabytes": (
        lambda rows: rows.select(
            F.udf(lambda each, _held=bytes(3 << 20): refused(each), "long", useArrow=True)(text())
        ),
        "ValueError",
        "bad {} is no amount",
    ),
    "one of two lambdas": (
        lambda rows: rows.select(
            F.udf(lambda each: len(each), "long", useArrow=True)(text()),
            F.udf(lambda each: refused(each), "long", useArrow=True)(text()),
        ),
        "ValueError",
        "bad {} is no amount",
    ),
    "a cast beside what is not deterministic": (
        lambda rows: rows.select(F.expr("uuid()"), text().cast("long")),
        "NumberFormatException",
        "'bad {}'",
    ),
    "a pandas UDF": (
        lambda rows: rows.select(F.pandas_udf(by_pandas, "long")(text())),  # type: ignore[call-overload]
        "ValueError",
        "bad {} is no amount",
    ),
    "a pandas UDF of an iterator": (
        lambda rows: rows.select(F.pandas_udf(iterated, "long")(text())),  # type: ignore[call-overload]
        "ValueError",
        "bad {} is no amount",
    ),
    "mapInPandas": (
        lambda rows: rows.mapInPandas(in_pandas, "id long, amount long").where("amount >= 0"),
        "ValueError",
        "bad {} is no amount",
    ),
    "mapInArrow": (lambda rows: rows.mapInArrow(in_arrow, "id long, amount long"), "ValueError", "bad {} is no amount"),
}


@pytest.fixture
def kept(spark: SparkSession) -> Iterator[DataFrame]:
    """Return records, a few of them bad, with numbers beyond 32 bits."""
    bad = F.col("id").isin(sorted(BAD))
    rows = spark.range(0, COUNT, 1, 3).select(
        "id",
        F.when(bad, F.concat(F.lit("bad "), F.col("id"))).otherwise(F.col("id").cast("string")).alias("value"),
        F.shiftleft("id", 40).alias(RECORD),
    )
    found = rows.persist()
    yield found
    found.unpersist()


def failing(spark: SparkSession, frame: DataFrame, most: int = 100) -> dict[int, Failure]:
    operators = OperatorSearch(spark, most, lambda _count: None)
    operators.search(frame)
    return {number >> 40: why for number, why in operators.failures.items()}


@pytest.mark.parametrize("name", OPERATORS)
def test_all_failing_records_are_found_each_with_its_error(name: str, spark: SparkSession, kept: DataFrame) -> None:
    made, kind, message = OPERATORS[name]
    found = failing(spark, made(hide_record_numbers(kept)))
    assert found.keys() == BAD
    for number, why in found.items():
        assert kind in why.kind
        assert message.format(number) in why.message


def test_failures_in_several_operators_are_found_from_the_bottom_up(spark: SparkSession, kept: DataFrame) -> None:
    def odd(number: int) -> int:
        if number == 77:
            raise KeyError(number)
        return number

    rows = hide_record_numbers(kept).select(F.udf(odd, "long", useArrow=True)(text().cast("long")).alias("a"))
    rows = rows.select(F.when(F.col("a") == 99, F.raise_error(F.lit("ninety-nine"))).otherwise(F.col("a")))
    found = failing(spark, rows)
    assert found.keys() == BAD | {77, 99}
    assert (found[7].kind, found[77].kind, found[99].message) == (
        "NumberFormatException",
        "KeyError",
        "[USER_RAISED_EXCEPTION] ninety-nine SQLSTATE: P0001",
    )


def test_an_unused_column_cannot_fail(spark: SparkSession, kept: DataFrame) -> None:
    assert failing(spark, hide_record_numbers(kept).select("id", text().cast("long").alias("a")).select("id")) == {}


@pytest.mark.parametrize("name", ["a cast", "a UDF", "mapInPandas"])
def test_the_search_stops_when_more_records_fail_than_may_be_rejected(
    name: str, spark: SparkSession, kept: DataFrame
) -> None:
    with pytest.raises(TooManyFailing):
        failing(spark, OPERATORS[name][0](hide_record_numbers(kept)), most=4)


def test_operators_that_combine_records_are_not_searched(spark: SparkSession, kept: DataFrame) -> None:
    counted: Any = hide_record_numbers(kept).groupBy("value").count().select(text().cast("long"))
    assert failing(spark, counted) == {}
