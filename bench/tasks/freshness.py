"""Age of a result when it becomes readable: one record a second through three stages, beside three Spark queries.

The stages parse, count by leg, and count by carrier. Spark's queries pass rows on through Kafka, and keep state in
RocksDB. A record becomes readable when its batch of the last stage is committed.

`python -m bench.tasks.freshness slackwater|spark BOOTSTRAP FOLDER TOPIC RECORDS` runs one side in a fresh process, and
prints a JSON list: for each record, the seconds between its production and the time when it is readable.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Producer

from ..support import side
from ..support.events import PARTITIONS
from ..support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WARM_UP = 40
MEASURED = 120
CARRIERS = ("AA", "B6", "DL", "UA")
SIDES = ("slackwater", "spark")
MEDIAN_S, P99_S = 1.0, 2.0
_EVENT = "leg string, delay double"
_SENT = "carrier string, leg string, flights long, delay double"
_LOOK_S = 0.1


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare the time until a record is readable after three stages with that after three Spark queries."""
    warm_up, measured = (10, 10) if quick else (WARM_UP, MEASURED)
    seconds: dict[str, list[float]] = {}
    for name in SIDES:
        words = (name, bootstrap, folder / name, f"bench-fresh-{name}", warm_up + measured)
        found: list[float] = side.run("tasks.freshness", *words, peer=name != "slackwater")
        seconds[name] = found[warm_up:]
    made = []
    for what, percent, limit in (("median", 50, MEDIAN_S), ("p99", 99, P99_S)):
        ours, spark = (float(np.percentile(seconds[name], percent)) for name in SIDES)
        made.append(
            Row(
                f"a record a second through three stages, from produced to readable, {what} of {measured}",
                f"{ours:.2f} s",
                f"limit: {limit:g} s; three queries of Spark's over Kafka, RocksDB: {spark:.2f} s",
                ours / limit,
                "< 1",
                ours < limit,
            )
        )
    return made


def app_of(topic: str) -> sw.App:
    """Return an app that aggregates flights by leg, and then by carrier."""
    import slackwater as sw

    app = sw.App("bench")
    by_leg = sw.repartition("by-leg", "leg", partitions=PARTITIONS)
    by_carrier = sw.repartition("by-carrier", "carrier", partitions=PARTITIONS)

    @app.stage(reads=sw.topic(topic), writes=by_leg)
    def flights(raw: DataFrame) -> DataFrame:
        return _parsed(raw)

    app.stage(
        name="legs",
        reads=by_leg,
        key=("carrier", "leg"),
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("delay")),
        writes=by_carrier,
        table=sw.table(partitions=PARTITIONS),
    )(_with_carrier)
    app.stage(
        name="carriers",
        reads=by_carrier,
        key="carrier",
        state=sw.aggregate(changes=sw.count(), most=sw.max("flights")),
        table=sw.table(partitions=PARTITIONS),
    )(lambda legs: legs)
    return app


def _slackwater(bootstrap: str, folder: Path, topic: str, records: int) -> list[float]:
    from slackwater.pipeline.listener import BatchReport, Callbacks
    from slackwater.pipeline.run.options import Options
    from slackwater.pipeline.run.runner import run
    from slackwater.pipeline.run.stopping import StopEvent, StopRequested

    sent: list[float] = []
    readable: list[tuple[float, int]] = []
    stop, begin = StopEvent(), threading.Event()

    def note(report: BatchReport) -> None:
        begin.set()
        if report.stage == "carriers" and report.rows_in:
            readable.append((time.time(), report.rows_in))
            if sum(rows for _, rows in readable) == records:
                stop.set()

    def feed() -> None:
        send(bootstrap, topic, 1, sent)
        begin.wait()
        send(bootstrap, topic, records - 1, sent)

    options = Options(
        store=str(folder / "store"),
        kafka={"bootstrap.servers": bootstrap},
        cache_folder=folder / "cache",
        master="local[2]",
    )
    create(bootstrap, topic)
    sender = threading.Thread(target=feed, name="sender", daemon=True)
    sender.start()
    try:
        run(app_of(topic), options, Callbacks(committed=note), stop=stop)
    except StopRequested:
        sender.join()
    return ages(sent, readable)


