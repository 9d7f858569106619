"""Nondeterministic expressions in a plan, and the same plan at another time."""

import datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.pipeline.spark.clock import find_impurities, with_time_literals

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]
AT = datetime.datetime(2001, 9, 9, 1, 46, 40, 500_000)  # noqa: DTZ001  in the session's time zone, UTC
AT_MS = 1_000_000_000_500


@pytest.fixture
def rows() -> DataFrame:
    return SparkSession.active().range(1)


def test_every_use_of_the_clock_in_a_plan_gets_the_given_time(rows: DataFrame) -> None:
    other = rows.sparkSession.range(2).withColumnRenamed("id", "n")
    made = (
        rows.select("id", F.current_timestamp().alias("at"), F.expr("localtimestamp() AS local"), F.unix_timestamp())
        .where(F.year(F.now()) == 2001)
        .withColumn("each", F.explode(F.array(F.current_date(), F.lit(datetime.date(1970, 1, 1)))))
        .join(other, F.col("n") == F.year(F.now()) - 2001)
    )
    assert {*find_impurities(made, ()).clocks} == {"current_date", "now", "current_timestamp", "localtimestamp"}
    found = with_time_literals(made, AT_MS).orderBy("each").collect()
    assert [row["each"] for row in found] == [datetime.date(1970, 1, 1), AT.date()]
    assert {(row["at"].timestamp(), row["local"], row[3], row["n"]) for row in found} == {
        (AT_MS / 1000, AT, AT_MS // 1000, 0)
    }
    assert made.count() == 0


def test_a_plan_without_a_clock_is_unchanged(rows: DataFrame) -> None:
    assert with_time_literals(rows, AT_MS) is rows
    assert not find_impurities(rows.where("id > 3"), ())


def test_random_expressions_and_python_functions_are_named(rows: DataFrame) -> None:
    double = F.udf(lambda value: value * 2, "long")
    made = rows.select(F.rand(), F.expr("uuid()"), F.monotonically_increasing_id(), double("id"))
    found = find_impurities(made, ())
    assert found.random == ("rand", "uuid", "monotonically_increasing_id")
    assert found.python == ("<lambda>",)
    assert not find_impurities(made, [made._jdf.queryExecution().analyzed()])
