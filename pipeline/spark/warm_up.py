"""Warming Spark up: what the first batch needs is started while the runner checks and claims its stages.

A first batch takes seconds in which hardly any data moves: Python processes start, the JVM loads and compiles what a
source in Python, a shuffle and an exchange with Python take. A source that is never started and a job of the same
making over one row have that done meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from ..source.data_source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def warm_up(spark: SparkSession) -> None:
    """Start it in threads of their own. Nobody need wait for them."""
    for work in (_source, _job):
        threading.Thread(target=_quietly, args=(work, spark), name="warm-up", daemon=True).start()


def _quietly(work: Callable[[SparkSession], None], spark: SparkSession) -> None:
    # Whatever fails here fails again in the run, which says it better, unless the run has ended: then it is no news.
    with suppress(Exception):
        work(spark)


def _source(spark: SparkSession) -> None:
    spark.readStream.format(Source.name()).load()


def _job(spark: SparkSession) -> None:
    rows = spark.range(0, 1, 1, 1).select("id", F.xxhash64("id").alias("_hash"))
    rows.repartitionById(1, F.col("id").cast("int")).select("id").mapInArrow(_same, "id long").collect()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
