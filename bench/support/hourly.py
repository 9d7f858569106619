"""Flights with event times for benchmarks of event-time state. Six batches are one hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .events import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH = 400_000
DELAY = "10 minutes"
"""Delay of the watermark."""
_BEGIN_US = 1_356_998_400_000_000
"""2013-01-01, in microseconds since 1970."""
_STEP_US = 3_600_000_000 * PARTITIONS // (6 * BATCH)
"""Event time between two records of a partition."""


def timed(flights: DataFrame) -> DataFrame:
    """Return the legs, delays and event times of flights.

    Event time grows by a constant step from record to record of a partition.
    """
    from pyspark.sql import functions as F

    event = F.from_json(F.col("value").cast("string"), "arr_delay double")
    return flights.select(
        F.col("key").cast("string").alias("leg"),
        event["arr_delay"].alias("arr_delay"),
        F.timestamp_micros(F.lit(_BEGIN_US) + F.col("offset") * _STEP_US).alias("at"),
    ).withWatermark("at", DELAY)
