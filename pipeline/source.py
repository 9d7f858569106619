"""Structured Streaming sources in Python: a user's Kafka topic, and a repartition topic.

Options follow Structured Streaming's Kafka source: `kafka.*` for the client, `subscribe`, `maxOffsetsPerTrigger`.
Those of our own: `store`, `app`, `input`, `upstream`, `handled` (snapshot ids, comma between), `triggerMs`, `hold` (a
file; while it is there, no batch starts), `counts` (a folder where the planner's requests to the store are counted) and
`patienceS`.

Spark starts a process only to make one of these: what reading takes is not imported before something is read.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

__all__ = ["TOPIC_SCHEMA", "ChannelSource", "TopicSource", "parse_ddl"]

TOPIC_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
"""The columns of Structured Streaming's Kafka source."""


def parse_ddl(ddl: str) -> StructType:
    """The columns of a DDL string such as "n long, at timestamp". Raises pyspark's `ParseException`."""
    columns = StructType.fromDDL(ddl)
    assert isinstance(columns, StructType)  # noqa: S101  a list of columns is nothing else
    return columns


class TopicSource(DataSource):
    """`spark.readStream.format("slackwater-topic")`: a user's Kafka topic."""

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return "slackwater-topic"

    def schema(self) -> str:
        """The columns of Structured Streaming's Kafka source."""
        return TOPIC_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Spark's hook."""
        from .readers import TopicReader

        return TopicReader(dict(self.options), schema)


class ChannelSource(DataSource):
    """`spark.readStream.format("slackwater-channel").schema(...)`: a repartition topic."""

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return "slackwater-channel"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Spark's hook."""
        from .readers import ChannelReader

        return ChannelReader(dict(self.options), schema)
