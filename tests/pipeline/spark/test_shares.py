"""Shares of keys: the source skips exactly the records that the filter in the plan would drop."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import encode_rows, send_messages
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.source.data_source import TOPIC_SCHEMA
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.source.readers import ChannelSourceReader, TopicSourceReader
from slackwater.pipeline.source.spark_types import arrow_schema_of
from slackwater.pipeline.source.wake import PlannerFiles
from slackwater.pipeline.spark.plans import (
    analysed_plan,
    filter_by_share,
    first_column_id,
    needed_shares,
    optimised_stream_paths,
)
from slackwater.state.records import Position
from slackwater.store.sst.hashing import KeyShare

from tests.pipeline.spark.test_needed_columns import COLUMNS, NOON

HALF = 5_000
KEYS = [None, b"", b"\xff\xfe", "é".encode(), *(b"k%d" % n for n in range(40))]
ROWS = [(key, b'{"n": %d}' % n, "t", n % 3, n, NOON, 0) for n, key in enumerate(KEYS)]


def text() -> Column:
    """Return the key as a string."""
    return F.col("key").cast("string")


def named(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Function for `mapInPandas`, which may read any column."""
    for batch in batches:
        yield batch[["offset"]].assign(k=[str(key) for key in batch["key"]])


def doubled(column: str) -> Column:
    """A user function of one value."""
    return F.udf(lambda value: 2 * value, "long")(column)


FUNCTIONS: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...], tuple[str, ...] | None]] = {
    "the key": (lambda t: t.select(F.col("key").alias("k"), "offset"), ("k",), ("key",)),
    "the key as a string": (lambda t: t.select(text().alias("k"), "value"), ("k",), ("key",)),
    "two columns": (
        lambda t: t.select("partition", text().alias("k"), "offset"),
        ("k", "partition"),
        ("key", "partition"),
    ),
    "beside a filter": (lambda t: t.where("offset % 2 = 0").select(text().alias("k")), ("k",), ("key",)),
    "below a function of the user": (lambda t: t.select(text().alias("k"), doubled("offset")), ("k",), ("key",)),
    "exploded": (lambda t: t.select(text().alias("k"), F.explode(F.sequence(F.lit(1), "partition"))), ("k",), ("key",)),
    "another value": (lambda t: t.select(F.upper(text()).alias("k")), ("k",), None),
    "as a number": (lambda t: t.select(F.expr("try_cast(cast(key AS string) AS long)").alias("k")), ("k",), None),
    "a number as a string": (lambda t: t.select(F.col("offset").cast("string").alias("k")), ("k",), None),
    "of the value": (
        lambda t: t.select(F.get_json_object(F.col("value").cast("string"), "$.n").alias("k")),
        ("k",),
        None,
    ),
    "a function of pandas": (lambda t: t.mapInPandas(named, "offset long, k string"), ("k",), None),
    "numbered before": (
        lambda t: t.withColumn("m", F.monotonically_increasing_id()).where("m >= 0").select(text().alias("k")),
        ("k",),
        None,
    ),
}
"""Functions, the key that selects their rows, and the key's source columns; None if it has none."""


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_returns_the_same_rows_of_a_share_if_the_source_skips_other_keys(name: str, tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    function, key, columns = FUNCTIONS[name]
    wanted = KeyShare(key, HALF)
    stream = spark.readStream.schema(TOPIC_SCHEMA).parquet(tmp_path.as_uri())
    found = needed_shares(optimised_stream_paths(filter_by_share(function(stream), wanted))).get(
        first_column_id(analysed_plan(stream))
    )
    assert found == (None if columns is None else KeyShare(columns, HALF))
    whole = spark.createDataFrame(ROWS, TOPIC_SCHEMA)
    every, chosen = (each.toArrow() for each in (function(whole), filter_by_share(function(whole), wanted)))
    assert in_order(chosen) == in_order(every.filter(pa.array(wanted.select_rows(every))))
    if found is not None:
        read = pa.table(
            {"key": pa.array(KEYS, pa.binary()), "partition": pa.array([row[3] for row in ROWS], pa.int32())}
        )
        fewer = spark.createDataFrame([ROWS[at] for at in found.select_rows(read).nonzero()[0]], TOPIC_SCHEMA)
        assert 0 < chosen.num_rows < every.num_rows
        assert in_order(filter_by_share(function(fewer), wanted).toArrow()) == in_order(chosen)


def in_order(rows: pa.Table) -> list[str]:
    """Return rows in an order in which they can be compared."""
    # Spark's strings may be no text.
    kinds = [pa.binary() if pa.types.is_string(field.type) else field.type for field in rows.schema]
    return sorted(map(str, rows.cast(pa.schema(zip(rows.column_names, kinds, strict=True))).to_pylist()))


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_each_stream_has_its_own_share_and_other_filters_are_not_taken_for_shares(tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    one, two = (spark.readStream.schema(TOPIC_SCHEMA).parquet(tmp_path.as_uri()) for _ in range(2))
    share = KeyShare(("key",), 100)
    found = needed_shares(optimised_stream_paths(filter_by_share(one, share).union(two)))
    assert found == {first_column_id(analysed_plan(one)): share}
    for other in (
        "pmod(hash(key), 10000) < 5",
        "pmod(xxhash64(key), 100) < 5",
        "xxhash64(key) % 10000 < 5",
        "pmod(xxhash64(key), 10000) <= 5",
        "pmod(xxhash64(key), 10000) < 5 OR offset = 1",
        "NOT (pmod(xxhash64(key), 10000) < 5)",
        "pmod(xxhash64(key), 10000) < partition",
    ):
        assert needed_shares(optimised_stream_paths(one.where(other))) == {}


def test_readers_skip_records_and_rows_of_other_keys(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    topic, channel = f"t-{uuid4().hex[:8]}", f"c-{uuid4().hex[:8]}"
    memory_kafka.create_topics({topic: 1, channel: 1})
    memory_kafka.send(topic, [Record(value, 0, key) for key, value, *_ in ROWS], patience_s=180)
    sent = pa.record_batch({"k": pa.array(range(40), pa.int64()), "n": pa.array(range(40), pa.int64())})
    send_messages(memory_kafka, channel, [(0, encode_rows(sent))], b"a1", patience_s=180)
    told = PlannerFiles(tmp_path)
    schemas = {topic: COLUMNS, channel: StructType().add("k", LongType()).add("n", LongType())}

    def read(name: str) -> pa.Table:
        of_topic = SourceOptions(input=name, topic=name, stage="s", planner_folder=str(tmp_path), patience_s=180)
        schema, private = arrow_schema_of(schemas[name]), PrivateOptions(memory_kafka.properties)
        make = TopicSourceReader if name == topic else ChannelSourceReader
        reader = make(of_topic, schemas[name], private)
        reader._attempts = lambda _start, _end: frozenset({"a1"})  # type: ignore[method-assign]
        ends = memory_kafka.offset_bounds(name)[1]
        first, last = Position(name, (0,)), Position(name, ends)
        (part,) = reader.partitions(first.to_json(), last.to_json())
        return pa.Table.from_batches(reader._read(part, schema), schema)  # type: ignore[arg-type]

    for name, column in ((topic, "key"), (channel, "k")):
        share = KeyShare((column,), HALF)
        whole = read(name)
        told.write_key_shares("s", {name: share})
        assert read(name) == whole.filter(pa.array(share.select_rows(whole)))
        assert 0 < read(name).num_rows < whole.num_rows
        told.write_key_shares("s", {"other": share})
        assert read(name) == whole
