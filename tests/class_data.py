"""An archive of Spark's classes that JVMs share (class data sharing, JEP 350).

`python -m tests.class_data FILE` runs Spark once and writes the classes that it has loaded.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from slackwater.pipeline.spark.session import spark_session


def write(file: Path) -> None:
    """Run what most tests run, and have the JVM write its classes when it ends; a file that is there is whole."""
    unfinished = file.with_suffix(".unfinished")
    # Of a third of the classes it says that they cannot be shared.
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={unfinished}"
    conf = {"spark.driver.extraJavaOptions": options}
    with tempfile.TemporaryDirectory() as folder, spark_session("classes", master="local[2]", conf=conf) as spark:
        spark.range(1000).selectExpr("id % 7 AS key", "id AS value").createOrReplaceTempView("numbers")
        sums = spark.sql("SELECT key, xxhash64(key) AS _hash, sum(value), max(value) FROM numbers GROUP BY key")
        sums.repartition(2, "key").mapInArrow(_same, sums.schema).collect()
        sums.write.parquet(f"{folder}/sums")
        rows = spark.readStream.schema(sums.schema).parquet(f"{folder}/sums")
        query = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", f"{folder}/checkpoint")
        query.foreachBatch(lambda batch, _: batch.collect()).start().awaitTermination()
        # Spark's JVM goes on when Spark has stopped: it ends when nobody holds its standard input any more.
        jvm = spark.sparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait(120)
    unfinished.rename(file)


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    write(Path(sys.argv[1]))
