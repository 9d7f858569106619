"""Kafka with an app's input archive behind it: what the archive has is read there, and nobody knows which answered.

Who reads the past asks the archive first: it has columns, where Kafka has records, and its reading is no load on
Kafka's brokers. Who reads on asks Kafka first, and the archive for what Kafka has lost. Where a topic was deleted and
made anew under its name, its offsets name other records: then the archive, which knows the topic's id, alone answers
for the past.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import Corruption, Gone, KeysForgotten, Refused
from ...state.topics import TopicState, are_two, is_known
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent, common
from ...store.archive.reading import Archives, TopicArchives
from ...store.objects.protocol import ObjectStore
from .columns import ArchivedMessages
from .protocol import Kafka, Message, Offsets, Properties, Record, Transactions, TransactionSettings, another_read

_CHUNK = 10_000
_LOST = "gone from Kafka"
_ANOTHER = "of a topic that was deleted and made anew since"


def archived(kafka: Kafka, store: ObjectStore, app: str) -> ArchivedKafka:
    """Kafka as the past of an app is read: with its archives, and of those that it came from, behind it."""
    return ArchivedKafka(kafka, Archives(lambda: store, app))


@dataclass(frozen=True, slots=True)
class ArchivedKafka:
    """See the Protocol, and the module. It writes to Kafka alone."""

    kafka: Kafka = field(repr=False)
    archives: Archives = field(repr=False)
    of_past: bool = True
    """Whether the archive is asked first, and a topic's id looked at before it is read, as offsets of the past may be
    those of an earlier topic; else only where Kafka has not all of a range."""
    columns: Sequence[str] = tuple(SCHEMA.names)
    """Those of an archive that its messages have, `offset` always: who needs no others reads it in half the time."""
    _ids: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """Topics' ids, of those that have archives, or whose offsets are those of a topic of a certain id."""

    @property
    def properties(self) -> Properties:
        return self.kafka.properties

    @property
    def name(self) -> str:
        return self.kafka.name

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        return self.kafka.partition_counts(timeout_s=timeout_s)

    def state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        """As Kafka's; the earliest is where the archive begins, if it has all from there on that Kafka has not."""
        found = self.kafka.state(topic, timeout_s=timeout_s)
        archive = self._archive(topic) if any(found.earliest) else None
        if archive is None or self._is_other(topic, archive):
            return found
        earliest = tuple(archive.reaches_back(partition, first) for partition, first in enumerate(found.earliest))
        return found._replace(earliest=earliest)

    def offsets(self, topic: str, *, timeout_s: float = 10) -> tuple[Offsets, Offsets]:
        return self.state(topic, timeout_s=timeout_s)[:2]

    def offsets_since(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        found, (earliest, _) = self.kafka.offsets_since(topic, times_ms), self.kafka.offsets(topic)
        archive = self._archive(topic) if any(earliest) else None
        if archive is None or self._is_other(topic, archive):
            return found
        return tuple(
            archive.first_since(partition, archive.reaches_back(partition, first), first, time_ms, at)
            for partition, (at, first, time_ms) in enumerate(zip(found, earliest, times_ms, strict=True))
        )

    def kept(self, topic: str, topic_id: str, ends: Offsets) -> Offsets:
        """From where on archives have all up to these offsets of a topic that Kafka has no more; empty for nothing."""
        archive = self._archive(topic, topic_id)
        if archive is None or (is_known(topic_id) and archive.topic_id != topic_id):
            return ()
        return tuple(archive.reaches_back(partition, end) for partition, end in enumerate(ends))

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return self.kafka.topic_ids(topics)

    def topic_id(self, topic: str) -> str:
        return self.kafka.topic_id(topic)

    def create_topics(
        self, partitions: Mapping[str, int], *, only_ask: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        self.kafka.create_topics(partitions, only_ask=only_ask, config=config)

    def delete_topics(self, names: Sequence[str]) -> tuple[str, ...]:
        return self.kafka.delete_topics(names)

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        self.kafka.delete_records(topic, offset, partition)

    def retention_ms(self, topic: str) -> int | None:
        return self.kafka.retention_ms(topic)

    def max_message_bytes(self, topic: str) -> int | None:
        return self.kafka.max_message_bytes(topic)

    def not_writable(self, topic: str) -> Refused | None:
        return self.kafka.not_writable(topic)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        patience_s: float,
        gone: list[Gone] | None = None,
        topic_id: str = "",
    ) -> Iterator[Sequence[Message]]:
        """See the Protocol. Of a topic that is not there any more, what archives have of it is read."""
        archive = self._archive(topic, topic_id) if self.of_past else None
        if is_known(topic_id) and are_two(topic_id, self._id(topic)):
            if archive is None or archive.topic_id != topic_id:
                raise another_read(topic, topic_id, self._id(topic))
            yield from self._of_archive(archive, Extent(partition, start, end), gone, _ANOTHER)
            return
        if archive is not None:
            if why := self._no_topic(topic, archive):
                yield from self._of_archive(archive, Extent(partition, start, end), gone, why)
                return
            for part in common((Extent(partition, start, end),), archive.covered(partition)):
                yield from self._of_kafka(topic, partition, start, part.first, patience_s, gone)
                start = part.first
                try:
                    for messages in self._of_archive(archive, part, gone, _LOST):
                        yield messages
                        start = messages[-1].offset() + 1
                except Corruption:
                    # Kafka may have what is damaged here; where it has not, this is raised there.
                    yield from self._of_kafka(topic, partition, start, part.end, patience_s, gone)
                start = part.end
        yield from self._of_kafka(topic, partition, start, end, patience_s, gone)

    def _of_kafka(
        self, topic: str, partition: int, at: int, end: int, patience_s: float, gone: list[Gone] | None
    ) -> Iterator[Sequence[Message]]:
        """What Kafka has of a range, and for what it has lost the archive."""
        while at < end:
            try:
                for messages in self.kafka.read(topic, partition, at, end, patience_s=patience_s):
                    at = messages[-1].offset() + 1
                    yield messages
                return
            except Refused as error:
                until, archive = self._begins(topic, partition, end, error), self._archive(topic)
                if until > at and archive is not None and not self._is_other(topic, archive):
                    yield from self._of_archive(archive, Extent(partition, at, until), gone, _LOST)
                elif gone is not None and isinstance(error, Gone):
                    gone.append(error)
                else:
                    raise
                at = max(at, until)

    def _of_archive(
        self, archive: TopicArchives, wanted: Extent, gone: list[Gone] | None, why: str
    ) -> Iterator[Sequence[Message]]:
        """What archives have of a range. Raises `Gone` behind what is before a gap, unless there is a list for it."""
        partition, first, end = wanted.partition, wanted.first, wanted.end
        lacking = archive.lacks(partition, first, end)
        errors = [archive.gap(each, why) for each in lacking]
        if gone is not None:
            gone += errors
        elif lacking:
            end = lacking[0].first
        for records in archive.rows(partition, first, end, self.columns):
            for at in range(0, records.num_rows, _CHUNK):
                yield ArchivedMessages(records.slice(at, _CHUNK))
        if gone is None and errors:
            raise errors[0]
        if gone is not None and archive.forgotten(partition, first, end):
            gone.append(KeysForgotten("keys were forgotten"))

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        return self.kafka.send(topic, records, patience_s=patience_s)

    def transactions(self, settings: TransactionSettings) -> Transactions:
        return self.kafka.transactions(settings)

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        self.kafka.commit_offsets(group, positions, wait=wait)

    def delete_groups(self, groups: Sequence[str]) -> None:
        self.kafka.delete_groups(groups)

    def _archive(self, topic: str, topic_id: str = "") -> TopicArchives | None:
        """What archives have of the topic of this id; by default of Kafka's, or of the last one that was archived.

        No request to Kafka where they have nothing.
        """
        wanted = topic_id if is_known(topic_id) else ""
        found = self.archives.of(topic, wanted)
        archive = found.of_topic(wanted or self._id(topic)) if found else None
        return None if archive is None or (wanted and archive.topic_id not in ("", wanted)) else archive

    def _id(self, topic: str) -> str:
        """The id of Kafka's topic, asked for once."""
        if topic not in self._ids:
            self._ids[topic] = self.kafka.topic_id(topic)
        return self._ids[topic]

    def _no_topic(self, topic: str, archive: TopicArchives) -> str:
        """Why Kafka is not to be asked for records of the past; empty where it is."""
        if self._is_other(topic, archive):
            return _ANOTHER
        # For one that is not there a client might wait.
        return "" if self._id(topic) or topic in self.partition_counts() else _LOST

    def _is_other(self, topic: str, archive: TopicArchives) -> bool:
        """Whether Kafka's topic is another one than that of the archive."""
        return are_two(archive.topic_id, self._id(topic))

    def _begins(self, topic: str, partition: int, end: int, error: Refused) -> int:
        """The first offset that Kafka has, at most the end, where it refused to read; raises what else was wrong."""
        if self.kafka.partition_counts().get(topic, 0) <= partition:
            return end
        if not isinstance(error, Gone):
            raise error
        return min(end, self.kafka.offsets(topic)[0][partition])
