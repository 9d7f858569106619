"""The Structured Streaming source of one input, in Python: a user's Kafka topic, or a repartition topic.

Spark starts a process only to make one of these: what reading takes is not imported before something is read.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from .options import Private, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
"""The columns of Structured Streaming's Kafka source."""
WITH_HEADERS = f"{TOPIC_SCHEMA}, headers array<struct<key: string, value: binary>>"
"""The same with its option `includeHeaders`."""


class InputSource(DataSource):
    """`spark.readStream.format("slackwater-input")`: for what users read, `slackwater.spark` has a source."""

    private: ClassVar[Private] = Private()

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return "slackwater-input"

    def schema(self) -> StructType | str:
        """The columns of Structured Streaming's Kafka source, unless `open_stream` was given others."""
        return TOPIC_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Spark's hook."""
        from .readers import ChannelSourceReader, TopicSourceReader

        options = msgspec.json.decode(self.options["json"], type=SourceOptions)
        return (ChannelSourceReader if options.upstream else TopicSourceReader)(options, schema, self.private)


_registering = Lock()


def open_stream(
    spark: SparkSession, options: SourceOptions, private: Private, schema: StructType | None = None
) -> DataFrame:
    """A stream of a source that has `private` beside its options; rows have the `schema`, or that of a plain topic.

    Spark pickles a source's class when it is registered, and makes the source of it when the stream is opened. So for
    that moment a class is registered that carries the values. Spark keeps them in memory as bytes of a pickle, sends
    them to tasks as it sends functions, and shows them nowhere. A schema that Spark was given would put off the making.
    """
    more: dict[str, object] = {} if schema is None else {"schema": lambda _self: schema}
    with _registering:
        spark.dataSource.register(type(InputSource.__name__, (InputSource,), {"private": private, **more}))
        try:
            return (
                spark.readStream.format(InputSource.name()).option("json", msgspec.json.encode(options).decode()).load()
            )
        finally:
            spark.dataSource.register(InputSource)