def _spark(bootstrap: str, folder: Path, topic: str, records: int) -> list[float]:
    conf = {
        **side.SPARK_STATE,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.jars": side.connector_jars(),
    }
    sent: list[float] = []
    spark = side.plain_session(**conf)
    queries = _chain(spark, bootstrap, folder, topic)
    send(bootstrap, topic, 1, sent)
    _until(lambda: bool(_read(queries[-1])), queries)
    send(bootstrap, topic, records - 1, sent)
    _until(lambda: sum(rows for _, rows in _read(queries[-1])) == records, queries)
    readable = _read(queries[-1])
    for query in queries:
        query.stop()
    return ages(sent, readable)


def _chain(spark: SparkSession, bootstrap: str, folder: Path, topic: str) -> list[StreamingQuery]:
    """Start the stages of `app_of` as three Spark queries."""
    from pyspark.sql import functions as F

    def to_topic(rows: DataFrame, key: str, name: str) -> StreamingQuery:
        messages = rows.select(F.col(key).alias("key"), F.to_json(F.struct("*")).alias("value"))
        options = {"kafka.bootstrap.servers": bootstrap, "topic": name, "checkpointLocation": str(folder / name)}
        return messages.writeStream.format("kafka").outputMode("update").options(**options).start()

    by_leg, by_carrier = f"{topic}-by-leg", f"{topic}-by-carrier"
    create(bootstrap, topic, by_leg, by_carrier)
    legs = _with_carrier(_parsed(side.connector_stream(spark, bootstrap, by_leg))).groupBy("carrier", "leg")
    sums = legs.agg(F.count("*").alias("flights"), F.sum("delay").alias("delay"))
    carriers = _parsed(side.connector_stream(spark, bootstrap, by_carrier), _SENT).groupBy("carrier")
    return [
        to_topic(_parsed(side.connector_stream(spark, bootstrap, topic)), "leg", by_leg),
        to_topic(sums, "carrier", by_carrier),
        side.started(carriers.agg(F.count("*").alias("changes"), F.max("flights").alias("most")), folder / "last"),
    ]


def _parsed(raw: DataFrame, columns: str = _EVENT) -> DataFrame:
    from pyspark.sql import functions as F

    return raw.select(F.from_json(F.col("value").cast("string"), columns).alias("row")).select("row.*")


def _with_carrier(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("substr(leg, 1, 2) AS carrier", "leg", "delay")


def _read(query: StreamingQuery) -> list[tuple[float, int]]:
    """Return, for each batch that read rows, its commit time in seconds since 1970 and its number of rows."""
    return [(batch.end, batch.rows) for batch in side.batches(query)]


def _until(done: Callable[[], bool], queries: Sequence[StreamingQuery]) -> None:
    while not done():
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
        time.sleep(_LOOK_S)


def create(bootstrap: str, *names: str) -> None:
    """Create topics."""
    from slackwater.pipeline.kafka.open import open_kafka

    open_kafka(bootstrap).create_topics(dict.fromkeys(names, PARTITIONS))


def send(bootstrap: str, topic: str, records: int, sent: list[float]) -> None:
    """Send one record a second, and append the time of each, in seconds since 1970, to `sent`."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    began = time.monotonic()
    for number in range(records):
        time.sleep(max(0.0, began + number - time.monotonic()))
        leg = f"{CARRIERS[number % len(CARRIERS)]}-{number % 30:03}"
        sent.append(time.time())
        producer.produce(topic, json.dumps({"leg": leg, "delay": number % 90}).encode(), leg.encode())
        assert producer.flush(60) == 0


def ages(sent: Sequence[float], readable: Sequence[tuple[float, int]]) -> list[float]:
    """Return, for each record, the seconds between its production and the time when it was readable."""
    stamps, counts = zip(*readable, strict=True)
    seen = np.repeat(stamps, counts)
    assert len(seen) == len(sent)
    return [float(age) for age in seen - np.array(sent)]


if __name__ == "__main__":
    name, bootstrap, folder, topic, records = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Callable[[str, Path, str, int], list[float]]] = {"slackwater": _slackwater, "spark": _spark}
    print(json.dumps(sides[name](bootstrap, work, topic, int(records))))
