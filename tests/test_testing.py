"""Apps run over given rows, as in users' tests: with real Spark, but without Kafka and S3."""

import gc
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import slackwater as sw
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.errors import NotFound, Refused, Usage
from slackwater.testing import MemoryKafka, Ran, Record, run

from .support.static import ROOT

ORDERS = [
    {"country": country, "cents": 37 * number % 101}
    for number, country in enumerate(["DE", "FR", "DE", "US", "FR", "DE", "IT"])
]
published: list[tuple[str, str, int, dict[str, Any]]] = []


def publish(app: str, stage: str, version: int, rows: pa.Table) -> None:
    published.extend((app, stage, version, row) for row in rows.to_pylist())


def shop(table: str = "s3://nowhere/counts") -> sw.App:
    """Return an app with two stages, rejected records, and three sinks: a topic, a function and a table."""
    app = sw.App("shop")

    @app.stage(
        reads=sw.topic("orders"),
        writes=[sw.repartition("by-country", "country"), sw.sink("copies", key="country")],
        on_error="reject",
        rejects="dead",
    )
    def parsed(messages: DataFrame) -> tuple[DataFrame, DataFrame]:
        order = F.from_json(F.col("value").cast("string"), "country string, cents long", {"mode": "FAILFAST"})
        rows = messages.select(order.alias("o"), "partition", "timestamp").select("o.*", "partition", "timestamp")
        return rows, rows.select("country", "cents")

    @app.stage(
        reads="by-country",
        state=sw.aggregate(orders=sw.count(), cents=sw.sum("cents"), last=sw.max("timestamp"), at=sw.max("partition")),
        writes=[
            sw.foreach_version(publish, name="countries-changed"),
            sw.delta(table, key="country"),
        ],
    )
    def countries(rows: DataFrame) -> DataFrame:
        return rows

    return app


