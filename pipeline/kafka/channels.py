"""Questions of other rooms to Kafka: offsets, records in flight, copies of them; consumer groups that show the lag.

Kafka's own tools show by consumer groups how far an app has read. Nothing here reads them back: the manifests say where
a stage goes on. But whoever watches a cluster looks at lag by group, so each stage has one, `slackwater-<app>-<stage>`,
and its offsets follow the stage's commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import pyarrow as pa
from ulid import ULID

from ...errors import NotFound, Refused
from ...snapshot.change.first_versions import offset_syncs
from ...snapshot.cut.in_flight import InFlight
from ...snapshot.cut.replicas import Anchor
from ...snapshot.cut.stored import ADDRESS
from ...snapshot.query.log import Remaining, RemainingOf
from ...state.topics import TopicState, are_two
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Input
from .archived import ArchivedKafka, archived
from .columns import Columns
from .failover import Sync, anchor, offset_sync
from .messages import decode_addressed, header_of, marker_of, of_attempts, read_rows, send, split
from .open import end_offsets
from .protocol import FOR_EVER, Kafka, Offsets, another_read

_GAPS = 4
"""So many offsets are read for each record at first: some are marks of transactions, or were compacted away."""
_STATE_S = 5.0
"""For one topic's id and offsets."""


