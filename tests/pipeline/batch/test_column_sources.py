"""The input fields of a column, traced in the plan of a stage's function."""

import tempfile
from collections.abc import Callable, Iterator

import pytest
import slackwater as sw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.pipeline.batch.column_sources import trace_sources
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.source.data_source import TOPIC_SCHEMA_WITH_HEADERS
from slackwater.store.versions.column_types import FieldSource

pytestmark = pytest.mark.spark
ORDER = "who string, cents string, users array<struct<id: string>>, by map<string, string>, inner string, `a.b` string"
Sources = dict[str, list[tuple[str, tuple[str, ...]]]]


def order(messages: DataFrame) -> DataFrame:
    return messages.select(F.from_json(F.col("value").cast("string"), ORDER).alias("o")).select("o.*")


def mapped(rows: Iterator[DataFrame]) -> Iterator[DataFrame]:
    yield from rows


def cleaned(text):  # type: ignore[no-untyped-def]  by hints Spark would take it for another kind of function
    return text


OF_ORDER: dict[str, tuple[Callable[[DataFrame], DataFrame], Sources]] = {
    "casts and text": (
        lambda o: o.select(
            F.col("cents").cast("long").alias("cents"), F.lower("who").alias("l"), F.trim(F.upper("who")).alias("t")
        ),
        {"cents": [("$.cents", ())], "l": [("$.who", ("lower",))], "t": [("$.who", ("upper", "trim"))]},
    ),
    "other functions": (
        lambda o: o.select(
            F.sha2("who", 256).alias("s"),
            F.concat("who", "cents").alias("c"),
            F.udf(cleaned, "string")("who").alias("p"),
        ),
        {
            "s": [("$.who", ("sha2",))],
            "c": [("$.who", ("concat",)), ("$.cents", ("concat",))],
            "p": [("$.who", ("cleaned",))],
        },
    ),
    "nested": (
        lambda o: o.select(
            F.explode("users").alias("u"),
            F.col("by")["x"].alias("x"),
            "`a.b`",
            F.from_json("inner", "id long").id.alias("i"),
        ).select("u.id", "x", "`a.b`", "i"),
        {"id": [("$.users.id", ())], "x": [("$.by.x", ())], "a.b": [("$['a.b']", ())], "i": [("$.inner.id", ())]},
    ),
    "maps and branches": (
        lambda o: o.select(F.explode("by").alias("k", "v"), F.coalesce("who", F.lit("?"), "cents").alias("c")),
        {"k": [("$.by.~", ())], "v": [("$.by.*", ())], "c": [("$.who", ()), ("$.cents", ())]},
    ),
    "two rows of one": (
        lambda o: o.select(
            F.explode(
                F.array(
                    F.struct(F.col("who").alias("name"), F.lit("from").alias("side")),
                    F.struct(F.col("cents").alias("name"), F.lit("to").alias("side")),
                )
            ).alias("e")
        ).select("e.*"),
        {"name": [("$.who", ()), ("$.cents", ())], "side": []},
    ),
}
OF_RECORD: dict[str, tuple[Callable[[DataFrame], DataFrame], Sources]] = {
    "key and headers": (
        lambda m: m.select(
            F.col("key").cast("string").alias("k"),
            F.filter("headers", lambda h: h["key"] == "who")[0]["value"].alias("h"),
            F.get_json_object(F.col("value").cast("string"), "$.a[0].b").alias("j"),
            F.json_tuple(F.col("value").cast("string"), "x").alias("t"),
        ),
        {"k": [("key", ())], "h": [("headers.*", ())], "j": [("$.a.b", ())], "t": [("$.x", ())]},
    ),
    "text that is split": (
        lambda m: m.select(F.split(F.col("value").cast("string"), ",")[0].alias("c"), F.col("value").alias("v")),
        {"c": [("", ())], "v": [("value", ())]},
    ),
    "python over rows": (
        lambda m: m.select("value").mapInPandas(mapped, "who string").withColumn("l", F.lower("who")),
        {"who": [("", ())], "l": [("", ())]},
    ),
    "a union": (
        lambda m: m.select(F.col("key").alias("a")).union(m.select("value")),
        {"a": [("key", ()), ("value", ())]},
    ),
    "a window": (lambda m: m.select(F.window("timestamp", "1 hour").alias("w")), {"w": [("timestamp", ("window",))]}),
}


@pytest.mark.parametrize("name", [*OF_ORDER, *OF_RECORD])
def test_columns_are_traced_to_their_source_fields(spark: SparkSession, name: str) -> None:
    made, expected = OF_ORDER.get(name) or OF_RECORD[name]
    with tempfile.TemporaryDirectory() as folder:
        messages = spark.readStream.schema(TOPIC_SCHEMA_WITH_HEADERS).parquet(f"file:{folder}")
        found = trace_sources(made(order(messages) if name in OF_ORDER else messages), {"t": messages}, ["t"])
    assert found == {
        column: tuple(FieldSource("t", text, by) for text, by in sources) for column, sources in expected.items()
    }


def test_sources_are_traced_through_a_stages_state(spark: SparkSession) -> None:
    """Traced for a table's key and for the columns of channels, by kind of state.

    A Python function hides its sources.
    """
    app = sw.App("lineage")
    newest = sw.repartition("newest", key="who", partitions=1)
    counted = sw.repartition("counted", key="who", partitions=1)

    @app.stage(reads=sw.topic("orders"), key="who", state=sw.upsert(by="cents"), writes=newest)
    def orders(messages: DataFrame) -> DataFrame:
        return order(messages).select(F.lower("who").alias("who"), "cents", F.col("by")["x"].alias("x"))

    @app.stage(reads=newest, state=sw.aggregate(n=sw.count(), x=sw.max("x")), writes=counted)
    def counts(rows: DataFrame) -> DataFrame:
        return rows

    @app.stage(reads=counted, key="x", state=sw.aggregate(n=sw.count()))
    def by_x(rows: DataFrame) -> DataFrame:
        return rows

    known = derive_schemas(app, spark)

    def of(field: str, input_: str, *by: str) -> tuple[FieldSource, ...]:
        return (FieldSource(input_, field, by),)

    assert known["orders"].lineage == {
        "": {"who": of("$.who", "orders", "lower")},
        "newest": {
            "who": of("$.who", "orders", "lower"),
            "cents": of("$.cents", "orders"),
            "x": of("$.by.x", "orders"),
        },
    }
    assert known["counts"].lineage == {
        "": {"who": of("who", "newest")},
        "counted": {"who": of("who", "newest"), "n": (), "x": of("x", "newest")},
    }
    assert known["by_x"].lineage == {"": {"x": of("x", "counted")}}