def sums(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        number, cents = found.get(row["country"], (0, 0))
        found[row["country"]] = number + 1, cents + row["cents"]
    return found


@pytest.fixture(scope="module")
def ran(one_spark: None) -> Ran:
    published.clear()
    at = datetime(2026, 1, 2, tzinfo=UTC)
    late = Record(json.dumps(ORDERS[1]).encode(), partition=2, time_ms=int(at.timestamp() * 1000))
    rows = [ORDERS[0], late, json.dumps(ORDERS[2]), json.dumps(ORDERS[3]).encode(), *ORDERS[4:], "no order at all"]
    return run(shop(), {"orders": rows}, partitions={"orders": 3}, max_records=4)


@pytest.mark.spark
def test_tables_equal_a_computation_in_plain_python(ran: Ran) -> None:
    assert [*ran] == ["parsed_rejected", "countries"]
    assert isinstance(ran["countries"], pa.Table)
    rows = ran.rows("countries")
    assert {row["country"]: (row["orders"], row["cents"]) for row in rows} == sums(ORDERS)
    assert [row["country"] for row in rows] == sorted(sums(ORDERS))
    assert ran.row("countries", "FR") == next(row for row in rows if row["country"] == "FR")
    assert ran.row("countries", "XX") is None
    with pytest.raises(NotFound, match="no table named 'country'; the nearest: countries"):
        ran["country"]


@pytest.mark.spark
def test_records_have_their_given_partitions_and_times(ran: Ran) -> None:
    partitions = ran.moment.query('FROM parsed_rejected SELECT "partition"').fetchall()
    assert len(partitions) == 1
    assert ran["countries"].column("last").to_pylist()[1] > datetime(2026, 1, 2, tzinfo=UTC)
    # Those without a key or a partition took turns, so some went to the last.
    assert max(row["at"] for row in ran.rows("countries")) == 2


@pytest.mark.spark
def test_records_that_sinks_received_are_returned(ran: Ran) -> None:
    copies = [json.loads(record.value) for record in ran.sent["copies"]]
    assert sorted(map(str, copies)) == sorted(map(str, ORDERS))
    assert {record.key for record in ran.sent["copies"]} == {each.encode() for each in sums(ORDERS)}
    assert [record.value for record in ran.sent["dead"]] == [b"no order at all"]
    newest = {row["country"]: (row["orders"], row["cents"]) for *_, row in published}
    assert newest == sums(ORDERS)


@pytest.mark.spark
def test_rows_for_tables_are_collected_and_no_table_is_written(ran: Ran) -> None:
    rows = ran.published("counts").to_pylist()
    newest = {row["country"]: (row["orders"], row["cents"]) for row in rows}
    assert newest == sums(ORDERS)
    with pytest.raises(NotFound, match="no table sink with rows named 'count'"):
        ran.published("count")


@pytest.mark.spark
def test_a_later_run_continues_from_an_earlier_one(ran: Ran) -> None:
    more = [{"country": "DE", "cents": 1000}]
    later = run(shop(), {"orders": more}, after=ran)
    assert {row["country"]: (row["orders"], row["cents"]) for row in later.rows("countries")} == sums(ORDERS + more)
    # The first result is a moment, which nothing changes.
    assert {row["country"]: (row["orders"], row["cents"]) for row in ran.rows("countries")} == sums(ORDERS)


@pytest.mark.spark
def test_the_documentations_first_test_passes_on_the_readmes_app(one_spark: None) -> None:
    def block(page: str, beginning: str) -> str:
        found = re.search(rf"```python\n({beginning}.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        assert found is not None
        return found[1]

    shop_module = ModuleType("shop")
    sys.modules["shop"] = shop_module
    try:
        exec(block("README.md", "import slackwater"), vars(shop_module))  # noqa: S102  the page's own
        names: dict[str, Any] = {}
        exec(block("docs/testing-your-app.md", "from slackwater.testing import run"), names)  # noqa: S102
        names["test_orders_are_counted_by_country"]()
    finally:
        del sys.modules["shop"]


@pytest.mark.spark
def test_an_app_runs_in_this_process_with_an_in_memory_kafka(one_spark: None, tmp_path: Path) -> None:
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    kafka.create_topics({"orders": 2, "copies": 1, "dead": 1})
    kafka.send("orders", [Record(json.dumps(each).encode(), key=b"k") for each in ORDERS], patience_s=1)
    app = shop(str(tmp_path / "counts"))
    app.run(store=str(tmp_path / "store"), kafka=kafka.address, until_caught_up=True, gc="off")
    with sw.open(str(tmp_path / "store")) as client:
        found = client.app("shop").query("SELECT country, orders, cents FROM countries").fetchall()
    assert {country: (orders, cents) for country, orders, cents in found} == sums(ORDERS)
    published = DeltaTable(tmp_path / "counts").to_pyarrow_table().to_pylist()
    assert {row["country"]: (row["orders"], row["cents"]) for row in published} == sums(ORDERS)
    assert len(published) == len(sums(ORDERS))


@pytest.fixture
def memory_app() -> Iterator[sw.App]:
    yield shop()
    gc.collect()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_returns_no_tables(one_spark: None, number: signal.Signals) -> None:
    app = sw.App(f"stopped-{uuid4().hex[:8]}")

    @app.stage(reads=sw.topic("orders"), key="k", state=sw.aggregate(n=sw.count()))
    def counts(rows: DataFrame) -> DataFrame:
        os.kill(os.getpid(), number)
        return rows.select(F.col("key").cast("string").alias("k"))

    with pytest.raises(KeyboardInterrupt, match="was stopped by a signal"):
        run(app, {"orders": ["a", "b"]})


@pytest.mark.usefixtures("no_spark")
def test_a_topic_that_the_app_does_not_read_is_refused_before_spark(memory_app: sw.App) -> None:
    with pytest.raises(NotFound, match="no topic that app 'shop' reads named 'order'; the nearest: orders"):
        run(memory_app, {"order": ORDERS})


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("row", "said"),
    [
        (object(), "a row is a object; expected a dictionary, text, bytes, None, or a Record"),
        (pa.table({"a": [1]}), "a row is a ChunkedArray; expected"),
        ({"a": object()}, "a row cannot be written as JSON: object has no JSON form"),
        ({"a": {1, 2}}, "a row cannot be written as JSON: set has no JSON form"),
    ],
)
def test_an_invalid_row_is_refused_before_spark(memory_app: sw.App, row: object, said: str) -> None:
    with pytest.raises(Usage, match=said):
        run(memory_app, {"orders": row if isinstance(row, pa.Table) else [row]})


@pytest.mark.usefixtures("no_spark")
def test_an_object_that_is_no_app_is_refused_before_spark() -> None:
    with pytest.raises(Usage, match=r"the app to run is a module; expected a slackwater\.App"):
        run(json, {})  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_spark")
def test_an_in_memory_kafka_without_topics_is_refused_before_spark(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is an in-memory Kafka of this process, and has no topic to read") as raised:
        shop(str(tmp_path / "counts")).run(store=str(tmp_path), kafka=f"memory://{uuid4().hex}")
    assert "slackwater.testing.run" in raised.value.hint


@pytest.mark.usefixtures("no_spark")
def test_an_in_memory_kafka_with_remote_executors_is_refused(tmp_path: Path, memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topics({"orders": 1})
    with pytest.raises(Refused, match="which executors of spark://nowhere:7077 cannot reach"):
        shop(str(tmp_path / "counts")).run(
            store=str(tmp_path), kafka=memory_kafka.address, master="spark://nowhere:7077"
        )
