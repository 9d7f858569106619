"""Records that versions sent and read, and detection of topics that were deleted and re-created.

Manifests identify the records that a version sent and read by attempts, offsets, and numbers of rows. If a topic was
deleted and re-created, stored offsets refer to other records. Kafka gives each topic an id (KIP-516). For brokers
without topic ids, the leader epochs of the partitions replace the id: epochs never decrease while a topic exists, and
begin at 0 in a new topic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..store.versions.codec import register_type
from ..store.versions.manifest import Input, Manifest, Output, Reset


@dataclass(frozen=True, slots=True)
class SentMessages:
    """Messages that some versions of a stage sent on one channel: version of each attempt, and number of rows."""

    attempts: dict[str, int]
    rows: int


def sent_messages(channel: str, versions: Iterable[Manifest]) -> SentMessages:
    attempts: dict[str, int] = {}
    rows = 0
    for manifest in versions:
        output = manifest.outputs.get(channel)
        if output is not None:
            attempts |= dict.fromkeys(output.attempts, manifest.version)
            rows += output.rows
    return SentMessages(attempts, rows)


def fully_read_input(output: Output, upstream: str, version: int, watermark_ms: int | None = None) -> Input:
    """Return the input of a stage that has consumed all messages that `upstream` sent on a channel up to a version."""
    return Input(
        output.topic,
        output.ends,
        upstream,
        version,
        consumed=output.sent,
        watermark_ms=watermark_ms,
        topic_id=output.topic_id,
    )


def count_unread(output: Output, at: Input) -> int | None:
    return sum(output.sent) - sum(at.rows_passed) if len(at.rows_passed) == len(output.sent) else None


@dataclass(frozen=True, slots=True)
class Position:
    """Position up to which an input was read; reported to Spark as the offset of the source."""

    input: str
    """Declared name of the input. Spark identifies the inputs of a stage only by their order."""
    offsets: tuple[int, ...]
    version: int = 0
    consumed: tuple[int, ...] = ()
    """Number of a channel's rows before this position, by Kafka partition, including lost rows."""
    snapshots: tuple[str, ...] = ()
    watermark_ms: int | None = None
    woken: int = 0
    """Newest version whose scheduled wake-up started a batch; see `pipeline.source.wake`."""

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Position":
        return msgspec.convert(value, register_type(cls))

    def to_json(self) -> dict[str, object]:
        """Return the position as Spark's JSON object. Spark compares the text, so the order of the fields matters."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Range:
    """Range of offsets of one Kafka partition: from `first` up to, not including, `last`.

    For a channel, also the number of rows in the range, if known.
    """

    partition: int
    first: int
    last: int
    rows: int | None = None


def ranges(
    starts: Sequence[int], ends: Sequence[int], passed: Sequence[int] = (), sent: Sequence[int] = ()
) -> Iterator[Range]:
    """Yield the range of offsets from `starts` up to `ends` in each Kafka partition. New partitions begin at 0.

    For a channel, `passed` and `sent` are the numbers of rows sent before `starts` and before `ends`; empty if unknown.
    """
    rows = difference(passed, sent)
    for partition, (first, last) in enumerate(zip_longest(starts, ends, fillvalue=0)):
        # Offsets with only markers and messages of failed attempts need no read.
        if first < last and not (rows and rows[partition] == 0):
            yield Range(partition, first, last, rows[partition] if rows else None)


def read_spans(
    previous: Input | None, after: Input, *, with_former_topics: bool = True
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the (start, end) offsets that a stage read from an input between two versions.

    `previous` is the input at the earlier version, None for its beginning; `after` is the input at the later version. A
    new span begins at each reset of the offsets. Offsets in two spans were read twice, and offsets in no span were
    skipped. Without `with_former_topics`, spans in earlier topics of this name are left out.
    """
    at, num_resets = (previous.offsets, len(previous.resets)) if previous is not None else ((), 0)
    read = []
    for reset in after.resets[num_resets:]:
        read.append((at, reset.starts))
        if reset.topic_id and not with_former_topics:
            read.clear()
        at = reset.ends
    yield from (*read, (at, after.offsets))


