"""Records sent on a channel between two versions of a stage, and records read from an input between two positions.

Everything comes from manifests: the attempts that count, the offsets between which they lie, and the number of rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from ..common.learned import learned
from ..store.versions.manifest import Input, Manifest, Output


@dataclass(frozen=True, slots=True)
class Sent:
    """Messages that versions of a stage sent on one channel."""

    attempts: dict[str, int]
    """Version by task attempt, for the attempts whose messages count."""
    rows: int


def sent(channel: str, versions: Iterable[Manifest]) -> Sent:
    """Return the messages that these versions sent. Versions of earlier programs may lack the channel."""
    attempts: dict[str, int] = {}
    rows = 0
    for manifest in versions:
        output = manifest.outputs.get(channel)
        if output is not None:
            attempts |= dict.fromkeys(output.attempts, manifest.version)
            rows += output.rows
    return Sent(attempts, rows)


def behind(output: Output, upstream: str, version: int, watermark_ms: int | None = None) -> Input:
    """Return the position of a reader that has consumed everything `upstream` sent on a channel up to this version."""
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
    """Return the number of rows sent and not yet read; None if the rows before the position were not counted."""
    return sum(output.sent) - sum(at.passed) if len(at.passed) == len(output.sent) else None


@dataclass(frozen=True, slots=True)
class Position:
    """Position up to which an input was read: Spark's offset of the source."""

    input: str
    """Declared name. A stage has several inputs, and Spark tells them apart by their order alone."""
    offsets: tuple[int, ...]
    """The next offset to read, by Kafka partition."""
    version: int = 0
    """Last upstream version read from a channel."""
    consumed: tuple[int, ...] = ()
    """Rows of a channel before this position since the channel began, by Kafka partition. Includes rows that
    were lost and that claims skipped (`Input.passed`).
    """
    snapshots: tuple[str, ...] = ()
    """Ids of the snapshots that ended a batch at this position."""
    watermark_ms: int | None = None
    """Watermark that the upstream version of a channel passes on; None if it has none."""
    woken: int = 0
    """Newest version after which a batch was requested, with or without input (`pipeline.source.wake`)."""

    @classmethod
    def of(cls, value: Mapping[str, object]) -> "Position":
        """Decode Spark's JSON object."""
        return msgspec.convert(value, learned(cls))

    def json(self) -> dict[str, object]:
        """Return Spark's JSON object. Spark compares its text: the order of the fields is part of the value."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets from `first` to `last` (exclusive) of one Kafka partition; for a channel also the rows, if known."""

    partition: int
    first: int
    last: int
    rows: int | None = None


def ranges(
    starts: Sequence[int], ends: Sequence[int], passed: Sequence[int] = (), sent: Sequence[int] = ()
) -> Iterator[Range]:
    """Yield the offsets between `starts` and `ends` (exclusive) by Kafka partition; new partitions begin at 0.

    For a channel, `passed` and `sent` are the rows sent before `starts` and before `ends`; empty if unknown.
    """
    rows = difference(passed, sent)
    for partition, (first, last) in enumerate(zip_longest(starts, ends, fillvalue=0)):
        # Offsets with only markers and messages of failed attempts need no read.
        if first < last and not (rows and rows[partition] == 0):
            yield Range(partition, first, last, rows[partition] if rows else None)


def stretches(
    previous: Input | None, after: Input, *, former: bool = True
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the (start, end) offsets read from an input after `previous` (None: from its beginning) up to `after`.

    Each reset in between adds a stretch: offsets in two stretches were read twice, offsets in none were skipped.
    Without `former`, stretches in earlier topics of the same name are left out.
    """
    at, num_resets = (previous.offsets, len(previous.resets)) if previous is not None else ((), 0)
    read = []
    for reset in after.resets[num_resets:]:
        read.append((at, reset.starts))
        if reset.topic_id and not former:
            read.clear()
        at = reset.ends
    yield from (*read, (at, after.offsets))


def windows(topic: str, starts: Sequence[int], ends: Sequence[int]) -> tuple[str, ...]:
    """Return the offsets between two positions of a topic as text, by partition."""
    return tuple(f"{topic}[{window.partition}] {window.first}..{window.last}" for window in ranges(starts, ends))


def difference(start: Sequence[int], end: Sequence[int]) -> tuple[int, ...]:
    """Return the difference of two counts by partition; empty if either is unknown."""
    return tuple(now - then for then, now in zip_longest(start, end, fillvalue=0)) if start and end else ()
