"""Spark finds data sources in packages named `pyspark_*`: `spark.read.format("slackwater")` needs no setup."""

from slackwater.spark import SparkSource as DefaultSource

__all__ = ["DefaultSource"]