def format_windows(topic: str, starts: Sequence[int], ends: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{topic}[{window.partition}] {window.first}..{window.last}" for window in ranges(starts, ends))


def difference(start: Sequence[int], end: Sequence[int]) -> tuple[int, ...]:
    return tuple(now - then for then, now in zip_longest(start, end, fillvalue=0)) if start and end else ()


RECORD_PARTITION, RECORD_OFFSET = "_partition", "_offset"
"""Internal value columns of a row that one record of the stage's only input wrote: the record's location."""


def location_of(manifest: Manifest, partition: int, offset: int) -> str:
    """Return the location of the record that wrote a row of a stage with one input: `topic[partition]@offset`."""
    (source,) = manifest.inputs.values()
    return f"{source.topic}[{partition}]@{offset}"


_EPOCHS = "~"
NOT_KNOWN = "?"


class TopicState(NamedTuple):
    """State of a topic: its earliest and end offsets by partition, and its id."""

    earliest: tuple[int, ...]
    ends: tuple[int, ...]
    id: str = ""
    """Kafka's topic id, or leader epochs as encoded by `id_of_epochs`; empty if the brokers report neither."""


def id_of_epochs(epochs: Sequence[int]) -> str:
    """Encode the partitions' leader epochs as a topic id, for brokers without topic ids. -1 stands for no epoch."""
    return _EPOCHS + ",".join(str(max(0, epoch)) for epoch in epochs) if any(epoch >= 0 for epoch in epochs) else ""


def is_other_topic(stored: str, current: str) -> bool:
    """Return True if the topic was re-created since the id `stored`; False if either id is unknown."""
    if not stored or not current or stored.startswith(_EPOCHS) != current.startswith(_EPOCHS):
        return False
    if not stored.startswith(_EPOCHS):
        return stored != current
    old_epochs, new_epochs = (map(int, topic_id.removeprefix(_EPOCHS).split(",")) for topic_id in (stored, current))
    return any(old is not None and (new is None or new < old) for old, new in zip_longest(old_epochs, new_epochs))


def is_kafka_id(topic_id: str) -> bool:
    return bool(topic_id) and not topic_id.startswith(_EPOCHS)


def topic_id_in(manifest: Manifest, topic: str) -> str:
    return next((source.topic_id for source in manifest.inputs.values() if source.topic == topic), "")


def id_to_store(stored: str, current: str) -> str:
    """Return the topic id to store for a topic that was not re-created.

    This is `current`, unless `stored` is already a Kafka topic id, or `current` is unknown.
    """
    return stored if is_kafka_id(stored) or not current else current


def explain_recreated_topic(topic: str, stored: str, offsets: Sequence[int], current: TopicState) -> str:
    """Return a sentence that explains why a topic counts as re-created; empty without evidence."""
    count, positions = len(current.ends), tuple(offsets) + (0,) * (len(current.ends) - len(offsets))
    short = count < len(offsets) or any(at > end for at, end in zip(positions, current.ends, strict=False))
    if not is_other_topic(stored, current.id) and (not short or (is_kafka_id(stored) and stored == current.id)):
        return ""
    return describe_recreated_topic(topic, stored, offsets, current)


def restart_input(source: Input, current: TopicState, version: int) -> Input:
    """Return the input of a re-created topic, at its first record; `version` records the reset.

    The number of lost records of the former topic is unknown.
    """
    reset = Reset(version, source.offsets, current.earliest, source.topic_id or NOT_KNOWN)
    resets = (*source.resets, reset)
    return replace(source, offsets=current.earliest, rows=0, lost=(), topic_id=current.id, resets=resets)


def was_recreated_since_read(
    offsets: Sequence[int], current: TopicState, since_read: Sequence[int], since_now: Sequence[int]
) -> bool:
    """Return True if timestamps show that a topic was re-created after the app read it up to `offsets`.

    This is proved if all records below `offsets` are newer than the app's read. Needed for topics without known ids.
    `since_read` has, by partition, the offset of the first record newer than the app's read; -1 for none. `since_now`
    has the offset of the first record with a time in the future, which does not prove when the record arrived; -1 for
    none.
    """
    overlapping = [
        partition for partition, at in enumerate(offsets[: len(current.ends)]) if at > current.earliest[partition]
    ]
    return bool(overlapping) and all(
        0 <= since_read[partition] <= current.earliest[partition]
        and not 0 <= since_now[partition] <= current.earliest[partition]
        for partition in overlapping
    )


def describe_recreated_topic(topic: str, stored: str, offsets: Sequence[int], current: TopicState) -> str:
    """Return a sentence with the former and the current state of a re-created topic."""
    read = ", ".join(f"{topic}[{partition}]@{at}" for partition, at in enumerate(offsets))
    windows = ", ".join(format_windows(topic, current.earliest, current.ends)) or "no records"
    return (
        f"topic {topic!r} was deleted and created again: it had {_id_text(stored)} and {_partitions(len(offsets))}, "
        f"read up to {read}; now it has {_id_text(current.id)} and {_partitions(len(current.ends))}, and holds "
        f"{windows}"
    )


def _id_text(topic_id: str) -> str:
    if not topic_id:
        return "no known id"
    if topic_id.startswith(_EPOCHS):
        return f"leader epochs {topic_id.removeprefix(_EPOCHS)}"
    return f"id {topic_id}"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
