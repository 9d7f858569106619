"""What a stage sent on a channel between two of its versions, and what a reader took of an input between two places.

All of it is in manifests: which attempts count, which offsets they lie between, and how many rows there are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from ..common.learned import learned
from ..store.versions.manifest import Input, Manifest, Output


@dataclass(frozen=True, slots=True)
class Sent:
    """What versions of a stage sent on one channel."""

    attempts: dict[str, int]
    """The task attempts whose messages count, each with its version."""
    rows: int


def sent(channel: str, versions: Iterable[Manifest]) -> Sent:
    """What these versions sent. One that a program of then made may not have written the channel."""
    attempts: dict[str, int] = {}
    rows = 0
    for manifest in versions:
        output = manifest.outputs.get(channel)
        if output is not None:
            attempts |= dict.fromkeys(output.attempts, manifest.version)
            rows += output.rows
    return Sent(attempts, rows)


def behind(output: Output, upstream: str, version: int, watermark_ms: int | None = None) -> Input:
    """Where a reader stands that has all that the stage `upstream` sent on a channel up to this version."""
    return Input(
        output.topic,
        output.ends,
        upstream,
        version,
        consumed=output.sent,
        watermark_ms=watermark_ms,
        topic_id=output.topic_id,
    )


def unread(output: Output, at: Input) -> int | None:
    """Rows that were sent and that a reader has still to read; None where nobody counted those before it."""
    return sum(output.sent) - sum(at.passed) if len(at.passed) == len(output.sent) else None


@dataclass(frozen=True, slots=True)
class Position:
    """How far an input has been read: Spark's offset of the source."""

    input: str
    """The input's declared name. A stage has several, and Spark tells them apart by their order alone."""
    offsets: tuple[int, ...]
    """The next offset to read, by Kafka partition."""
    version: int = 0
    """For a channel, the upstream version read up to and with."""
    consumed: tuple[int, ...] = ()
    """For a channel, rows sent since it began that lie behind this, by Kafka partition: those that claims passed over,
    because they were gone, count as well (`Input.passed`)."""
    snapshots: tuple[str, ...] = ()
    """Ids of the snapshots for which the batch that ended here ended."""
    watermark_ms: int | None = None
    """For a channel, the watermark that this upstream version hands on; None where it has none."""
    woken: int = 0
    """The newest version after which a batch was asked for, whatever there is to read (`pipeline.source.wake`)."""

    @classmethod
    def of(cls, value: Mapping[str, object]) -> "Position":
        """From Spark's JSON object."""
        return msgspec.convert(value, learned(cls))

    def json(self) -> dict[str, object]:
        """Spark's JSON object. Spark compares its text: the order of the fields is part of the value."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `first` to before `last` of one Kafka partition; of a channel, how many rows lie there, where known."""

    partition: int
    first: int
    last: int
    rows: int | None = None


def ranges(
    starts: Sequence[int], ends: Sequence[int], passed: Sequence[int] = (), sent: Sequence[int] = ()
) -> Iterator[Range]:
    """What is to be read from the offsets `starts` to before `ends`, by Kafka partition; a new partition from 0 on.

    Of a channel, `passed` are the rows sent before the first place, `sent` those before the other; empty if not known.
    """
    rows = difference(passed, sent)
    for partition, (first, last) in enumerate(zip_longest(starts, ends, fillvalue=0)):
        # Where there are only markers, and what failed attempts left, nothing is read.
        if first < last and not (rows and rows[partition] == 0):
            yield Range(partition, first, last, rows[partition] if rows else None)


def stretches(
    before: Input | None, after: Input, *, former: bool = True
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What was read of an input between two places, None for its beginning: from these offsets to before those.

    There is one stretch more than somebody has reset it in between. What lies in two of them was read twice, and what
    in none of them not at all. Without `former`, those are left out that lie in topics that had the name before.
    """
    at, known = (before.offsets, len(before.resets)) if before is not None else ((), 0)
    found = []
    for each in after.resets[known:]:
        found.append((at, each.starts))
        if each.topic_id and not former:
            found.clear()
        at = each.ends
    yield from (*found, (at, after.offsets))


def windows(topic: str, starts: Sequence[int], ends: Sequence[int]) -> tuple[str, ...]:
    """What lies between two places of a topic, in words."""
    return tuple(f"{topic}[{one.partition}] {one.first}..{one.last}" for one in ranges(starts, ends))


def difference(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    """What lies between two counts by partition; empty where one of them is not known."""
    return tuple(now - then for then, now in zip_longest(before, after, fillvalue=0)) if before and after else ()
