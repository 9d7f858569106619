"""`ArchivedKafka`: a Kafka client that also reads an app's input archive, so that readers ignore where records are.

Reads of the past try the archive first: an archive has columns, and costs the brokers nothing. Other reads try Kafka
first, and then the archive for records that Kafka has deleted. If a topic was deleted and created again, its offsets
name other records. Then the past is read only from the archive, which knows the topic's id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import Corruption, Gone, KeysForgotten, Refused
from ...state.records import TopicState, is_kafka_id, is_other_topic
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent, intersect
from ...store.archive.reading import Archives, TopicArchives
from ...store.objects.protocol import ObjectStore
from .columns import ArchivedMessages
from .protocol import (
    Kafka,
    Message,
    Offsets,
    Properties,
    Record,
    TransactionalProducer,
    TransactionSettings,
    topic_recreated_error,
)

_CHUNK = 10_000
_DELETED_REASON = "gone from Kafka"
_RECREATED_REASON = "of a topic that was deleted and created again since"


def with_archives(kafka: Kafka, store: ObjectStore, app: str) -> ArchivedKafka:
    return ArchivedKafka(kafka, Archives(lambda: store, app))


@dataclass(frozen=True, slots=True)
class ArchivedKafka:
    """Implements `Kafka`: reads from archives and from Kafka, and writes only to Kafka."""

    kafka: Kafka = field(repr=False)
    archives: Archives = field(repr=False)
    archive_first: bool = True
    """True to read archives first and to check the topic's id; False to read only records that Kafka lacks.

    Old offsets may belong to a topic that was deleted since.
    """
    columns: Sequence[str] = tuple(SCHEMA.names)
    """Archive columns to read into messages, besides `offset`. Fewer columns halve the read time."""
    _ids: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    @property
    def properties(self) -> Properties:
        return self.kafka.properties

    @property
    def name(self) -> str:
        return self.kafka.name

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        return self.kafka.partition_counts(timeout_s=timeout_s)

    def topic_state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        """Return a topic's state.

        The earliest offsets are the archive's if there is no gap between archive and Kafka.
        """
        current = self.kafka.topic_state(topic, timeout_s=timeout_s)
        archive = self._archive(topic) if any(current.earliest) else None
        if archive is None or self._has_other_id(topic, archive):
            return current
        earliest = tuple(archive.covered_start(partition, first) for partition, first in enumerate(current.earliest))
        return current._replace(earliest=earliest)

    def offset_bounds(self, topic: str, *, timeout_s: float = 10) -> tuple[Offsets, Offsets]:
        return self.topic_state(topic, timeout_s=timeout_s)[:2]

    def offsets_for_times(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        offsets, (earliest, _) = self.kafka.offsets_for_times(topic, times_ms), self.kafka.offset_bounds(topic)
        archive = self._archive(topic) if any(earliest) else None
        if archive is None or self._has_other_id(topic, archive):
            return offsets
        return tuple(
            archive.first_offset_since(partition, archive.covered_start(partition, first), first, time_ms, offset)
            for partition, (offset, first, time_ms) in enumerate(zip(offsets, earliest, times_ms, strict=True))
        )

    def earliest_archived(self, topic: str, topic_id: str, ends: Offsets) -> Offsets:
        """Return, for each partition, the first offset from which archives have all records up to `ends`.

        Returns an empty tuple if the topic with this id has no archive.
        """
        archive = self._archive(topic, topic_id)
        if archive is None or (is_kafka_id(topic_id) and archive.topic_id != topic_id):
            return ()
        return tuple(archive.covered_start(partition, end) for partition, end in enumerate(ends))

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return self.kafka.topic_ids(topics)

    def topic_id(self, topic: str) -> str:
        return self.kafka.topic_id(topic)

    def create_topics(
        self, partitions: Mapping[str, int], *, validate_only: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        self.kafka.create_topics(partitions, validate_only=validate_only, config=config)

    def delete_topics(self, names: Sequence[str]) -> tuple[str, ...]:
        return self.kafka.delete_topics(names)

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        self.kafka.delete_records(topic, offset, partition)

    def retention_ms(self, topic: str) -> int | None:
        return self.kafka.retention_ms(topic)

    def max_message_bytes(self, topic: str) -> int | None:
        return self.kafka.max_message_bytes(topic)

    def write_error(self, topic: str) -> Refused | None:
        return self.kafka.write_error(topic)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        patience_s: float,
        deletion_errors: list[Gone] | None = None,
        topic_id: str = "",
    ) -> Iterator[Sequence[Message]]:
        archive = self._archive(topic, topic_id) if self.archive_first else None
        if is_kafka_id(topic_id) and is_other_topic(topic_id, self._id(topic)):
            if archive is None or archive.topic_id != topic_id:
                raise topic_recreated_error(topic, topic_id, self._id(topic))
            yield from self._read_archive(archive, Extent(partition, start, end), deletion_errors, _RECREATED_REASON)
            return
        if archive is not None:
            if reason := self._why_archive_only(topic, archive):
                yield from self._read_archive(archive, Extent(partition, start, end), deletion_errors, reason)
                return
            for part in intersect((Extent(partition, start, end),), archive.covered(partition)):
                yield from self._read_kafka(topic, partition, start, part.first, patience_s, deletion_errors)
                start = part.first
                try:
                    for messages in self._read_archive(archive, part, deletion_errors, _DELETED_REASON):
                        yield messages
                        start = messages[-1].offset() + 1
                except Corruption:
                    # Kafka may still have the records of a damaged archive file; if not, `_read_kafka` raises.
                    yield from self._read_kafka(topic, partition, start, part.end, patience_s, deletion_errors)
                start = part.end
        yield from self._read_kafka(topic, partition, start, end, patience_s, deletion_errors)

    def _read_kafka(
        self, topic: str, partition: int, at: int, end: int, patience_s: float, deletion_errors: list[Gone] | None
    ) -> Iterator[Sequence[Message]]:
        while at < end:
            try:
                for messages in self.kafka.read(topic, partition, at, end, patience_s=patience_s):
                    at = messages[-1].offset() + 1
                    yield messages
                return
            except Refused as error:
                first_in_kafka, archive = self._first_in_kafka(topic, partition, end, error), self._archive(topic)
                if first_in_kafka > at and archive is not None and not self._has_other_id(topic, archive):
                    yield from self._read_archive(
                        archive, Extent(partition, at, first_in_kafka), deletion_errors, _DELETED_REASON
                    )
                elif deletion_errors is not None and isinstance(error, Gone):
                    deletion_errors.append(error)
                else:
                    raise
                at = max(at, first_in_kafka)

    def _read_archive(
        self, archive: TopicArchives, extent: Extent, deletion_errors: list[Gone] | None, reason: str
    ) -> Iterator[Sequence[Message]]:
        """Yield a range from archives.

        Without a list `deletion_errors`, stops at the first gap and raises `Gone`; with a list, appends an error for
        each gap and goes on.
        """
        partition, first, end = extent.partition, extent.first, extent.end
        gaps = archive.uncovered(partition, first, end)
        errors = [archive.missing_error(gap, reason) for gap in gaps]
        if deletion_errors is not None:
            deletion_errors += errors
        elif gaps:
            end = gaps[0].first
        for records in archive.rows(partition, first, end, self.columns):
            for at in range(0, records.num_rows, _CHUNK):
                yield ArchivedMessages(records.slice(at, _CHUNK))
        if deletion_errors is None and errors:
            raise errors[0]
        if deletion_errors is not None and archive.has_forgotten_keys(partition, first, end):
            deletion_errors.append(KeysForgotten("keys were forgotten"))

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        return self.kafka.send(topic, records, patience_s=patience_s)

    def transactional_producer(self, settings: TransactionSettings) -> TransactionalProducer:
        return self.kafka.transactional_producer(settings)

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        self.kafka.commit_offsets(group, positions, wait=wait)

    def delete_groups(self, groups: Sequence[str]) -> None:
        self.kafka.delete_groups(groups)

    def _archive(self, topic: str, topic_id: str = "") -> TopicArchives | None:
        """Return the archives of the topic with this id, or of Kafka's current topic if no id is given.

        If Kafka has no such topic, returns the archives of the topic archived last. Makes no request to Kafka if
        nothing is archived under the topic's name.
        """
        expected_id = topic_id if is_kafka_id(topic_id) else ""
        archives = self.archives.for_topic(topic, expected_id)
        archive = archives.with_topic_id(expected_id or self._id(topic)) if archives else None
        return None if archive is None or (expected_id and archive.topic_id not in ("", expected_id)) else archive

    def _id(self, topic: str) -> str:
        if topic not in self._ids:
            self._ids[topic] = self.kafka.topic_id(topic)
        return self._ids[topic]

    def _why_archive_only(self, topic: str, archive: TopicArchives) -> str:
        """Return the reason why Kafka cannot have the archived records; empty if Kafka may have them."""
        if self._has_other_id(topic, archive):
            return _RECREATED_REASON
        # Reading a missing topic could block until the client's timeout.
        return "" if self._id(topic) or topic in self.partition_counts() else _DELETED_REASON

    def _has_other_id(self, topic: str, archive: TopicArchives) -> bool:
        return is_other_topic(archive.topic_id, self._id(topic))

    def _first_in_kafka(self, topic: str, partition: int, end: int, error: Refused) -> int:
        """Return Kafka's earliest offset, at most `end`, after a refused read.

        Raises `error` again unless it is `Gone` or the partition does not exist.
        """
        if self.kafka.partition_counts().get(topic, 0) <= partition:
            return end
        if not isinstance(error, Gone):
            raise error
        return min(end, self.kafka.offset_bounds(topic)[0][partition])
