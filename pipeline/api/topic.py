"""Declarations of topics: users' topics, with their starting offsets, and repartition topics between stages.

Starting offsets have the options of Structured Streaming's Kafka source, in snake case: `startingTimestamp` takes
precedence over `startingOffsetsByTimestamp`, which takes precedence over `startingOffsets`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec

from ...common.arguments import check_arguments
from ...common.validation import check_whole
from ...errors import Refused, Usage
from ...store.versions.keys import check_name, check_topic
from ...store.versions.limits import MAX_KAFKA_PARTITIONS
from ..kafka.declared_source import Source

_LATEST, _EARLIEST = -1, -2
_NonNegative = Annotated[int, msgspec.Meta(ge=0)]
_Offset = Annotated[int, msgspec.Meta(ge=_EARLIEST)]


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Starting position of each partition of a topic."""

    option: str = "starting_offsets"
    """Name of the argument, for messages."""
    all_partitions: int = _EARLIEST
    """Offset (-1 for latest, -2 for earliest) or timestamp (ms since 1970) for all partitions."""
    by_partition: Mapping[int, int] | None = None
    """Offset or timestamp of each Kafka partition; None if one value applies to all partitions."""
    by_time: bool = False
    """True if the values are timestamps: a partition begins at its first record since its timestamp."""
    or_latest: bool = False
    """Action if a partition has no record since its timestamp: True to begin at its end, False to refuse the stage."""
    stored: bool = False
    """True for offsets that were stored when the app was created.

    Kafka may have deleted records at these offsets since then, and the topic may have more partitions.
    """

    @property
    def depends_on_time(self) -> bool:
        """True if the result of `resolve` depends on the time of the call: for latest, earliest, or a timestamp."""
        return self.by_time or min((self.by_partition or {0: self.all_partitions}).values()) < 0

    def resolve(
        self,
        topic: str,
        earliest: Sequence[int],
        ends: Sequence[int],
        first_since: Callable[[Sequence[int]], Sequence[int]],
    ) -> tuple[int, ...]:
        """Return the first offset to read, by partition.

        `topic` is the topic's name in Kafka; its offsets go from `earliest` to `ends` (exclusive). `first_since` takes
        one timestamp per partition, in ms since 1970. It returns, by partition, the offset of the first record at or
        after that time; -1 if there is none. Raises `Refused` if the declared partitions are not those of the topic, an
        offset does not exist, or no record has the requested time or a later one.
        """
        subject = f"{self.option} of topic {topic!r}"
        if self.by_partition is None:
            begins = [self.all_partitions] * len(ends)
        elif self.by_partition.keys() == set(range(len(ends))) or (self.stored and len(self.by_partition) <= len(ends)):
            begins = [self.by_partition.get(partition, _EARLIEST) for partition in range(len(ends))]
        else:
            named = ", ".join(map(str, sorted(self.by_partition))) or "none"
            raise Refused(f"{subject} names the partitions {named}; expected each of 0 to {len(ends) - 1}")
        if self.by_time:
            offsets_found = first_since(begins)
            if -1 in offsets_found and not self.or_latest:
                too_late = [
                    f"{topic}[{partition}] {begins[partition]}" for partition, at in enumerate(offsets_found) if at < 0
                ]
                raise Refused(
                    f"{subject}: no record at or after {', '.join(too_late)} (ms since 1970)",
                    hint='starting_offsets_by_timestamp_strategy="latest" begins such partitions at their end',
                )
            return tuple(end if at < 0 else at for at, end in zip(offsets_found, ends, strict=True))
        special = {_EARLIEST: earliest, _LATEST: ends}
        offsets = tuple(special[at][p] if at in special else at for p, at in enumerate(begins))
        outside = [
            f"{topic}[{partition}] is to begin at {at}, but holds {first}..{end}"
            for partition, (at, first, end) in enumerate(zip(offsets, earliest, ends, strict=True))
            if at > end or (at < first and not self.stored)
        ]
        if outside:
            raise Refused(f"{subject}: {'; '.join(outside)}", hint="write -2 for the earliest, -1 for the latest")
        return offsets


EARLIEST = StartingOffsets()


def parse_starting_offsets(
    topic: str, offsets: str, timestamp: int | str | None, by_timestamp: str | None, strategy: str
) -> StartingOffsets:
    """Return the starting offsets that the arguments of `topic(...)` declare.

    Raises `Usage` for values that Spark rejects.
    """
    if strategy not in ("error", "latest"):
        raise Usage(
            f"starting_offsets_by_timestamp_strategy of topic {topic!r} is {strategy!r}: expected 'error' or 'latest'"
        )
    timed = partial(StartingOffsets, by_time=True, or_latest=strategy == "latest")
    if timestamp is not None:
        number = int(timestamp) if isinstance(timestamp, str) and timestamp.isdecimal() else timestamp
        since = check_whole(f"starting_timestamp of topic {topic!r} (ms since 1970)", number, 0)
        return timed("starting_timestamp", since)
    if by_timestamp is not None:
        option = "starting_offsets_by_timestamp"
        return timed(option, by_partition=_parse_partition_offsets(option, topic, by_timestamp, _NonNegative))
    if offsets in ("earliest", "latest"):
        return StartingOffsets(all_partitions=_EARLIEST if offsets == "earliest" else _LATEST)
    return StartingOffsets(by_partition=_parse_partition_offsets("starting_offsets", topic, offsets, _Offset))


