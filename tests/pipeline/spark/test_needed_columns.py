"""Columns of a topic that a stage's function needs: without the other columns, it returns the same rows."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import send_messages
from slackwater.pipeline.source.data_source import TOPIC_SCHEMA
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.source.readers import TopicSourceReader
from slackwater.pipeline.source.spark_types import arrow_schema_of
from slackwater.pipeline.source.wake import PlannerFiles
from slackwater.pipeline.spark.plans import analysed_plan, first_column_id, needed_columns, optimised_stream_paths
from slackwater.state.records import Position

KINDS = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
}
COLUMNS = StructType([StructField(name, KINDS[kind]) for name, kind in map(str.split, TOPIC_SCHEMA.split(", "))])
"""`TOPIC_SCHEMA`, made without Spark."""
ALL = frozenset(column.split()[0] for column in TOPIC_SCHEMA.split(", "))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROWS = [(b"k%d" % n, b'{"n": %d}' % n, "t", n % 3, n, NOON, 0) for n in range(9)]


def lengths(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Function for `mapInPandas`, which may read any column."""
    for batch in batches:
        yield batch[["offset"]].assign(size=batch["value"].str.len())


FUNCTIONS: dict[str, tuple[Callable[[DataFrame], DataFrame], frozenset[str] | None]] = {
    "key and value": (lambda t: t.select("key", F.col("value").cast("string")), frozenset({"key", "value"})),
    "a filter by another": (
        lambda t: t.filter("partition = 1").select(F.length("value")),
        frozenset({"partition", "value"}),
    ),
    "made and dropped": (
        lambda t: t.withColumn("late", F.col("timestamp") > F.current_timestamp()).drop("late").select("offset"),
        frozenset({"offset"}),
    ),
    "json": (
        lambda t: t.select(F.from_json(F.col("value").cast("string"), "n int").alias("v")).select("v.n"),
        {"value"},
    ),
    "exploded": (
        lambda t: t.select(F.explode(F.array("partition", "offset").alias("n"))),
        frozenset({"partition", "offset"}),
    ),
    "a struct of all": (lambda t: t.select(F.to_json(F.struct("*"))), ALL),
    "nothing of it": (lambda t: t.select(F.lit(1)), frozenset()),
    "a watermark": (
        lambda t: t.select("key", "timestamp").withWatermark("timestamp", "1 minute"),
        {"key", "timestamp"},
    ),
    "all of it": (lambda t: t, None),
    "a function of pandas": (lambda t: t.mapInPandas(lengths, "offset long, size long"), None),
}
"""Functions and the columns that they need; None where the plan does not show them."""


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_returns_the_same_rows_without_the_unneeded_columns(name: str, tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    function, expected = FUNCTIONS[name]
    stream = spark.readStream.schema(TOPIC_SCHEMA).parquet(tmp_path.as_uri())
    needed = needed_columns(optimised_stream_paths(function(stream))).get(first_column_id(analysed_plan(stream)))
    assert needed == expected
    whole = spark.createDataFrame(ROWS, TOPIC_SCHEMA)
    kept = ALL if needed is None else needed
    poorer = whole.select(
        *(
            F.col(field.name) if field.name in kept else F.lit(None).cast(field.dataType).alias(field.name)
            for field in whole.schema
        )
    )
    assert sorted(function(poorer).collect()) == sorted(function(whole).collect())


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_needed_columns_are_found_per_stream_and_united_over_its_uses(tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    one, two = (spark.readStream.schema(TOPIC_SCHEMA).parquet(tmp_path.as_uri()) for _ in range(2))
    first, second = first_column_id(analysed_plan(one)), first_column_id(analysed_plan(two))
    united = one.select("key", "offset").union(two.select("value", "offset"))
    assert needed_columns(optimised_stream_paths(united)) == {first: {"key", "offset"}, second: {"value", "offset"}}
    known = needed_columns(optimised_stream_paths(one.select("key").union(one.select("value"))))
    assert all(columns in ({"key"}, {"value"}, {"key", "value"}) for columns in known.values())


def test_a_reader_fetches_needed_columns_and_leaves_others_null(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    topic = f"needed-{uuid4().hex[:8]}"
    memory_kafka.create_topics({topic: 1})
    send_messages(memory_kafka, topic, [(0, b"one"), (0, b"two")], b"", patience_s=180)
    told = PlannerFiles(tmp_path)
    schema = arrow_schema_of(COLUMNS)

    def read() -> pa.Table:
        options = SourceOptions(input="orders", topic=topic, stage="s", planner_folder=str(tmp_path), patience_s=180)
        reader = TopicSourceReader(options, COLUMNS, PrivateOptions(memory_kafka.properties))
        (part,) = reader.partitions(Position("orders", (0,)).to_json(), Position("orders", (2,)).to_json())
        return pa.Table.from_batches(reader._read(part, schema), schema)  # type: ignore[arg-type]

    whole = read()
    assert whole.num_rows == 2
    assert not any(whole[name].null_count for name in ALL - {"key"})
    told.write_needed_columns("s", {"orders": {"value", "offset"}, "other": {"key"}})
    poorer = read()
    assert poorer.select(["value", "offset"]) == whole.select(["value", "offset"])
    assert {name for name in ALL if poorer[name].null_count == 2} == ALL - {"value", "offset"}
    told.write_needed_columns("s", {"other": {"key"}})
    assert read() == whole
