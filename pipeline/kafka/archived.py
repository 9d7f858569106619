"""`ArchivedKafka`: a Kafka client that reads records from Kafka or from an app's input archive.

Reads of the past try the archive first, because it is columnar and puts no load on the brokers. Other reads try Kafka
first; records that Kafka has deleted are then read from the archive. If a topic was deleted and created again, its
offsets refer to different records. Then the past is read only from the archive, which stores the topic's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import Corruption, Gone, KeysForgotten, Refused
from ...state.records import Range, TopicState, is_kafka_id, is_other_topic
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent, intersect
from ...store.archive.reading import Archives, TopicArchives
from ...store.objects.protocol import ObjectStore
from .columns import ArchivedMessages
from .protocol import Chunk, ForwardingKafka, Kafka, Offsets, Run, topic_recreated_error

_CHUNK = 10_000
_DELETED_REASON = "gone from Kafka"
_RECREATED_REASON = "of a topic that was deleted and created again since"


def with_archives(kafka: Kafka, store: ObjectStore, app: str) -> ArchivedKafka:
    return ArchivedKafka(kafka, Archives(lambda: store, app))


@dataclass(frozen=True, slots=True)
class ArchivedKafka(ForwardingKafka):
    """Implements `Kafka`: reads from Kafka and from input archives, and writes only to Kafka."""

    kafka: Kafka = field(repr=False)
    archives: Archives = field(repr=False)
    archive_first: bool = True
    """True to read archives first and check the topic's id; False to read archives only for records that Kafka deleted.

    Use True for old offsets, because the topic may have been deleted and created again since.
    """
    columns: Sequence[str] = tuple(SCHEMA.names)
    """Archive columns to read into messages, always with `offset`. Reading fewer columns takes half the time."""
    _ids: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def topic_state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        """Return a topic's state. `earliest` includes archived records that adjoin Kafka's earliest record."""
        current = self.kafka.topic_state(topic, timeout_s=timeout_s)
        archive = self._archive(topic) if any(current.earliest) else None
        if archive is None or self._has_other_id(topic, archive):
            return current
        earliest = tuple(archive.covered_start(partition, first) for partition, first in enumerate(current.earliest))
        return current._replace(earliest=earliest)

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
        """Return the first offset of each partition from which archives have all records up to `ends`.

        Returns an empty tuple if the topic with this id has no archive.
        """
        archive = self._archive(topic, topic_id)
        if archive is None or (is_kafka_id(topic_id) and archive.topic_id != topic_id):
            return ()
        return tuple(archive.covered_start(partition, end) for partition, end in enumerate(ends))

    def read_ranges(
        self,
        topic: str,
        parts: Sequence[Range],
        *,
        patience_s: float,
        deletion_errors: Mapping[int, list[Gone]] | None = None,
        topic_id: str = "",
    ) -> Iterator[Chunk]:
        archive = self._archive(topic, topic_id) if self.archive_first else None
        at = {part.partition: part.first for part in parts}
        is_other = is_kafka_id(topic_id) and is_other_topic(topic_id, self._id(topic))
        if is_other and (archive is None or archive.topic_id != topic_id):
            raise topic_recreated_error(topic, topic_id, self._id(topic))
        if archive is None:
            try:
                for chunk in self.kafka.read_ranges(topic, parts, patience_s=patience_s):
                    at |= {run[0].partition(): run[-1].offset() + 1 for run in chunk}
                    yield chunk
                return
            except Refused:
                # Deleted records must precede the records that Kafka still has, so the code below reads range by range.
                pass
        for part in parts:
            lost = None if deletion_errors is None else deletion_errors[part.partition]
            where = part.partition, at[part.partition], part.last
            if is_other and archive is not None:
                runs = self._read_archive(archive, Extent(*where), lost, _RECREATED_REASON)
            else:
                runs = self._read_range(archive, topic, *where, patience_s, lost)
            yield from ((run,) for run in runs)

    def _read_range(
        self,
        archive: TopicArchives | None,
        topic: str,
        partition: int,
        start: int,
        end: int,
        patience_s: float,
        deletion_errors: list[Gone] | None,
    ) -> Iterator[Run]:
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
    ) -> Iterator[Run]:
        while at < end:
            try:
                for messages in self.kafka.read(topic, partition, at, end, patience_s=patience_s):
                    at = messages[-1].offset() + 1
                    yield messages
                return
            except Refused as error:
                archive = self._archive(topic)
                resume_at = error.resume_at if isinstance(error, Gone) else 0
                first_in_kafka = min(end, max(resume_at, self._first_in_kafka(topic, partition, end, error)))
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
    ) -> Iterator[Run]:
        """Yield the records of an offset range from archives.

        If `deletion_errors` is None, raises `Gone` at the first gap. If `deletion_errors` is a list, appends an error
        for each gap and continues after the gap.
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

    def _archive(self, topic: str, topic_id: str = "") -> TopicArchives | None:
        """Return the archives of the topic with this id, or of Kafka's current topic if no id is given.

        If Kafka has no such topic, returns the archives of the topic archived last. Makes no request to Kafka if the
        topic's name has no archive.
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
        """Return Kafka's earliest offset, at most `end`, after a read has failed with `error`.

        Returns `end` if the partition does not exist. Raises `error` again if the partition exists and the error is not
        `Gone`.
        """
        if self.kafka.partition_counts().get(topic, 0) <= partition:
            return end
        if not isinstance(error, Gone):
            raise error
        return min(end, self.kafka.offset_bounds(topic)[0][partition])
