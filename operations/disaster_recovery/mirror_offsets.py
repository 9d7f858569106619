"""Where an app reads users' topics on in another Kafka: at the same offsets, or where a mirror has the records.

A replica keeps the last records that were read of each partition (anchors). They prove where the app stood: where they
lie in a row, it reads on right behind. Without them counts what MirrorMaker 2 says of offsets, as far as that is exact.
Anything else would read records twice or leave some out, and is refused.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import NotFound, Refused
from ...pipeline.kafka.channels import Sync
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.replicas import Anchor


@dataclass(frozen=True, slots=True)
class ReadOn:
    """Where one partition is read on, and how that is known."""

    offset: int
    how: str
    """`same offset`, `records` (they were found again), `mirror` (MirrorMaker 2 says so), or `end`."""
    unmirrored: bool = False
    """Whether the mirror ends before where the app stood: it has read records that are not there."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where the anchors of a partition were found."""

    offset: int
    """Right behind the last of them; the partition's end, where that comes before."""
    count: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class Source:
    """One partition of a user's topic, as the app stood on it."""

    topic: str
    """Where it is read from then on."""
    read: str
    """What it was read from."""
    partition: int
    offset: int
    anchors: tuple[Anchor, ...]


def mirrored_name(kafka: Topics, topic: str, alias: str) -> str:
    """What a mirror calls a topic of the cluster `alias`: as MirrorMaker 2 does, or by its own name.

    Raises `NotFound` where there is neither.
    """
    for name in (f"{alias}.{topic}", topic):
        if kafka.ends(name) is not None:
            return name
    hint = f"mirror {topic}, or say what it is called there: --topic {topic}=OTHER"
    raise NotFound("Kafka topic", f"{alias}.{topic}", (), hint=hint)


def position(kafka: Topics, source: Source, alias: str | None) -> ReadOn:
    """Where a partition is read on. `alias` is the cluster of which Kafka is a mirror, None where it is none.

    Raises `NotFound` where there is no such topic or partition, and `Refused` where nobody can tell.
    """
    now = kafka.state(source.topic)
    if now is None or source.partition >= len(now.ends):
        hint = "make it again with as many partitions, or say which topic has its records: --topic NAME=OTHER"
        raise NotFound("Kafka topic", f"{source.topic}[{source.partition}]", (), hint=hint)
    first, end = now.earliest[source.partition], now.ends[source.partition]
    if source.offset == 0:
        return ReadOn(0, "same offset")
    return _same(kafka, source, first, end) if alias is None else _mirrored(kafka, source, first, end, alias)


def _same(kafka: Topics, source: Source, first: int, end: int) -> ReadOn:
    at = f"{source.topic}[{source.partition}]"
    if not first <= source.offset <= end:
        raise Refused(
            f"{at} is to be read on from {source.offset}, but holds {first}..{end}",
            hint="is it a mirror of the cluster that was lost? Then say of which: --mirror ALIAS",
        )
    there = kafka.before(source.topic, source.partition, source.offset, len(source.anchors))
    # What is left of them: retention may have taken the first ones.
    known = {each.offset: each.digest for each in source.anchors}
    if any(known.get(each.offset, each.digest) != each.digest for each in there):
        raise Refused(
            f"{at} has other records before offset {source.offset} than those that the app has read: it is another "
            "topic, or a mirror whose offsets differ",
            hint="where it is a mirror, say of which cluster: --mirror ALIAS; else say which topic has the records: "
            "--topic NAME=OTHER",
        )
    return ReadOn(source.offset, "same offset")


def _mirrored(kafka: Topics, source: Source, first: int, end: int, alias: str) -> ReadOn:
    at = f"{source.topic}[{source.partition}]"
    syncs = sorted(kafka.syncs(alias, source.read).get(source.partition, ()))
    if source.anchors:
        near = _below(syncs, source.anchors[0].offset)
        earliest_ms = min(each.time_ms for each in source.anchors)
        start = near[1] if near else kafka.since(source.topic, earliest_ms)[source.partition]
        start = max(start, first)
        found = match(kafka.anchors(source.topic, source.partition, start, end), source.anchors, start, end)
        if len(found) == 1:
            (one,) = found
            lacks = one.count < len(source.anchors)
            return ReadOn(one.offset, "end" if lacks else "records", unmirrored=lacks)
        what = "lie in it more than once" if found else "are not in it"
        why = f"the last {len(source.anchors)} records that the app has read {what}"
    else:
        exact = _exact(syncs, source.offset)
        if exact is not None and first <= exact <= end:
            return ReadOn(exact, "mirror")
        near = _below(syncs, source.offset)
        why = "the replica kept no records of it, and MirrorMaker 2 says nothing of it"
        if near is not None:
            why = (
                "the replica kept no records of it, and MirrorMaker 2 knows only that offset "
                f"{near[0]} is {near[1]} there: of the {source.offset - near[0]:,} behind that, some may be no records"
            )
    raise Refused(
        f"where {source.read}[{source.partition}] offset {source.offset} is in {at} cannot be told: {why}",
        hint="run `slackwater replicate` with --kafka, so that it keeps them; or say where to read on: "
        f"--from-offset {source.read}[{source.partition}]=OFFSET",
    )


def match(records: Iterable[Anchor], anchors: Sequence[Anchor], start: int, end: int) -> tuple[Match, ...]:
    """Where records lie in a row among those from `start` on: each place, two at most. Pure.

    Where the records end amidst them, or before the first, that is the place.
    """
    wanted, found = [each.digest for each in anchors], list[Match]()
    last: deque[str] = deque(maxlen=len(wanted))
    for record in records:
        last.append(record.digest)
        if record.digest == wanted[-1] and list(last) == wanted:
            found.append(Match(record.offset + 1, len(wanted)))
            if len(found) == 2:
                return tuple(found)
    if not found:
        tail = list(last)
        count = next((n for n in range(min(len(tail), len(wanted) - 1), 0, -1) if tail[-n:] == wanted[:n]), 0)
        if count or start >= end:
            found.append(Match(end, count))
    return tuple(found)


def _below(syncs: Sequence[Sync], offset: int) -> Sync | None:
    return next((each for each in reversed(syncs) if each[0] <= offset), None)


def _exact(syncs: Sequence[Sync], offset: int) -> int | None:
    """Where an offset is in the mirror, where that is known for sure: at a record that a sync names, or right behind.

    Further on either side may have gaps, of transactions and compaction, which nothing tells.
    """
    for up, down in syncs:
        if offset == up:
            return down
        if offset == up + 1:
            return down + 1
    return None
