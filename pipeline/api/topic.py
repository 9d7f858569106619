"""Topics that stages read and write: users' topics, and topics between two stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...common.arguments import checked
from ...common.validation import whole
from ...errors import Usage
from ...store.versions.keys import check_name, check_topic
from ...store.versions.limits import MAX_KAFKA_PARTITIONS
from .starting_offsets import StartingOffsets, starting_offsets_of


@dataclass(frozen=True, slots=True)
class Topic:
    """A user's Kafka topic. Rows have the columns of Structured Streaming's Kafka source."""

    name: str
    start: StartingOffsets
    include_headers: bool = False
    """True if rows have the column `headers`."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """An internal topic between two stages. The key of a row decides its Kafka partition."""

    name: str
    key: tuple[str, ...]
    partitions: int


@checked
def topic(
    name: str,
    *,
    starting_offsets: str = "earliest",
    starting_timestamp: int | str | None = None,
    starting_offsets_by_timestamp: str | None = None,
    starting_offsets_by_timestamp_strategy: str = "error",
    include_headers: bool = False,
) -> Topic:
    """Read a Kafka topic.

    The starting position of a stage without a version is declared as in Structured Streaming's Kafka source; a stage
    with a version always continues from there.

    Args:
        name: The topic.
        starting_offsets: `"earliest"`, `"latest"`, or JSON with an offset for each partition, in which -2 is the
            earliest and -1 the latest: `{"flights":{"0":23,"1":-2}}`.
        starting_timestamp: Begin each partition at its first record of this time or later, in ms since 1970. Takes
            precedence over the next option and `starting_offsets`.
        starting_offsets_by_timestamp: Begin each partition at its first record of its own time or later, as JSON:
            `{"flights":{"0":1700000000000,"1":0}}`. Takes precedence over `starting_offsets`.
        starting_offsets_by_timestamp_strategy: Action for a partition without such a record: `"error"` refuses the
            stage, `"latest"` begins the partition at its end.
        include_headers: Add Spark's column `headers`: an array of (key, value), null for a record without headers.

    Raises `Usage` for values that Spark rejects, or an invalid topic name.
    """
    by_time = starting_timestamp, starting_offsets_by_timestamp, starting_offsets_by_timestamp_strategy
    return Topic(name, starting_offsets_of(check_topic(name), starting_offsets, *by_time), include_headers)


@checked
def repartition(name: str, key: Sequence[str] | str, *, partitions: int = 4) -> Repartition:
    """Write a stage's rows to an internal topic, partitioned by key, for later stages to read.

    Args:
        name: Name within the app; the Kafka topic is `<app>-<name>-repartition`.
        key: Column or columns that decide the partition; also the default key of a stage that reads the topic.
        partitions: Number of partitions with which the Kafka topic is created.

    Raises `Usage` for an unusable name, key or number of partitions.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    check_name("repartition topic", name)
    if not columns or len(set(columns)) != len(columns):
        raise Usage(f"repartition {name!r}: key is {columns!r}; expected one or more different column names")
    return Repartition(name, columns, whole(f"repartition {name!r}: partitions", partitions, 1, MAX_KAFKA_PARTITIONS))
