"""What is asked of Kafka by a replica and a recovery: the records before an offset, and where a mirror has them.

MirrorMaker 2 writes down, now and then, which offset a record has on both sides, in a compacted topic of one partition,
`mm2-offset-syncs.<cluster>.internal` (KIP-382; `OffsetSync` of Apache Kafka's connect/mirror). Key: the topic, a string
with its length in two bytes, and the partition, four. Value: the offset there and the offset here, eight bytes each.
All of it is big-endian, and without a version.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from ...errors import NotFound
from ...snapshot.change.first_versions import offset_syncs
from ...snapshot.cut.replicas import Anchor
from .channels import KafkaChannels
from .protocol import FOR_EVER, Message

Sync = tuple[int, int]
"""An offset of the topic, and that of the same record in its mirror."""


_GAPS = 4
"""So many offsets are read for each record at first: some are marks of transactions, or were compacted away."""


@dataclass(frozen=True, slots=True)
class FailoverKafka(KafkaChannels):
    """The Protocols `KafkaReader` of a replica, and `Recoverable`."""

    def bounds(self, topic: str, /) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """See `offsets.Topics`."""
        try:
            return self.kafka.offsets(topic)
        except NotFound:
            return None

    def before(self, topic: str, partition: int, offset: int, count: int, /) -> tuple[Anchor, ...]:
        """See `offsets.Topics`."""
        first, reach = self.kafka.offsets(topic)[0][partition], _GAPS * count
        while True:
            start = max(first, offset - reach)
            found = tuple(self.records(topic, partition, start, offset)) if start < offset else ()
            if len(found) >= count or start <= first:
                return found[-count:]
            reach *= 8

    def records(self, topic: str, partition: int, start: int, end: int, /) -> Iterator[Anchor]:
        """See `offsets.Topics`."""
        for messages in self.kafka.read(topic, partition, start, end, patience_s=self.patience_s, gone=[]):
            yield from map(_anchor, messages)

    def syncs(self, alias: str, topic: str, /) -> Mapping[int, Sequence[Sync]]:
        """See `offsets.Topics`; nothing where there is no such topic of MirrorMaker's in this Kafka."""
        about = offset_syncs(alias)
        found: dict[int, list[Sync]] = {}
        bounds = self.bounds(about)
        for start, end in zip(*bounds, strict=True) if bounds is not None else ():
            for messages in self.kafka.read(about, 0, start, end, patience_s=self.patience_s, gone=[]):
                for message in messages:
                    if (one := offset_sync(message.key(), message.value())) is not None and one[0] == topic:
                        found.setdefault(one[1], []).append(one[2])
        return found

    def internal(self, topic: str, /) -> int:
        """See `plan.Recoverable`."""
        self.kafka.create_topics({topic: 1}, config=FOR_EVER)
        return self.kafka.offsets(topic)[1][0]


def offset_sync(key: bytes | None, value: bytes | None) -> tuple[str, int, Sync] | None:
    """Topic, partition, and the offset of one record on both sides; None for what is something else."""
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
    there, here = struct.unpack(">qq", value)
    return (topic, partition, (there, here)) if min(partition, there, here) >= 0 else None


def _anchor(message: Message) -> Anchor:
    key, value = message.key(), message.value()
    digest = xxhash.xxh3_128()
    for part in (key, value):
        digest.update(struct.pack(">q", -1 if part is None else len(part)))
        digest.update(part or b"")
    return Anchor(message.offset(), max(0, message.timestamp()[1]), digest.hexdigest())
