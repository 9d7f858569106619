"""Records that failover reads from Kafka: anchors, which identify a record, and MirrorMaker's offset syncs.

MirrorMaker 2 writes, now and then, which offset a record has in both clusters, to a compacted topic with one partition,
`mm2-offset-syncs.<cluster>.internal` (KIP-382; `OffsetSync` of Apache Kafka's connect/mirror). Key: the topic, a string
with its length in two bytes, and the partition, four. Value: the source's offset and the mirror's, eight bytes each.
All numbers are big-endian, and there is no version.
"""

import struct

import xxhash

from ...snapshot.cut.replicas import Anchor
from .protocol import Message

Sync = tuple[int, int]
"""An offset of the source topic, and the offset of the same record in the mirror."""


def offset_sync(key: bytes | None, value: bytes | None) -> tuple[str, int, Sync] | None:
    """Parse an offset sync to topic, partition and offset pair; None for any other record."""
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


def anchor(message: Message) -> Anchor:
    """Return a record's offset, time and digest."""
    key, value = message.key(), message.value()
    digest = xxhash.xxh3_128()
    for part in (key, value):
        digest.update(struct.pack(">q", -1 if part is None else len(part)))
        digest.update(part or b"")
    return Anchor(message.offset(), max(0, message.timestamp()[1]), digest.hexdigest())