@dataclass(frozen=True, slots=True)
class KafkaChannels:
    """The topics of a Kafka, as `snapshot` and `operations` ask for them (`snapshot.cut.kafka_topics.Topics`)."""

    kafka: Kafka = field(repr=False)
    patience_s: float = 60
    """How long the broker may be away."""

    def with_archives(self, store: ObjectStore, app: str) -> KafkaChannels:
        """The same, with what Kafka has lost of this app's input read from its archive."""
        return replace(self, kafka=archived(self.kafka, store, app))

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str, /) -> None:
        now = self.kafka.state(topic)
        if are_two(topic_id, now.id):
            raise another_read(topic, topic_id, now.id)
        if len(now.ends) != len(offsets):
            raise Refused(
                f"topic {topic!r} has {len(now.ends)} partitions; the source has read {len(offsets)}",
                hint="a replacement needs the same partitions, with the same events up to the clone's offsets",
            )
        outside = [
            f"{topic}[{partition}] is read from {at}, but holds {first}..{end}"
            for partition, (at, first, end) in enumerate(zip(offsets, now.earliest, now.ends, strict=True))
            if not first <= at <= end
        ]
        if outside:
            raise Refused("; ".join(outside), hint="choose a moment, or a topic, whose offsets Kafka still has")

    def state(self, topic: str, /) -> TopicState | None:
        """A topic as Kafka has it, or None when there is no such topic."""
        try:
            return self.kafka.state(topic, timeout_s=_STATE_S)
        except NotFound:
            return None

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        """The end offset of each partition, or None when there is no such topic."""
        return end_offsets(self.kafka, topic)

    def since(self, topic: str, time_ms: int, /) -> tuple[int, ...]:
        ends = self.kafka.offsets(topic)[1]
        found = self.kafka.offsets_since(topic, [time_ms] * len(ends))
        return tuple(end if at < 0 else at for at, end in zip(found, ends, strict=True))

    def topic_id(self, topic: str, /) -> str:
        return self.kafka.topic_id(topic)

    def records(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[pa.Table]:
        for chunk in self.kafka.read(topic, partition, start, end, patience_s=self.patience_s):
            yield pa.Table.from_batches([Columns(chunk).records()])

    def held(self) -> RemainingOf:
        """What is left of the topics of inputs. Kafka is asked once for each topic."""
        state = cache(self.state)

        def held_of(source: Input) -> Remaining:
            now = state(source.topic)
            is_another = now is not None and are_two(source.topic_id, now.id)
            if now is not None and not is_another:
                return Remaining(now.earliest)
            kafka = self.kafka
            kept = kafka.kept(source.topic, source.topic_id, source.offsets) if isinstance(kafka, ArchivedKafka) else ()
            return Remaining(kept, is_another)

        return held_of

    def starts(self, topic: str, /) -> tuple[int, ...] | None:
        try:
            return self.kafka.offsets(topic)[0]
        except NotFound:
            return None

    def retention_ms(self, topic: str, /) -> int | None:
        """How long a topic keeps records, -1 for ever; None where nobody says."""
        return self.kafka.retention_ms(topic)

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        decoded = partial(decode_addressed, attempts=frozenset(in_flight.attempts))
        counts = in_flight.counts or (None,) * len(in_flight.ends)
        for partition, where in enumerate(zip(in_flight.starts, in_flight.ends, counts, strict=True)):
            yield from read_rows(
                self.kafka,
                in_flight.topic,
                partition,
                *where,
                decoded,
                patience_s=self.patience_s,
                topic_id=in_flight.topic_id,
            )

    def announce(self, app: str, stage: str, positions: Mapping[str, tuple[int, ...]], /) -> None:
        self.kafka.commit_offsets(group_of(app, stage), positions)

    def internal(self, topic: str, /) -> tuple[int, str]:
        self.kafka.create_topics({topic: 1}, config=FOR_EVER)
        now = self.kafka.state(topic)
        return now.ends[0], now.id

    def marker(self, topic: str, partition: int, offset: int, /) -> str | None:
        earliest, ends = self.kafka.offsets(topic)
        if partition >= len(ends) or not earliest[partition] <= offset < ends[partition]:
            return None
        chunks = self.kafka.read(topic, partition, offset, offset + 1, patience_s=self.patience_s)
        return next((marker_of(header_of(message)) for chunk in chunks for message in chunk), None)

    def before(self, topic: str, partition: int, offset: int, count: int, /) -> tuple[Anchor, ...]:
        first, reach = self.kafka.offsets(topic)[0][partition], _GAPS * count
        while True:
            start = max(first, offset - reach)
            found = tuple(self.anchors(topic, partition, start, offset)) if start < offset else ()
            if len(found) >= count or start <= first:
                return found[-count:]
            reach *= 8

    def anchors(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[Anchor]:
        for messages in self.kafka.read(topic, partition, start, end, patience_s=self.patience_s, gone=[]):
            yield from map(anchor, messages)

    def syncs(self, alias: str, topic: str, /) -> Mapping[int, Sequence[Sync]]:
        about = offset_syncs(alias)
        found: dict[int, list[Sync]] = {}
        now = self.state(about)
        for start, end in zip(now.earliest, now.ends, strict=True) if now is not None else ():
            for messages in self.kafka.read(about, 0, start, end, patience_s=self.patience_s, gone=[]):
                for message in messages:
                    if (one := offset_sync(message.key(), message.value())) is not None and one[0] == topic:
                        found.setdefault(one[1], []).append(one[2])
        return found

    def copy(
        self, in_flight: InFlight, topic: str, app: str, /, kept: Iterator[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        self.kafka.create_topics({topic: len(in_flight.ends)})
        starts = self.kafka.offsets(topic)[1]
        attempt = f"{app}.{in_flight.up_to}.{ULID()}"
        ends = list(starts)
        # A chunk at a time: what is in flight need not fit into memory.
        for messages in self._messages(in_flight) if kept is None else map(_to_same_partitions, kept):
            sent = send(self.kafka, topic, messages, attempt.encode(), patience_s=self.patience_s)
            for partition, end in sent.items():
                ends[partition] = max(ends[partition], end)
        return tuple(ends), attempt, starts

    def _messages(self, in_flight: InFlight) -> Iterator[Iterable[tuple[int, bytes]]]:
        attempts = frozenset(in_flight.attempts)
        for partition, where in enumerate(zip(in_flight.starts, in_flight.ends, strict=True)):
            for chunk in self.kafka.read(
                in_flight.topic, partition, *where, patience_s=self.patience_s, topic_id=in_flight.topic_id
            ):
                yield [(partition, message.value() or b"") for message in of_attempts(chunk, attempts)]


def _to_same_partitions(rows: pa.Table) -> Iterator[tuple[int, bytes]]:
    """Captured rows as messages to the partitions they came from."""
    return split(rows.drop_columns(list(ADDRESS)), rows["_partition"].to_numpy())


def group_of(app: str, stage: str) -> str:
    """The consumer group of a stage."""
    return f"slackwater-{app}-{stage}"


@dataclass(frozen=True, slots=True)
class Announcer:
    """Announces the stages' positions now and then; nobody waits for it."""

    kafka: Kafka
    app: str
    _announced: dict[str, Mapping[str, Offsets]] = field(default_factory=dict)

    def announce_moved(self, positions: Mapping[str, Mapping[str, Offsets]]) -> None:
        """Announce the stages whose offsets have moved."""
        for stage, topics in positions.items():
            if self._announced.get(stage) != topics:
                self.kafka.commit_offsets(group_of(self.app, stage), topics, wait=False)
                self._announced[stage] = topics
