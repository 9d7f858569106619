"""The Structured Streaming source of one input, in Python: a user's Kafka topic, or a repartition topic.

Spark starts a process only to make one of these: what reading takes is not imported before something is read. Options
stand in Spark's plans, and so in its UI and its event log. So a source gets the client's properties, which have
passwords, beside them (`open_stream`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from .worker import ERROR_MARK, ErrorMark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...store.objects.s3.settings import S3Settings

TOPIC_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
"""The columns of Structured Streaming's Kafka source."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a source is told, as JSON in its one option. No secrets."""

    input: str
    """The input's declared name."""
    topic: str
    """The Kafka topic."""
    upstream: str = ""
    """The stage that writes it, for a repartition topic; empty for a user's topic."""
    patience_s: float = 120
    """How long the broker or the store may be away."""
    max_records: int | None = None
    """At most so many records, or rows, a batch; None for no bound."""
    trigger_ms: int = 0
    """Shortest time between two batches."""
    app: str = ""
    stage: str = ""
    """The one that reads."""
    store: str = ""
    """Root of the store in which to look for the upstream stage's versions; empty for a user's topic."""
    counts: str = ""
    """A folder in which requests to the store are counted; empty for none."""
    told: str = ""
    """Where the runner tells what it wants (`wake.PlannerFiles`); empty where nobody does."""
    wakes: bool = False
    """Whether the runner wakes the stage by this input."""
    asks: bool = False
    """Whether to look for the snapshots that are asked for; else markers bring them."""
    handled: tuple[str, ...] = ()
    """Ids of snapshots for which a batch of this topic has ended already."""
    until: tuple[int, ...] | None = None
    """Where a user's topic ends for this reader, by partition; None for its end in Kafka."""


@dataclass(frozen=True, slots=True)
class Private:
    """What a source is given that nobody else may see."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties."""
    s3: S3Settings | None = None
    """How S3 is talked to; None for what the environment says."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of the driver by which it finds S3, for planning, which is done on its machine."""
    error_mark: ErrorMark = ERROR_MARK
    """Of the errors of reading, in tasks."""


class InputSource(DataSource):
    """`spark.readStream.format("slackwater")`."""

    private: ClassVar[Private] = Private()

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return "slackwater"

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
    """A stream of a source that has `private` beside its options; `schema` is that of a repartition topic's rows.

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
