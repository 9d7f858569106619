"""Spark's daemon of Python workers."""

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from slackwater.pipeline.batch.spark_engine import without_interrupts
from slackwater.pipeline.batch.worker_daemon import ignore_hang_up

from tests.support.running import eventually


def test_a_worker_disconnected_by_spark_exits_silently_and_other_errors_are_printed() -> None:
    def worker(_connection: socket.socket, error: BaseException | None) -> int:
        if error is not None:
            raise error
        return 0

    quiet = ignore_hang_up(worker)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as spark:
        assert quiet(spark, None) == 0
        for gone in (BrokenPipeError(), ConnectionResetError(), EOFError()):
            assert quiet(spark, gone) == 1
        with pytest.raises(OSError, match="full"):
            quiet(spark, OSError("the disk is full"))


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_a_failing_batch_does_not_kill_python_workers_of_other_batches(tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None

    def daemon_of_a_worker() -> int:
        def parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                yield pa.record_batch({"daemon": [os.getppid()]})

        (found,) = spark.range(1, numPartitions=1).mapInArrow(parent, "daemon long").collect()
        return int(found.daemon)

    daemon, failed = psutil.Process(daemon_of_a_worker()), []

    def batch(rows: DataFrame, number: int) -> None:
        if number:
            return
        waits = rows.select("value").mapInArrow(lambda batches: batches, "value long")
        # After half a second, so that the other waits by then.
        fails = spark.range(1, numPartitions=1).selectExpr(
            "if(coalesce(java_method('java.lang.Thread', 'sleep', 500L), '') >= '', raise_error('poison'), id) value"
        )
        workers = daemon.children()
        for worker in workers:
            worker.kill()
        psutil.wait_procs(workers)
        daemon.suspend()
        try:
            waits.union(fails).collect()
        except PySparkException as error:
            failed.append(str(error))
        finally:
            daemon.resume()

    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).option("numPartitions", 1).load()
    writer = rate.writeStream.foreachBatch(without_interrupts(batch)).option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        eventually(lambda: bool(failed), "the first batch")
    finally:
        query.stop()
    assert "poison" in failed[0]
    assert daemon_of_a_worker() == daemon.pid
