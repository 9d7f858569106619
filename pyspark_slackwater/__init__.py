"""Spark looks for packages of such a name: so `spark.read.format("slackwater")` needs no word before it."""

from slackwater.spark import SparkSource as DefaultSource

__all__ = ["DefaultSource"]
