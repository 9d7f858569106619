"""The Structured Streaming source of one input, in Python: a user's Kafka topic, or a repartition topic.

Spark starts a separate process to construct a source, so modules for reading are imported only at the first read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from ...common import runtime
from .options import PrivateOptions, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
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


_register_lock = runtime.lock()


def open_stream(
    spark: SparkSession, options: SourceOptions, private: PrivateOptions, schema: StructType | None = None
) -> DataFrame:
    """Open a stream of `InputSource`, without showing the values in `private` in Spark's plans, UI or logs.

    Rows have the columns of `schema`; None stands for the columns of a user's topic without headers.

    Spark pickles a source's class when the class is registered, and constructs the source when the stream is opened. So
    a subclass that has the private values is registered during this call. Spark keeps the values as pickled bytes, and
    sends them to tasks like functions. The schema is also part of the subclass: with a separate schema, Spark would
    construct the source later.
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
