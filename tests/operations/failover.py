"""An in-memory Kafka for tests of replicas and recoveries, and an app to copy."""

import zlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.snapshot.cut.replicas import Anchor

from tests.support.collecting import AgingStore, StoreClock
from tests.support.histories import Flight, FlightsApp, Kafka, Message


class FailoverKafka(Kafka):
    """In-memory implementation of `kafka_topics.KafkaTopics`, with mirrored topics. Its records have no timestamps."""

    def __init__(self) -> None:
        super().__init__()
        self.mirrored: dict[str, dict[int, list[tuple[int, int]]]] = {}
        """Offset pairs of a mirrored topic, by `CLUSTER.TOPIC` and partition."""

    def records_before(self, topic: str, partition: int, offset: int, count: int) -> tuple[Anchor, ...]:
        at, messages = range(max(0, offset - count), offset), self.topics[topic][partition]
        return tuple(Anchor(each, 0, f"{zlib.crc32(repr(messages[each].flights).encode()):032x}") for each in at)

    def anchors(self, topic: str, partition: int, start: int, end: int) -> Iterator[Anchor]:
        return iter(self.records_before(topic, partition, end, end - start))

    def offset_syncs(self, alias: str, topic: str) -> Mapping[int, Sequence[tuple[int, int]]]:
        return self.mirrored.get(f"{alias}.{topic}", {})

    def create_internal_topic(self, topic: str) -> tuple[int, str]:
        self.create(topic, 1)
        return len(self.topics[topic][0]), self.topic_id(topic)

    def copy(
        self, in_flight: InFlight, topic: str, app: str, kept: Iterator[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        self.create(topic, len(in_flight.ends))
        if kept is None and in_flight.attempts:
            return super().copy(in_flight, topic, app)
        starts, attempt = self.ends(topic), self.attempt()
        for rows in kept or ():
            for row in rows.to_pylist():
                flight = Flight(row["tail"], row["carrier"], row["delay"])
                self.topics[topic][row["_partition"]].append(Message((flight,), app, in_flight.up_to, attempt))
        ends = self.ends(topic)
        assert starts is not None
        assert ends is not None
        return ends, attempt, starts


def failover_app() -> FlightsApp:
    """Return an app in an aging store with one commit per minute, and its Kafka."""
    store = AgingStore()
    return FlightsApp(store, FailoverKafka(), clock=StoreClock(store, 60_000))


def failover_kafka(app: FlightsApp) -> FailoverKafka:
    """Return the Kafka of a `failover_app`."""
    assert isinstance(app.kafka, FailoverKafka)
    return app.kafka
