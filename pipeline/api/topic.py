"""The topics that stages read and write: a user's own, and those between two stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...common.argument_types import checked
from ...common.validation import whole
from ...errors import Usage
from ...store.versions.keys import check_name, check_topic
from ...store.versions.limits import MAX_KAFKA_PARTITIONS
from .starting_offsets import StartingOffsets, starting_offsets_of


@dataclass(frozen=True, slots=True)
class Topic:
    """A user's Kafka topic. Its rows have the columns of Structured Streaming's Kafka source."""

    name: str
    start: StartingOffsets
    include_headers: bool = False
    """Whether `headers` is among them."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """An internal topic between two stages: its rows go to the Kafka partition that their key says."""

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

    Where a stage that has no version yet begins is said as in Structured Streaming's Kafka source; one that has always
    goes on where that stopped.

    Args:
        name: The topic.
        starting_offsets: `"earliest"`, `"latest"`, or JSON with an offset for each partition, of which -2 is the
            earliest and -1 the latest: `{"flights":{"0":23,"1":-2}}`.
        starting_timestamp: Begin each partition at its first record of this time or later, in ms since 1970. It wins
            over the other two.
        starting_offsets_by_timestamp: The same with a time for each partition, as JSON:
            `{"flights":{"0":1700000000000,"1":0}}`. It wins over `starting_offsets`.
        starting_offsets_by_timestamp_strategy: What happens where no record is as late: `"error"` refuses the stage,
            `"latest"` begins that partition at its end.
        include_headers: Rows have Spark's column `headers`, too: an array of (key, value), null for a record without.

    Raises `Usage` where an argument is not such as Spark takes, or Kafka has no topics of such a name.
    """
    by_time = starting_timestamp, starting_offsets_by_timestamp, starting_offsets_by_timestamp_strategy
    return Topic(name, starting_offsets_of(check_topic(name), starting_offsets, *by_time), include_headers)


@checked
def repartition(name: str, key: Sequence[str] | str, *, partitions: int = 4) -> Repartition:
    """Write a stage's rows to an internal topic, keyed, for later stages to read.

    Args:
        name: Its name within the app; the Kafka topic is `<app>-<name>-repartition`.
        key: The column or columns that decide the partition; also the default key of a stage that reads it.
        partitions: Partitions of the Kafka topic when it is first made.

    Raises `Usage` where the name, the key or the number of partitions is not usable.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    check_name("repartition topic", name)
    if not columns or len(set(columns)) != len(columns):
        raise Usage(f"repartition {name!r}: key is {columns!r}; expected one or more different column names")
    return Repartition(name, columns, whole(f"repartition {name!r}: partitions", partitions, 1, MAX_KAFKA_PARTITIONS))
