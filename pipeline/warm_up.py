"""What the first batch needs of Spark comes up while the stages are checked and claimed.

A first job takes seconds in which hardly any data moves: Python workers start and import, the JVM loads and compiles
what a source in Python, a shuffle and an exchange with Python take. A job of the same making over a handful of rows,
and a source that is never started, have that done beside what the runner does meanwhile, which mostly waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from .task import RESULT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["warm_up"]


def warm_up(spark: SparkSession) -> None:
    """Start it in threads of their own. Nobody need wait for them."""
    for work in (_a_source, _a_job):
        threading.Thread(target=_quietly, args=(work, spark), name="warm-up", daemon=True).start()


def _quietly(work: Callable[[SparkSession], None], spark: SparkSession) -> None:
    # Whatever fails here fails again in the run, which says it better, unless the run has ended: then it is no news.
    with suppress(Exception):
        work(spark)


def _a_source(spark: SparkSession) -> None:
    """The process that makes sources, with its imports."""
    spark.readStream.format("slackwater-topic").option("subscribe", "-").load()


def _a_job(spark: SparkSession) -> None:
    """A batch's job over a row for each core: a worker for each, and code for all of its operators."""
    cores = spark.sparkContext.defaultParallelism
    rows = spark.range(0, cores, 1, cores).select("id", F.xxhash64("id").alias("_hash"))
    rows.repartitionById(cores, F.col("id").cast("int")).mapInArrow(_import, RESULT_SCHEMA).collect()


def _import(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """To be found here, a worker has imported all that a task needs."""
    for _ in batches:
        pass
    yield from ()
