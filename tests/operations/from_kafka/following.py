"""Topics in memory that also keep a log of all records: it determines the rows that each version must have."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from slackwater.operations.attach.tail import FollowedVersion, Tail
from slackwater.operations.from_kafka.opening import open_topic
from slackwater.operations.from_kafka.topic import FollowedTopic
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.manifest import Manifest

from tests.operations.attach.following import rows_at

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
Value = Mapping[str, object] | None


@dataclass(slots=True)
class Clock:
    now_ms: int = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass(slots=True)
class LoggedTopic:
    """A topic, and every record that was ever sent to it, by partition, with its time; a deleted record is None."""

    kafka: MemoryKafka
    name: str = "shop-totals-changelog"
    partitions: int = 2
    config: Mapping[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})
    log: list[list[tuple[int, str, Value] | None]] = field(default_factory=list)

    def create(self) -> None:
        self.kafka.delete_topics([self.name])
        self.kafka.create_topics({self.name: self.partitions}, config=self.config)
        self.log = [[] for _ in range(self.partitions)]

    def add_partition(self) -> None:
        self.log.append([])
        self.kafka.add_partitions(self.name, len(self.log))

    def send(self, items: Sequence[tuple[str, Value]]) -> None:
        records = []
        for key, value in items:
            partition, time_ms = sum(key.encode()) % len(self.log), sum(map(len, self.log))
            self.log[partition].append((time_ms, key, value))
            text = None if value is None else json.dumps(value).encode()
            records.append(Record(text, partition, key.encode(), time_ms=time_ms))
        self.kafka.send(self.name, records, patience_s=5)

    def state(self, offsets: Sequence[int]) -> dict[str, Mapping[str, object]]:
        """Return the newest value of each key before these offsets."""
        parts = zip(self.log, offsets, strict=False)
        sent = sorted((record for part, end in parts for record in part[:end] if record), key=itemgetter(0))
        newest = {key: value for _, key, value in sent}
        return {key: value for key, value in newest.items() if value is not None}


def followed(store: ObjectStore, kafka: MemoryKafka, clock: Clock, **formats: str) -> FollowedTopic:
    topic = open_topic(store, kafka, "kafka:shop-totals-changelog", ("shop", "totals"), formats)
    topic.now_ms = clock
    return topic


def tail_of(store: ObjectStore, cache: SstCache, kafka: MemoryKafka, clock: Clock, **formats: str) -> Tail:
    return Tail(store, cache, followed(store, kafka, clock, **formats), "shop", "totals", by="host:1", partitions=2)


def rows_of(store: ObjectStore, cache: SstCache, version: Manifest) -> dict[object, dict[str, object]]:
    """Return the rows of a version by key, without internal columns and without nulls."""
    assert version.table is not None
    names = [column.name for column in version.table.values]
    stored = rows_at(store, cache, version)["totals"]
    return {
        key[0]: {
            name: value
            for name, value in zip(names, values, strict=True)
            if value is not None and not name.startswith("_")
        }
        for key, values in stored.items()
    }


def read_all(following: Tail) -> tuple[FollowedVersion, ...]:
    if following.head is None:
        following.claim()
    made: tuple[FollowedVersion, ...] = ()
    while landed := following.commit_next():
        made += landed
    return made
