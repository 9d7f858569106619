"""Kafka topics as `snapshot` and `operations` see them: an interface, implemented by `pipeline.kafka.channels`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from ...state.records import TopicState
from ...store.objects.protocol import ObjectStore
from ...store.versions.keys import check_topic
from .in_flight import InFlight
from .replicas import Anchor


class KafkaTopics(Protocol):
    """Offsets and records of an app's topics, and the messages that operations write.

    Methods that access Kafka may raise `Unavailable`.
    """

    def state(self, topic: str, /) -> TopicState | None:
        """Return a topic's id, and its earliest and end offsets; None if the topic does not exist."""

    def topic_id(self, topic: str, /) -> str:
        """Return Kafka's id of a topic; empty if unknown."""

    def starts(self, topic: str, /) -> tuple[int, ...] | None:
        """Return the first available offset by partition; None if the topic does not exist."""

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        """Return the end offset by partition; None if the topic does not exist."""

    def list_new_files(self, store: ObjectStore, topic: str, /) -> None:
        """Add the new files of a source to its list in the store."""

    def since(self, topic: str, time_ms: int, /) -> tuple[int, ...]:
        """Return, for each partition, the offset of the first record at or after `time_ms`.

        Returns the end offset for a partition without such a record.
        """

    def retention_ms(self, topic: str, /) -> int | None:
        """Return the retention of a topic in milliseconds: -1 for unlimited, None if unknown."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str, /) -> None:
        """Check that a topic can be read from these offsets, one per partition.

        Raises `NotFound` if the topic does not exist, `AnotherTopic` if its id differs from `topic_id` (empty matches
        any), and `Refused` if the number of partitions differs, or if offsets are out of range.
        """

    def records(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[pa.Table]:
        """Yield the records that still exist in a range of offsets, as tables with the columns of an input archive."""

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        """Yield in-flight records in chunks, sorted by partition and offset, with their `ADDRESS_COLUMNS`.

        Raises `Corruption` (the number of records differs from the sender's manifests) and `Refused` (records are
        gone).
        """

    def marker_at(self, topic: str, partition: int, offset: int, /) -> str | None:
        """Return the id of the snapshot whose marker is at this offset.

        Returns an empty string if the message there is not a marker, and None if there is no message. Raises `NotFound`
        if the topic does not exist, and `Refused` if the offset cannot be read.
        """

    def records_before(self, topic: str, partition: int, offset: int, count: int, /) -> tuple[Anchor, ...]:
        """Return the last `count` records of a partition before `offset`, oldest first, or all if there are fewer.

        Raises `NotFound` if the topic does not exist.
        """

    def anchors(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[Anchor]:
        """Yield one `Anchor` (offset, time and digest) for each record in a range of offsets of a partition."""

    def offset_syncs(self, alias: str, topic: str, /) -> Mapping[int, Sequence[tuple[int, int]]]:
        """Return the pairs of offsets, by partition, that MirrorMaker 2 recorded for a topic of the cluster `alias`.

        A pair is the offset of a record in the topic and its offset in the mirror. Empty if this Kafka has no
        MirrorMaker topic for the cluster.
        """

    def commit_positions(self, app: str, stage: str, positions: Mapping[str, tuple[int, ...]], /) -> None:
        """Commit a stage's offsets, by topic, to its consumer group, for Kafka's own tools. Never raises an error."""

    def create_internal_topic(self, topic: str, /) -> tuple[int, str]:
        """Create the internal topic of a sink if it is missing; returns the end offset and the topic id."""

    def copy(
        self, in_flight: InFlight, topic: str, app: str, /, kept: Iterator[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        """Copy in-flight records to the end of `topic`. A missing topic is created, with the same number of partitions.

        Records are read from Kafka, or taken from `kept` (tables as from `capture.read_captured`). The copies are
        messages of `app`, version `in_flight.up_to`, under one new attempt. Without attempts in `in_flight`, nothing is
        copied.

        Returns three values: the end offset of each partition after the copy; the new attempt; and the end offsets
        before the copy, at which the copied records begin.
        """


def internal_topic(app: str, stage: str, sink_name: str) -> str:
    """Return the name of a sink's internal topic, which holds unpublished rows.

    Raises `Usage` if the name is too long.
    """
    return check_topic(f"{app}-{stage}-{sink_name}-sink")
