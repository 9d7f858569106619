"""The Structured Streaming source of one input, in Python: a user's Kafka topic, or a repartition topic.

Spark starts a process merely to construct a source, so modules for reading are imported only at the first read.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from .options import PrivateOptions, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
TOPIC_SCHEMA_WITH_HEADERS = f"{TOPIC_SCHEMA}, headers array<struct<key: string, value: binary>>"


class InputSource(DataSource):
    """Spark's data source `slackwater-input`, for internal use. The source for users is `slackwater.spark`."""

    private: ClassVar[PrivateOptions] = PrivateOptions()

    @classmethod
    def name(cls) -> str:
        return "slackwater-input"

    def schema(self) -> StructType | str:
        return TOPIC_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        from .readers import ChannelSourceReader, TopicSourceReader

        options = msgspec.json.decode(self.options["json"], type=SourceOptions)
        return (ChannelSourceReader if options.upstream else TopicSourceReader)(options, schema, self.private)


_register_lock = Lock()


def open_stream(
    spark: SparkSession, options: SourceOptions, private: PrivateOptions, schema: StructType | None = None
) -> DataFrame:
    """Open a stream of a source, with `private` values that Spark does not show.

    Rows have the columns of `schema`; None for those of a plain topic.

    Spark pickles a source's class when it is registered, and constructs the source when the stream is opened. So for
    that moment a class is registered that has the values. Spark keeps the values in memory as pickled bytes, sends them
    to tasks like functions, and shows them nowhere. If Spark were given a schema, it would construct the source later.
    """
    more: dict[str, object] = {} if schema is None else {"schema": lambda _self: schema}
    with _register_lock:
        spark.dataSource.register(type(InputSource.__name__, (InputSource,), {"private": private, **more}))
        try:
            return (
                spark.readStream.format(InputSource.name()).option("json", msgspec.json.encode(options).decode()).load()
            )
        finally:
            spark.dataSource.register(InputSource)
