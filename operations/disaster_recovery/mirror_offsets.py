"""Search for the offsets from which a recovered app reads users' topics in a new Kafka, such as a mirror.

A replica keeps the last records that were read from each partition (anchors). If the mirror has these records in the
same sequence, the app continues right after them. Without anchors, the offset syncs of MirrorMaker 2 are used, but only
if they are exact. Otherwise the recovery is refused, since the app would read records twice or skip some.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import NotFound, Refused
from ...pipeline.kafka.channels import OffsetSync
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.replicas import Anchor
from ...store.versions.keys import is_source


@dataclass(frozen=True, slots=True)
class StartOffset:
    """Offset from which one partition is read, and how that offset was found."""

    offset: int
    how: str
    """Origin of the offset: `same offset`, `records` (content), `mirror` (MirrorMaker 2), `said` (caller) or `end`."""
    unmirrored: bool = False
    """True if the mirror lacks the last records that the app has read."""


@dataclass(frozen=True, slots=True)
class AnchorMatch:
    """Offset right after a sequence of anchors in a partition, and the number of anchors that matched."""

    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """One partition of a user's topic, with the offset up to which the app has read it."""

    topic: str
    old_topic: str
    partition: int
    offset: int
    anchors: tuple[Anchor, ...]


def mirrored_name(kafka: KafkaTopics, topic: str, alias: str) -> str:
    """Return the name of a mirrored topic: `alias.topic`, the name that MirrorMaker 2 uses, or the unchanged name.

    Raises `NotFound` if neither topic exists.
    """
    for name in (topic,) if is_source(topic) else (f"{alias}.{topic}", topic):
        if kafka.ends(name) is not None:
            return name
    hint = f"mirror {topic}, or give its name in this Kafka: --topic {topic}=OTHER"
    raise NotFound("Kafka topic", f"{alias}.{topic}", (), hint=hint)


def find_start_offset(kafka: KafkaTopics, source: SourcePartition, alias: str | None) -> StartOffset:
    """Return the offset from which the recovered app reads a partition.

    `alias` is MirrorMaker's name of the mirrored cluster, None if Kafka is no mirror. Raises `NotFound` if the topic or
    partition does not exist, and `Refused` if the offset cannot be determined.
    """
    now = kafka.state(source.topic)
    if now is None or source.partition >= len(now.ends):
        hint = "create it with as many partitions, or name the topic that has its records: --topic NAME=OTHER"
        raise NotFound("Kafka topic", f"{source.topic}[{source.partition}]", (), hint=hint)
    first, end = now.earliest[source.partition], now.ends[source.partition]
    if source.offset == 0:
        return StartOffset(0, "same offset")
    return (
        _check_same_offset(kafka, source, first, end)
        if alias is None or is_source(source.topic)
        else _find_in_mirror(kafka, source, first, end, alias)
    )


def _check_same_offset(kafka: KafkaTopics, source: SourcePartition, first: int, end: int) -> StartOffset:
    at = f"{source.topic}[{source.partition}]"
    if not first <= source.offset <= end:
        raise Refused(
            f"{at} must be read from offset {source.offset}, but holds offsets {first}..{end}",
            hint="if this Kafka is a mirror of the lost cluster, give its alias: --mirror ALIAS",
        )
    present = kafka.records_before(source.topic, source.partition, source.offset, len(source.anchors))
    # Retention may have deleted the first anchors.
    digests = {anchor.offset: anchor.digest for anchor in source.anchors}
    if any(digests.get(anchor.offset, anchor.digest) != anchor.digest for anchor in present):
        raise Refused(
            f"the records of {at} before offset {source.offset} are not those that the app has read: it is another "
            "topic, or a mirror with other offsets",
            hint="for a mirror, give the alias of its cluster: --mirror ALIAS; else name the topic that has the "
            "records: --topic NAME=OTHER",
        )
    return StartOffset(source.offset, "same offset")


def _find_in_mirror(kafka: KafkaTopics, source: SourcePartition, first: int, end: int, alias: str) -> StartOffset:
    at = f"{source.topic}[{source.partition}]"
    syncs = sorted(kafka.offset_syncs(alias, source.old_topic).get(source.partition, ()))
    if source.anchors:
        near = _last_sync(syncs, source.anchors[0].offset)
        earliest_ms = min(anchor.time_ms for anchor in source.anchors)
        start = near[1] if near else kafka.since(source.topic, earliest_ms)[source.partition]
        start = max(start, first)
        positions = match_anchors(kafka.anchors(source.topic, source.partition, start, end), source.anchors, start, end)
        if len(positions) == 1:
            (hit,) = positions
            lacks = hit.count < len(source.anchors)
            return StartOffset(hit.offset, "end" if lacks else "records", unmirrored=lacks)
        reason = "occur in it more than once" if positions else "are not in it"
        why = f"the last {len(source.anchors)} records that the app has read {reason}"
    else:
        exact = _mirror_offset(syncs, source.offset)
        if exact is not None and first <= exact <= end:
            return StartOffset(exact, "mirror")
        near = _last_sync(syncs, source.offset)
        why = "the replica has no records of it, and MirrorMaker 2 has no offset sync for it"
        if near is not None:
            why = (
                "the replica has no records of it, and the nearest offset sync of MirrorMaker 2 maps "
                f"{near[0]} to {near[1]}: some of the {source.offset - near[0]:,} offsets after that may hold no record"
            )
    raise Refused(
        f"cannot find offset {source.offset} of {source.old_topic}[{source.partition}] in {at}: {why}",
        hint="run `slackwater replicate` with --kafka, so that it copies them; or give the offset: "
        f"--from-offset {source.old_topic}[{source.partition}]=OFFSET",
    )


def match_anchors(
    records: Iterable[Anchor], anchors: Sequence[Anchor], start: int, end: int
) -> tuple[AnchorMatch, ...]:
    """Find the sequence of anchors in a mirror's records. Returns at most the first two matches. Pure.

    `records` are the mirror's records from offset `start` to `end`. If the records end within the sequence of anchors,
    or without records, the match has the offset `end`.
    """
    expected, matches = [anchor.digest for anchor in anchors], list[AnchorMatch]()
    last: deque[str] = deque(maxlen=len(expected))
    for record in records:
        last.append(record.digest)
        if record.digest == expected[-1] and list(last) == expected:
            matches.append(AnchorMatch(record.offset + 1, len(expected)))
            if len(matches) == 2:
                return tuple(matches)
    if not matches:
        tail = list(last)
        count = next((n for n in range(min(len(tail), len(expected) - 1), 0, -1) if tail[-n:] == expected[:n]), 0)
        if count or start >= end:
            matches.append(AnchorMatch(end, count))
    return tuple(matches)


def _last_sync(syncs: Sequence[OffsetSync], offset: int) -> OffsetSync | None:
    return next((sync for sync in reversed(syncs) if sync[0] <= offset), None)


def _mirror_offset(syncs: Sequence[OffsetSync], offset: int) -> int | None:
    for up, down in syncs:
        if offset == up:
            return down
        if offset == up + 1:
            return down + 1
    return None
