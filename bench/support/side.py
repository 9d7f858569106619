"""One side of a comparison, in a fresh process: runs our app or a peer's query. Also has the settings of the peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from slackwater.pipeline.listener import BatchReport

PEER = "SLACKWATER_BENCH_PEER"
"""Variable that is set in a peer's processes, so that their memory is not counted as ours."""

_ENDS_S = 60.0
"""Seconds within which a process must exit after it has answered."""

SPARK_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Our sessions use a simpler file manager for their scratch checkpoints. Spark's checkpoints must last, so Spark
    # uses its own.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
}
"""Spark's settings for large state: RocksDB, with a changelog per batch, and snapshots in the background."""


def run(module: str, *words: object, peer: bool = False, env: Mapping[str, str] | None = None) -> Any:
    """Run `python -m bench.<module> <words>`, and return the JSON that it prints. `env` overrides the environment.

    Raises:
        subprocess.CalledProcessError: The process failed; the reason is on its stderr.
    """
    command = [sys.executable, "-m", f"bench.{module}", *map(str, words)]
    # The pandas messages that Spark's workers print for each batch are dropped.
    of_peers = {PEER: "1", "PYTHONWARNINGS": "ignore::FutureWarning"} if peer else {}
    environment = {**os.environ, **(env or {}), **of_peers}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        try:
            answer = process.stdout.readline()
        except BaseException:
            _end(process, patience_s=0)
            raise
        if not answer and (code := process.wait()):
            raise subprocess.CalledProcessError(code, command)
        _end(process)
    return json.loads(answer)


def _end(process: subprocess.Popen[str], patience_s: float = _ENDS_S) -> None:
    """Wait until a process that has answered exits. If it hangs, kill it and its JVM.

    A JVM with Spark's RocksDB sometimes waits for its own threads and ignores signals.
    """
    with suppress(psutil.NoSuchProcess):
        running = psutil.Process(process.pid)
        every = [running, *running.children(recursive=True)]
        for left in psutil.wait_procs(every, timeout=patience_s)[1]:
            with suppress(psutil.NoSuchProcess):
                left.kill()


def commits_ms(app: sw.App, bootstrap: str, store: str, cache: Path, batch: int, **more: Any) -> list[int]:
    """Return the time of each commit of `reports`, in milliseconds since 1970."""
    return [report.time_ms for report in reports(app, bootstrap, store, cache, batch, **more)]


def reports(
    app: sw.App,
    bootstrap: str,
    store: str,
    cache: Path,
    batch: int,
    on_report: Callable[[BatchReport], None] = lambda _report: None,
    **more: Any,
) -> list[BatchReport]:
    """Run our app until it has caught up. Returns the report of each commit; `on_report` gets each report at once.

    `batch` is `max_records`; `more` are further options.
    """
    from slackwater.pipeline.listener import Callbacks
    from slackwater.pipeline.run.options import Options
    from slackwater.pipeline.run.runner import run

    found: list[BatchReport] = []
    options = Options(
        store=store,
        kafka={"bootstrap.servers": bootstrap},
        until_caught_up=True,
        max_records=batch,
        cache_folder=cache,
        master="local[2]",
        **more,
    )

    def note(report: BatchReport) -> None:
        found.append(report)
        on_report(report)

    run(app, options, Callbacks(committed=note))
    return found


