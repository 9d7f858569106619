"""Entry point for Spark, which finds data sources in packages `pyspark_*`: `format("slackwater")` needs no set-up."""

from slackwater.spark import SparkSource as DefaultSource

__all__ = ["DefaultSource"]
