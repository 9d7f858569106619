"""One side of a comparison in a fresh process, how our side runs there, and what the peers are set to."""

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
"""Set in the environment of a peer's processes, so that their memory is not taken for ours."""

_ENDS_S = 60.0
"""How long a process may take to end once it has answered."""

SPARK_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Our sessions choose a plainer one for checkpoints that are scratch. Spark's must last, so it has Spark's own.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
}
"""Spark's own state as it is set for large state: RocksDB, a changelog each batch, snapshots in the background."""


def run(module: str, *words: object, peer: bool = False, env: Mapping[str, str] | None = None) -> Any:
    """What `python -m bench.<module> <words>` prints, which is JSON; `env` goes before the environment.

    Raises:
        subprocess.CalledProcessError: It failed; why, it has said on stderr.
    """
    command = [sys.executable, "-m", f"bench.{module}", *map(str, words)]
    # What Spark's own workers say of their pandas, once a batch, is not what somebody wants to read here.
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
    """Wait for a process whose answer is there to end, and end it with its JVM where that hangs.

    A JVM with Spark's RocksDB sometimes does: it waits for its own threads, and hears no signal.
    """
    with suppress(psutil.NoSuchProcess):
        running = psutil.Process(process.pid)
        every = [running, *running.children(recursive=True)]
        for left in psutil.wait_procs(every, timeout=patience_s)[1]:
            with suppress(psutil.NoSuchProcess):
                left.kill()


def commits_ms(app: sw.App, bootstrap: str, store: str, cache: Path, batch: int, **more: Any) -> list[int]:
    """When each commit of `reports` was, milliseconds since 1970."""
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
    """Run an app of ours until it has caught up: what it says of each of its commits, also as it is made.

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
    """Of all that the one stage of `bench` sent to its channel, which nobody reads, the number and sums of columns."""
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
    """When a batch started, in seconds since 1970, how long Spark says that it took, and the rows that it read."""

    start: float
    seconds: float
    rows: int

    @property
    def end(self) -> float:
        """When it had committed, in seconds since 1970."""
        return self.start + self.seconds


def batches(query: StreamingQuery) -> list[Batch]:
    """The batches of a query that read rows, as far back as Spark keeps them."""
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
    """When each batch of a Spark query that read rows had committed, milliseconds since 1970."""
    return [round(1000 * batch.end) for batch in batches(query)]


def started(rows: DataFrame, checkpoint: Path, *, mode: str = "update") -> StreamingQuery:
    """A peer's query whose results go nowhere, begun."""
    query = rows.writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(checkpoint))
    return query.start()


def worked_off(query: StreamingQuery) -> list[int]:
    """`ends_ms` of a query that has read all there is, and is stopped then."""
    query.processAllAvailable()
    found = ends_ms(query)
    query.stop()
    return found


def worked_off_with_sums(rows: DataFrame, checkpoint: Path, columns: Sequence[str]) -> tuple[list[int], list[float]]:
    """As `worked_off` of a query that appends, and of its rows the number and the sums of columns."""
    from pyspark.sql import functions as F

    counted = rows.observe("all", F.count(F.lit(1)).alias("n"), *(F.sum(name).alias(name) for name in columns))
    query = started(counted, checkpoint, mode="append")
    query.processAllAvailable()
    ends, told = ends_ms(query), [one["observedMetrics"] for one in query.recentProgress]
    query.stop()
    return ends, [float(sum(each["all"][name] or 0 for each in told if each)) for name in ("n", *columns)]


def topic_stream(spark: SparkSession, bootstrap: str, topic: str, max_records: int) -> DataFrame:
    """A topic as our own source gives it, for a peer's query."""
    from slackwater.pipeline.source.data_source import open_stream
    from slackwater.pipeline.source.options import PrivateOptions, SourceOptions

    tasks = spark.sparkContext.defaultParallelism
    options = SourceOptions(input=topic, topic=topic, max_records=max_records, tasks=tasks)
    return open_stream(spark, options, PrivateOptions({"bootstrap.servers": bootstrap}))


def connector_stream(spark: SparkSession, bootstrap: str, topic: str, max_records: int | None = None) -> DataFrame:
    """A topic from its beginning as Spark's own connector gives it, whose jars the session has."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    bound = {"maxOffsetsPerTrigger": str(max_records)} if max_records is not None else {}
    return spark.readStream.format("kafka").options(**options, **bound).load()


def connector_jars() -> str:
    """The jars of Spark's own connector, for `spark.jars`: downloaded once."""
    from slackwater.pipeline.dev.jars import Jars

    listed = Path(__file__).with_name("spark-kafka-jars.txt")
    jars = Jars("Spark's Kafka connector", "spark-kafka-4.2.0", listed, 9).fetch()
    return ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))