def sums_in_flight(bootstrap: str, store: str, columns: Sequence[str]) -> list[float]:
    """Return how many records stage `bench` has sent that no stage has read, and the sums of their columns."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from slackwater.pipeline.kafka.channels import KafkaChannels
    from slackwater.pipeline.kafka.open import open_kafka
    from slackwater.snapshot.cut.in_flight import in_flight
    from slackwater.snapshot.cut.resolve import resolve
    from slackwater.store.objects.open import open_store

    opened = open_store(store)
    (state,) = in_flight(opened, resolve(opened, "bench", now_ms=round(1000 * time.time())))
    rows = pa.concat_tables(KafkaChannels(open_kafka(bootstrap)).read(state))
    return [float(rows.num_rows), *(float(pc.sum(rows[name]).as_py()) for name in columns)]


class Batch(NamedTuple):
    """Start of a batch in seconds since 1970, its duration as Spark reports it, and its number of rows."""

    start: float
    seconds: float
    rows: int

    @property
    def end(self) -> float:
        """Return the time of the commit, in seconds since 1970."""
        return self.start + self.seconds


def batches(query: StreamingQuery) -> list[Batch]:
    """Return the batches that read rows, as far back as Spark keeps their progress."""
    return [
        Batch(
            datetime.fromisoformat(one["timestamp"]).timestamp(),
            one["durationMs"]["triggerExecution"] / 1000,
            one["numInputRows"],
        )
        for one in query.recentProgress
        if one["numInputRows"] > 0
    ]


def ends_ms(query: StreamingQuery) -> list[int]:
    """Return the commit time of each batch that read rows, in milliseconds since 1970."""
    return [round(1000 * batch.end) for batch in batches(query)]


def started(rows: DataFrame, checkpoint: Path, *, mode: str = "update") -> StreamingQuery:
    """Start a peer's query, whose results are discarded."""
    query = rows.writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(checkpoint))
    return query.start()


def worked_off(query: StreamingQuery) -> list[int]:
    """Let a query read all available input, and stop it. Returns `ends_ms`."""
    query.processAllAvailable()
    found = ends_ms(query)
    query.stop()
    return found


def worked_off_with_sums(rows: DataFrame, checkpoint: Path, columns: Sequence[str]) -> tuple[list[int], list[float]]:
    """Run a query in append mode, like `worked_off`.

    Also returns the number of result rows, and the sums of their columns.
    """
    from pyspark.sql import functions as F

    counted = rows.observe("all", F.count(F.lit(1)).alias("n"), *(F.sum(name).alias(name) for name in columns))
    query = started(counted, checkpoint, mode="append")
    query.processAllAvailable()
    ends, told = ends_ms(query), [one["observedMetrics"] for one in query.recentProgress]
    query.stop()
    return ends, [float(sum(each["all"][name] or 0 for each in told if each)) for name in ("n", *columns)]


def topic_stream(spark: SparkSession, bootstrap: str, topic: str, max_records: int) -> DataFrame:
    """Open a topic for a peer's query with our own source."""
    from slackwater.pipeline.source.data_source import open_stream
    from slackwater.pipeline.source.options import PrivateOptions, SourceOptions

    tasks = spark.sparkContext.defaultParallelism
    options = SourceOptions(input=topic, topic=topic, max_records=max_records, tasks=tasks)
    return open_stream(spark, options, PrivateOptions({"bootstrap.servers": bootstrap}))


def connector_stream(spark: SparkSession, bootstrap: str, topic: str, max_records: int | None = None) -> DataFrame:
    """Open a topic from its beginning with Spark's own Kafka connector, whose jars the session must have."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    bound = {"maxOffsetsPerTrigger": str(max_records)} if max_records is not None else {}
    return spark.readStream.format("kafka").options(**options, **bound).load()


def plain_session(**conf: str) -> SparkSession:
    """Start Spark as its users do, without settings and JVM options of slackwater."""
    from pyspark.sql import SparkSession

    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    common = {"spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC"}
    session = SparkSession.builder.master("local[2]").config(map={**quiet, **common, **conf}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def connector_jars() -> str:
    """Return the jars of Spark's Kafka connector, for `spark.jars`; they are downloaded once."""
    from slackwater.pipeline.dev.jars import Jars

    listed = Path(__file__).with_name("spark-kafka-jars.txt")
    jars = Jars("Spark's Kafka connector", "spark-kafka-4.2.0", listed, 9).fetch()
    return ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))
