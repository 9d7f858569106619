"""The Structured Streaming source of one input, in Python: a user's Kafka topic, or a repartition topic.

What a source is told stands in Spark's plans, and so in its UI and its event log. So it gets the client's properties,
which have passwords, beside its options (`open_stream`).

Spark starts a process only to make one of these: what reading takes is not imported before something is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from .own_errors import ERROR_MARK, ErrorMark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...store.objects.s3.settings import S3Settings

TOPIC_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
"""The columns of Structured Streaming's Kafka source."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a source is told, as JSON in its one option. No secrets.

    Attributes:
        input: The input's declared name.
        topic: The Kafka topic.
        upstream: The stage that writes it, for a repartition topic; empty for a user's topic.
        patience_s: How long the broker or the store may be away.
        max_records: At most so many records, or rows, a batch; None for no bound.
        trigger_ms: Shortest time between two batches.
        hold: A file; while it is there, no batch starts but for a snapshot. Empty for none.
        app: The app's name.
        store: Root of the store in which to look for the upstream stage's versions; empty for a user's topic.
        counts: A folder in which requests to the store are counted; empty for none.
        requests: A file with the ids of the snapshots that are asked for (`wake.Asked`); empty if markers bring them.
        sender: A file with the newest version of the upstream stage (`wake.Committed`), where that runs here as well.
        handled: Ids of snapshots for which a batch of this topic has ended already.
        until: Where a user's topic ends for this reader, by partition; None for its end in Kafka.
        wake: A file by which the runner has a batch start (`wake`); empty for none.
        needed: A file with the columns of a user's topic that the stage needs (`wake.Needed`); empty for all.
    """

    input: str
    topic: str
    upstream: str = ""
    patience_s: float = 120
    max_records: int | None = None
    trigger_ms: int = 0
    hold: str = ""
    app: str = ""
    store: str = ""
    counts: str = ""
    requests: str = ""
    sender: str = ""
    handled: tuple[str, ...] = ()
    until: tuple[int, ...] | None = None
    wake: str = ""
    needed: str = ""


@dataclass(frozen=True, slots=True)
class Private:
    """What a source is given that nobody else may see.

    Attributes:
        kafka: Client properties.
        s3: How S3 is talked to; None for what the environment says.
        environ: Variables of the driver by which it finds S3, for planning, which is done on its machine.
        error_mark: Of the errors of reading, in tasks.
    """

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    s3: S3Settings | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    error_mark: ErrorMark = ERROR_MARK


class Source(DataSource):
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
        from .readers import ChannelReader, TopicReader

        options = msgspec.json.decode(self.options["json"], type=SourceOptions)
        return (ChannelReader if options.upstream else TopicReader)(options, schema, self.private)


_registering = Lock()


def open_stream(
    spark: SparkSession, options: SourceOptions, private: Private, schema: StructType | None = None
) -> DataFrame:
    """A stream of a source that has `private` beside its options.

    Spark pickles a source's class when it is registered, and makes the source of it when the stream is opened. So for
    that moment a class is registered that carries the values. Spark keeps them in memory as bytes of a pickle, sends
    them to tasks as it sends functions, and shows them nowhere.

    `schema` is that of a repartition topic's rows. The class has it too: told to Spark it would put off the making.
    """
    more: dict[str, object] = {} if schema is None else {"schema": lambda _self: schema}
    with _registering:
        spark.dataSource.register(type(Source.__name__, (Source,), {"private": private, **more}))
        try:
            return spark.readStream.format(Source.name()).option("json", msgspec.json.encode(options).decode()).load()
        finally:
            spark.dataSource.register(Source)
