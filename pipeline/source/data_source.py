"""Structured Streaming sources in Python: a user's Kafka topic, and a repartition topic.

Options follow Structured Streaming's Kafka source: `kafka.*` for the client, `subscribe`, `maxOffsetsPerTrigger`.
Those of our own: `store`, `app`, `input`, `upstream`, `handled` (snapshot ids, comma between), `triggerMs`, `hold` (a
file; while it is there, no batch starts), `counts` (a folder where the planner's requests to the store are counted) and
`patienceS`. Options stand in Spark's plans, and so in its UI and its event log. So a stage's sources get the client's
properties, which have passwords, beside them (`open_stream`).

Spark starts a process only to make one of these: what reading takes is not imported before something is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...store.objects.s3.settings import S3Settings

__all__ = [
    "TOPIC_SCHEMA",
    "ChannelSource",
    "Private",
    "TopicSource",
    "open_stream",
]

TOPIC_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
"""The columns of Structured Streaming's Kafka source."""


@dataclass(frozen=True, slots=True)
class Private:
    """What a source is given that nobody else may see.

    Attributes:
        kafka: Client properties.
        s3: How S3 is talked to; None for what the environment says.
        environ: Variables of the driver by which it finds S3, for planning, which is done on its machine.
    """

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    s3: S3Settings | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


_registering = Lock()


def open_stream(
    spark: SparkSession,
    source: type[TopicSource | ChannelSource],
    private: Private,
    options: Mapping[str, object],
    schema: StructType | None = None,
) -> DataFrame:
    """A stream of a source that has `private` beside its options.

    Spark pickles a source's class when it is registered, and makes the source of it when the stream is opened. So for
    that moment a class is registered that carries the values. Spark keeps them in memory as bytes of a pickle, sends
    them to tasks as it sends functions, and shows them nowhere.

    `schema` is that of the rows, for a source that has none of its own. The class has it too: told to Spark it would
    put off the making.
    """
    more: dict[str, object] = {} if schema is None else {"schema": lambda _self: schema}
    with _registering:
        spark.dataSource.register(type(source.__name__, (source,), {"private": private, **more}))
        try:
            return spark.readStream.format(source.name()).options(**options).load()  # type: ignore[arg-type]
        finally:
            spark.dataSource.register(source)


class TopicSource(DataSource):
    """`spark.readStream.format("slackwater-topic")`: a user's Kafka topic."""

    private: ClassVar[Private] = Private()

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

        return TopicReader(dict(self.options), schema, self.private)


class ChannelSource(DataSource):
    """`spark.readStream.format("slackwater-channel").schema(...)`: a repartition topic."""

    private: ClassVar[Private] = Private()

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return "slackwater-channel"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Spark's hook."""
        from .readers import ChannelReader

        return ChannelReader(dict(self.options), schema, self.private)
