"""Random types of keys and values: an attached app has the rows that Spark's own reader returns."""

from pathlib import Path
from random import Random

import pyspark
import pytest
from pyspark.sql import SparkSession
from slackwater.errors import Refused
from slackwater.operations.attach.rows import declare_tables
from slackwater.operations.attach.tail import Tail
from slackwater.operations.from_spark.checkpoint.checkpoint import open_checkpoint
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.side_tables import table_name

from tests.models.profiles import SEARCHES
from tests.operations.attach.following import caught_up, rows_at
from tests.operations.from_spark.checkpoint.by_spark import by_spark, plain_arrow
from tests.operations.from_spark.checkpoint.queries import PROVIDERS, READ_SINCE
from tests.operations.from_spark.checkpoint.random_schemas import query, shapes, write_input
from tests.support.running import UNCOMPILED

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

OPERATORS = 10 if SEARCHES else 1
"""Number of operators in one query, each with its own schema."""
SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
KINDS = ["aggregate", "aggregate", "distinct", "join-2", *(["join-3"] if SPARK >= (4, 1) else [])]
DEFAULT = [("join-3" if "join-3" in KINDS else "join-2", "changelog", 1)]


def _many() -> list[object]:
    """Return 500 schemas for each kind of operator with each state store provider that supports it."""
    providers = [provider for provider in PROVIDERS if READ_SINCE.get(provider, SPARK) <= SPARK]
    ways = [(kind, provider) for kind in KINDS for provider in providers if kind != "join-3" or "hdfs" not in provider]
    return [pytest.param(*ways[n % len(ways)], n, marks=pytest.mark.ci) for n in range(50) if n != 1]


@pytest.mark.parametrize(("kind", "provider", "seed"), [*DEFAULT, *_many()])
def test_an_attached_app_has_the_rows_of_sparks_own_reader(
    kind: str, provider: str, seed: int, tmp_path: Path, cache: SstCache, spark: SparkSession
) -> None:
    random = Random(seed)
    session, of = spark.newSession(), shapes(random, OPERATORS)
    kind, _, join_format = kind.partition("-")
    settings = {
        "spark.sql.streaming.unsupportedOperationCheck": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
        "spark.sql.streaming.join.stateFormatVersion": join_format or "2",
    }
    for name, value in (settings | UNCOMPILED | PROVIDERS[provider]).items():
        session.conf.set(name, value)
    # Before Spark 4.2 dropDuplicates keeps -0.0 apart, which is refused.
    negative_zeros = kind != "distinct" or SPARK >= (4, 2)
    schema = write_input(session, of, random, tmp_path / "input", negative_zeros=negative_zeros)
    folder = tmp_path / "checkpoint"
    rows = query(session, of, tmp_path / "input", schema, kind)
    writer = rows.writeStream.outputMode("append" if kind == "join" else "update").format("noop")
    writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    session._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    store = MemoryStore()
    with open_checkpoint(str(folder), spark) as checkpoint:
        assert len(checkpoint.tables) == (2 if kind == "join" else 1) * OPERATORS
        following = Tail(store, cache, checkpoint, "shop", "q", by="host:1", partitions=2)
        caught_up(following)
        names = [table_name("q", each) if each else "q" for each in declare_tables(checkpoint.tables, 2)]
        compared = 0
        for number in history.list_versions(store, "shop", "q"):
            version = history.read(store, "shop", "q", number)
            if version.kind != "batch":
                continue
            assert version.attached is not None
            stored = rows_at(store, cache, version)
            for name, table in zip(names, checkpoint.tables, strict=True):
                expected = by_spark(spark, folder, checkpoint, table, version.attached.next_batch - 1)
                found = {plain_arrow(key): plain_arrow(values) for key, values in stored[name].items()}
                assert found == expected, f"{name} {of[table.operator]} after batch {version.attached.next_batch - 1}"
                compared += len(expected)
        assert compared > OPERATORS


@pytest.mark.skipif(SPARK >= (4, 2), reason="dropDuplicates takes -0.0 for 0.0 since Spark 4.2")
def test_a_state_that_distinguishes_negative_zero_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    spark.createDataFrame([(0.0,), (-0.0,)], "price double").coalesce(1).write.parquet(str(tmp_path / "input"))
    rows = spark.readStream.schema("price double").parquet(str(tmp_path / "input")).dropDuplicates()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    with open_checkpoint(str(tmp_path / "checkpoint"), spark) as checkpoint:
        (table,) = checkpoint.tables
        for read in (checkpoint.read_rows(table, 0), checkpoint.read_changes(table, -1, 0)):
            with pytest.raises(Refused, match=r"has a key with -0\.0 in 'price'"):
                list(read)
