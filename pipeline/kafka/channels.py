"""Kafka operations for the packages `snapshot` and `operations`: offsets, in-flight records, consumer groups.

Kafka's own tools show the lag of consumer groups. For this kind of monitoring, each stage has a consumer group,
`slackwater-<app>-<stage>`, whose offsets follow the stage's commits. slackwater never reads these offsets back, since
manifests hold the stages' positions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import pyarrow as pa
import xxhash

from ...common import runtime
from ...errors import NotFound, Refused
from ...snapshot.change.first_versions import offset_syncs
from ...snapshot.cut.in_flight import InFlight
from ...snapshot.cut.replicas import Anchor
from ...snapshot.cut.stored import ADDRESS_COLUMNS
from ...snapshot.query.log import Remaining, RemainingOf
from ...state.records import Range, TopicState, is_other_topic
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Input
from .archived import ArchivedKafka, with_archives
from .columns import MessageColumns
from .declared_source import find_source
from .messages import (
    decode_addressed,
    filter_by_attempts,
    header_value,
    read_rows,
    send_messages,
    snapshot_of_marker,
    split_into_messages,
)
from .open import end_offsets
from .protocol import UNLIMITED_RETENTION, Kafka, Message, Offsets, topic_recreated_error

_OFFSETS_PER_RECORD = 4
"""Number of offsets that are read at first for each record to read, because some offsets have no record."""
_STATE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class KafkaChannels:
    """Implements `snapshot.cut.kafka_topics.KafkaTopics` on a Kafka cluster."""

    kafka: Kafka = field(repr=False)
    patience_s: float = 60

    def with_archives(self, store: ObjectStore, app: str) -> KafkaChannels:
        return replace(self, kafka=with_archives(self.kafka, store, app))

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str, /) -> None:
        current = self.kafka.topic_state(topic)
        if is_other_topic(topic_id, current.id):
            raise topic_recreated_error(topic, topic_id, current.id)
        if len(current.ends) != len(offsets):
            raise Refused(
                f"topic {topic!r} has {len(current.ends)} partitions; the topic that the source app reads has "
                f"{len(offsets)}",
                hint="a replacement needs the same partitions, with the same events up to the clone's offsets",
            )
        outside = [
            f"{topic}[{partition}] would be read from offset {offset}, but Kafka has {first} to {end}"
            for partition, (offset, first, end) in enumerate(zip(offsets, current.earliest, current.ends, strict=True))
            if not first <= offset <= end
        ]
        if outside:
            raise Refused("; ".join(outside), hint="choose a moment, or a topic, whose offsets Kafka still has")

    def state(self, topic: str, /) -> TopicState | None:
        try:
            return self.kafka.topic_state(topic, timeout_s=_STATE_TIMEOUT_S)
        except NotFound:
            return None

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        return end_offsets(self.kafka, topic)

    def list_new_files(self, store: ObjectStore, topic: str, /) -> None:
        if (source := find_source(store, topic)) is not None:
            self.kafka.declare(source)

    def since(self, topic: str, time_ms: int, /) -> tuple[int, ...]:
        ends = self.kafka.offset_bounds(topic)[1]
        offsets = self.kafka.offsets_for_times(topic, [time_ms] * len(ends))
        return tuple(end if offset < 0 else offset for offset, end in zip(offsets, ends, strict=True))

    def topic_id(self, topic: str, /) -> str:
        return self.kafka.topic_id(topic)

    def records(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[pa.Table]:
        for chunk in self.kafka.read(topic, partition, start, end, patience_s=self.patience_s):
            yield pa.Table.from_batches([MessageColumns(chunk).to_archive_batch()])

    def held(self) -> RemainingOf:
        """Return a function from an input to the earliest offsets that can still be read.

        The offsets are Kafka's, or an archive's if Kafka no longer has the topic. The function caches the state of each
        topic.
        """
        state = cache(self.state)

        def held_of(source: Input) -> Remaining:
            current = state(source.topic)
            is_another = current is not None and is_other_topic(source.topic_id, current.id)
            if current is not None and not is_another:
                return Remaining(current.earliest)
            kafka = self.kafka
            earliest_archived = (
                kafka.earliest_archived(source.topic, source.topic_id, source.offsets)
                if isinstance(kafka, ArchivedKafka)
                else ()
            )
            return Remaining(earliest_archived, is_another)

        return held_of

    def starts(self, topic: str, /) -> tuple[int, ...] | None:
        try:
            return self.kafka.offset_bounds(topic)[0]
        except NotFound:
            return None

    def retention_ms(self, topic: str, /) -> int | None:
        return self.kafka.retention_ms(topic)

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        decoded = partial(decode_addressed, attempts=frozenset(in_flight.attempts))
        counts = in_flight.counts or (None,) * len(in_flight.ends)
        topic, topic_id = in_flight.topic, in_flight.topic_id
        for partition, where in enumerate(zip(in_flight.starts, in_flight.ends, counts, strict=True)):
            part = Range(partition, *where)
            yield from read_rows(self.kafka, topic, (part,), decoded, patience_s=self.patience_s, topic_id=topic_id)

    def commit_positions(self, app: str, stage: str, positions: Mapping[str, tuple[int, ...]], /) -> None:
        self.kafka.commit_offsets(consumer_group(app, stage), positions)

    def create_internal_topic(self, topic: str, /) -> tuple[int, str]:
        self.kafka.create_topics({topic: 1}, config=UNLIMITED_RETENTION)
        current = self.kafka.topic_state(topic)
        return current.ends[0], current.id

    def marker_at(self, topic: str, partition: int, offset: int, /) -> str | None:
        earliest, ends = self.kafka.offset_bounds(topic)
        if partition >= len(ends) or not earliest[partition] <= offset < ends[partition]:
            return None
        chunks = self.kafka.read(topic, partition, offset, offset + 1, patience_s=self.patience_s)
        return next((snapshot_of_marker(header_value(message)) for chunk in chunks for message in chunk), None)

    def records_before(self, topic: str, partition: int, offset: int, count: int, /) -> tuple[Anchor, ...]:
        first, span = self.kafka.offset_bounds(topic)[0][partition], _OFFSETS_PER_RECORD * count
        while True:
            start = max(first, offset - span)
            anchors = tuple(self.anchors(topic, partition, start, offset)) if start < offset else ()
            if len(anchors) >= count or start <= first:
                return anchors[-count:]
            span *= 8

    def anchors(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[Anchor]:
        for messages in self.kafka.read(topic, partition, start, end, patience_s=self.patience_s, deletion_errors=[]):
            yield from map(anchor_of, messages)

    def offset_syncs(self, alias: str, topic: str, /) -> Mapping[int, Sequence[OffsetSync]]:
        syncs_topic = offset_syncs(alias)
        syncs: dict[int, list[OffsetSync]] = {}
        current = self.state(syncs_topic)
        for start, end in zip(current.earliest, current.ends, strict=True) if current is not None else ():
            for messages in self.kafka.read(syncs_topic, 0, start, end, patience_s=self.patience_s, deletion_errors=[]):
                for message in messages:
                    if (sync := parse_offset_sync(message.key(), message.value())) is not None and sync[0] == topic:
                        syncs.setdefault(sync[1], []).append(sync[2])
        return syncs

    def copy(
        self, in_flight: InFlight, topic: str, app: str, /, captured: Iterator[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        self.kafka.create_topics({topic: len(in_flight.ends)})
        starts = self.kafka.offset_bounds(topic)[1]
        attempt = f"{app}.{in_flight.up_to}.{runtime.ulid()}"
        ends = list(starts)
        # Copy chunk by chunk, since in-flight records may not fit into memory.
        for messages in self._messages(in_flight) if captured is None else map(_to_same_partitions, captured):
            sent = send_messages(self.kafka, topic, messages, attempt.encode(), patience_s=self.patience_s)
            for partition, end in sent.items():
                ends[partition] = max(ends[partition], end)
        return tuple(ends), attempt, starts

    def _messages(self, in_flight: InFlight) -> Iterator[Iterable[tuple[int, bytes]]]:
        attempts = frozenset(in_flight.attempts)
        for partition, where in enumerate(zip(in_flight.starts, in_flight.ends, strict=True)):
            for chunk in self.kafka.read(
                in_flight.topic, partition, *where, patience_s=self.patience_s, topic_id=in_flight.topic_id
            ):
                yield [(partition, message.value() or b"") for message in filter_by_attempts(chunk, attempts)]


def _to_same_partitions(rows: pa.Table) -> Iterator[tuple[int, bytes]]:
    return split_into_messages(rows.drop_columns(list(ADDRESS_COLUMNS)), rows["_partition"].to_numpy())


def consumer_group(app: str, stage: str) -> str:
    return f"slackwater-{app}-{stage}"


@dataclass(frozen=True, slots=True)
class GroupOffsetCommitter:
    """Commits the stages' offsets to their consumer groups, without waiting for the brokers."""

    kafka: Kafka
    app: str
    _committed: dict[str, Mapping[str, Offsets]] = field(default_factory=dict)

    def commit_changed(self, positions: Mapping[str, Mapping[str, Offsets]]) -> None:
        for stage, topics in positions.items():
            if self._committed.get(stage) != topics:
                self.kafka.commit_offsets(consumer_group(self.app, stage), topics, wait=False)
                self._committed[stage] = topics


OffsetSync = tuple[int, int]
"""Pair of an offset in the source topic and the corresponding offset in the mirrored topic."""


def parse_offset_sync(key: bytes | None, value: bytes | None) -> tuple[str, int, OffsetSync] | None:
    """Return topic, partition and offsets from a record of MirrorMaker's offset-syncs topic; None for other records."""
    if key is None or value is None or len(value) != 16 or len(key) < 6:
        return None
    (length,) = struct.unpack_from(">h", key)
    if length < 0 or len(key) != 2 + length + 4:
        return None
    try:
        topic = key[2 : 2 + length].decode()
    except UnicodeDecodeError:
        return None
    (partition,) = struct.unpack_from(">i", key, 2 + length)
    source_offset, mirror_offset = struct.unpack(">qq", value)
    return (
        (topic, partition, (source_offset, mirror_offset))
        if min(partition, source_offset, mirror_offset) >= 0
        else None
    )


def anchor_of(message: Message) -> Anchor:
    key, value = message.key(), message.value()
    digest = xxhash.xxh3_128()
    for part in (key, value):
        digest.update(struct.pack(">q", -1 if part is None else len(part)))
        digest.update(part or b"")
    return Anchor(message.offset(), max(0, message.timestamp()[1]), digest.hexdigest())
