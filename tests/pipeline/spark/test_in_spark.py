"""`spark.read.format("slackwater")` and the Spark tables of a moment return the rows of `query`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.client import Client
from slackwater.pipeline.spark.session import running_session, with_settings
from slackwater.settings import Settings
from slackwater.spark import register
from slackwater.store.objects.local import LocalStore

from tests.support.histories import START_MS, Clock, FlightsApp, Kafka, flights

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def app(tmp_path: Path) -> FlightsApp:
    made = FlightsApp(LocalStore(tmp_path / "store"), Kafka(), clock=Clock(START_MS))
    made.run(flights(60, aircraft=40))
    made.rescale("aircraft", 4)
    made.run(flights(60, aircraft=50))
    return made


@pytest.fixture
def client(app: FlightsApp, tmp_path: Path) -> Iterator[Client]:
    with Client(Settings(store=app.store.url, cache=str(tmp_path / "cache"), cache_max_bytes=1 << 20)) as opened:
        yield opened


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_a_table_read_by_spark_equals_a_query_and_stays_at_its_moment(app: FlightsApp, client: Client) -> None:
    spark = running_session()
    assert spark is not None
    register(spark)
    read = spark.read.format("slackwater").option("store", app.store.url)
    then, now = read.option("at", "~9").load("flights/aircraft"), read.option("at", "now").load("flights/aircraft")
    moments = [client.app("flights").at(at) for at in ("~9", "now")]
    expected = [sorted(each.query("FROM aircraft").fetchall()) for each in moments]
    assert expected[0] != expected[1]
    app.run(flights(20))
    assert [rows(then), rows(now)] == expected
    assert now.rdd.getNumPartitions() == 4
    delays = now.select(F.sum("delay")).collect()[0][0]
    assert delays == sum(row[2] for row in expected[1])
    # What a moment gives is the same, also when the app has gone on since.
    whole, some = moments[1].spark_table(spark, "aircraft"), moments[1].spark_table(spark, "aircraft", ["flights"])
    assert rows(whole) == expected[1]
    assert rows(some) == sorted((row[1],) for row in expected[1])
    counted = moments[1].spark_query(spark, "SELECT tail, sum(flights) AS n FROM aircraft GROUP BY tail")
    assert [(tail, int(n)) for tail, n in rows(counted)] == [row[:2] for row in expected[1]]  # type: ignore[call-overload]
    with pytest.raises(AnalysisException, match=r"no table at flights.*named 'airports'"):
        read.load("flights/airports")
    _check_filters(spark, now, expected[1])


def _check_filters(spark: SparkSession, table: DataFrame, expected: list[tuple[object, ...]]) -> None:
    """Check that a filter on the key reads only some pages, on Spark 4.1 and later, which pushes filters down."""
    wanted = [row for row in expected if row[0] == "N005"]
    one = table.where("tail = 'N005' AND delay > 0")
    assert rows(one) == wanted
    assert one.rdd.getNumPartitions() == 4
    if spark.conf.get(_PUSHDOWN, None) is not None:
        with with_settings(spark, {_PUSHDOWN: "true"}):
            one = table.where("tail = 'N005' AND delay > 0")
            assert rows(one) == wanted
            assert one.rdd.getNumPartitions() == 1
            assert rows(table) == expected