def parse_offsets_arguments(arguments: Sequence[str]) -> dict[str, StartingOffsets]:
    """Parse values of `--offsets`: `flights=latest`, `flights={"0":23,"1":-2}`, or Spark's JSON for several topics.

    Returns the starting offsets by topic. Raises `Usage` for any other form, and for a topic given twice.
    """
    starts: dict[str, StartingOffsets] = {}
    for argument in arguments:
        topic, equals, text = argument.partition("=")
        options = {topic: text} if equals else {}
        try:
            if argument.lstrip().startswith("{"):
                several = msgspec.json.decode(argument, type=dict[str, Any])
                options = {name: msgspec.json.encode({name: at}).decode() for name, at in several.items()}
            elif text.lstrip().startswith("{"):
                options = {topic: msgspec.json.encode({topic: msgspec.json.decode(text)}).decode()}
        except msgspec.MsgspecError:
            options = {}
        if not options or starts.keys() & options.keys():
            raise Usage(
                f"--offsets {argument!r}: expected TOPIC=WHERE or JSON by topic and partition, and each topic once",
                hint='such as flights=latest, flights=earliest, \'flights={"0":23,"1":-2}\'',
            )
        for name, position in options.items():
            starts[name] = replace(parse_starting_offsets(name, position, None, None, "error"), option="--offsets")
    return starts


def starting_offsets_at(time_ms: int) -> StartingOffsets:
    """Return starting offsets at the first record at or after a time (ms since 1970), or at the end without one."""
    return StartingOffsets("--at", time_ms, by_time=True, or_latest=True)


def stored_starting_offsets(starts: Mapping[str, Sequence[int]]) -> dict[str, StartingOffsets]:
    """Return the starting offsets, by topic, that were stored when an app was created."""
    return {
        topic: StartingOffsets("the start by `slackwater init`", by_partition=dict(enumerate(offsets)), stored=True)
        for topic, offsets in starts.items()
    }


def _parse_partition_offsets(option: str, topic: str, text: str, values: Any) -> dict[int, int]:
    with suppress(TypeError, msgspec.MsgspecError):
        offsets = msgspec.json.decode(text, type=dict[str, dict[_NonNegative, values]])
        if offsets.keys() == {topic}:
            return offsets[topic]
    keywords = "" if values is _NonNegative else "'earliest', 'latest' or "
    example = msgspec.json.encode({topic: {"0": 23, "1": 42}}).decode()
    raise Usage(
        f"{option} of topic {topic!r} is {text!r}: expected {keywords}JSON by topic and partition",
        hint=f"such as {example}{'' if values is _NonNegative else '; -2 is the earliest offset, -1 the latest'}",
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """A user's Kafka topic, or another source. Rows have the columns of Structured Streaming's Kafka source."""

    name: str
    start: StartingOffsets
    include_headers: bool = False
    """True if rows have the column `headers`."""
    source: Source | None = None
    """Folder or table that is read instead of a topic of Kafka."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """An internal topic between two stages. The key of a row decides its Kafka partition."""

    name: str
    key: tuple[str, ...]
    partitions: int


@check_arguments
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
    with a version always continues where its newest version ended.

    Args:
        name: The topic.
        starting_offsets: `"earliest"`, `"latest"`, or JSON with an offset for each partition, in which -2 is the
            earliest and -1 the latest: `{"flights":{"0":23,"1":-2}}`.
        starting_timestamp: Begin each partition at its first record at or after this time, in ms since 1970. Takes
            precedence over `starting_offsets_by_timestamp` and `starting_offsets`.
        starting_offsets_by_timestamp: Begin each partition at its first record at or after the partition's time, as
            JSON: `{"flights":{"0":1700000000000,"1":0}}`. Takes precedence over `starting_offsets`.
        starting_offsets_by_timestamp_strategy: Action for a partition without such a record: `"error"` refuses the
            stage, `"latest"` begins the partition at its end.
        include_headers: Add Spark's column `headers`: an array of (key, value), null for a record without headers.

    Raises `Usage` for values that Spark rejects, or an invalid topic name.
    """
    by_time = starting_timestamp, starting_offsets_by_timestamp, starting_offsets_by_timestamp_strategy
    return Topic(name, parse_starting_offsets(check_topic(name), starting_offsets, *by_time), include_headers)


@check_arguments
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
        raise Usage(f"repartition {name!r}: key is {columns!r}; expected at least one column name, and no name twice")
    return Repartition(
        name, columns, check_whole(f"repartition {name!r}: partitions", partitions, 1, MAX_KAFKA_PARTITIONS)
    )
