"""What a replica and a recovery read of Kafka: records by which a place is found again, and where a mirror has them.

MirrorMaker 2 writes down, now and then, which offset a record has on both sides, in a compacted topic of one partition,
`mm2-offset-syncs.<cluster>.internal` (KIP-382; `OffsetSync` of Apache Kafka's connect/mirror). Key: the topic, a string
with its length in two bytes, and the partition, four. Value: the offset there and the offset here, eight bytes each.
All of it is big-endian, and without a version.
"""

import struct

import xxhash

from ...snapshot.cut.replicas import Anchor
from .protocol import Message

Sync = tuple[int, int]
"""An offset of the topic, and that of the same record in its mirror."""


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


def anchor(message: Message) -> Anchor:
    """A record by its offset, time and digest."""
    key, value = message.key(), message.value()
    digest = xxhash.xxh3_128()
    for part in (key, value):
        digest.update(struct.pack(">q", -1 if part is None else len(part)))
        digest.update(part or b"")
    return Anchor(message.offset(), max(0, message.timestamp()[1]), digest.hexdigest())
