"""The one seam through which `snapshot` and `operations` ask Kafka; `pipeline.kafka.channels` implements it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from ...state.topics import TopicState
from ...store.versions.keys import check_topic
from .in_flight import InFlight
from .replicas import Anchor


class Topics(Protocol):
    """Topics of an app: where they begin and end, their records, and what an operation writes to them.

    Whatever asks Kafka may raise `Unavailable`.
    """

    def state(self, topic: str, /) -> TopicState | None:
        """A topic's id and offsets, or None when there is no such topic."""

    def topic_id(self, topic: str, /) -> str:
        """Kafka's id of a topic; empty where nobody knows."""

    def starts(self, topic: str, /) -> tuple[int, ...] | None:
        """The first offset of each partition that can be read, or None when there is no such topic."""

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        """The end offset of each partition, or None when there is no such topic."""

    def since(self, topic: str, time_ms: int, /) -> tuple[int, ...]:
        """The first offset of each partition whose record has this time or a later one; the end where none has."""

    def retention_ms(self, topic: str, /) -> int | None:
        """Retention of a topic in milliseconds, -1 for ever; None where it is unknown."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str, /) -> None:
        """Check that a topic can be read on from these offsets, one per partition.

        Raises `NotFound` where there is no such topic, `AnotherTopic` where it is another one than that of this id,
        empty for any, and `Refused` where it has another number of partitions, or these offsets are outside of what it
        holds.
        """

    def records(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[pa.Table]:
        """The records of a range of offsets that are there, as an archive has them."""

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        """The records in flight: the channel's columns and `ADDRESS`, by partition and offset, a chunk at a time.

        Raises `Corruption` (there are not as many as their writer's manifests say), and `Refused` (they are gone).
        """

    def marker(self, topic: str, partition: int, offset: int, /) -> str | None:
        """The id of the snapshot whose marker lies at this offset; empty for something else, None for nothing any more.

        Raises `NotFound` where there is no such topic, and `Refused` where it cannot be read.
        """

    def before(self, topic: str, partition: int, offset: int, count: int, /) -> tuple[Anchor, ...]:
        """The last records of a partition before an offset, at most `count`, oldest first.

        Raises `NotFound` where there is no such topic.
        """

    def anchors(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[Anchor]:
        """The records of a partition from one offset up to another."""

    def syncs(self, alias: str, topic: str, /) -> Mapping[int, Sequence[tuple[int, int]]]:
        """Pairs of offsets by partition, as MirrorMaker 2 recorded them for a topic of the cluster called `alias`.

        A pair is the offset of a record in the topic and in its mirror. Empty where MirrorMaker has no topic in this
        Kafka.
        """

    def announce(self, app: str, stage: str, positions: Mapping[str, tuple[int, ...]], /) -> None:
        """Show Kafka's own tools how far a stage has read, by topic. Nothing depends on it: it does not fail."""

    def internal(self, topic: str, /) -> tuple[int, str]:
        """Create the internal topic of a sink unless it exists. Gives its end offset and its id."""

    def copy(
        self, in_flight: InFlight, topic: str, app: str, /, kept: Iterator[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        """Copy records in flight to the end of `topic`, created with as many partitions if it is missing.

        They are read from Kafka, or are `kept` (tables as `capture.read` gives them). The copies are messages of `app`,
        version `in_flight.up_to`, under one new attempt. With no attempts in `in_flight` nothing is copied.

        Gives the end offset of each partition after the copy, the new attempt, and the end offsets before the copy,
        where reading the copied records starts.
        """


def internal_topic(app: str, stage: str, sink_name: str) -> str:
    """Return the topic in which rows of a sink wait for their publisher. Raises `Usage` where its name is too long."""
    return check_topic(f"{app}-{stage}-{sink_name}-sink")
