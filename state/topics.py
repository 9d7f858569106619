"""Detect that a topic was deleted and created again, so that stored offsets mean other records.

Kafka gives each topic an id (KIP-516). For brokers without topic ids, the leader epochs of the partitions replace the
id: they never fall while a topic exists, and begin at 0 in a new topic.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from ..store.versions.manifest import Manifest
from .records import windows

_EPOCHS = "~"
"""Prefix of an id made of leader epochs."""
NOT_KNOWN = "?"
"""Id of a former topic in a `Reset`, if unknown."""


class TopicState(NamedTuple):
    """A topic's offsets by partition, and its id."""

    earliest: tuple[int, ...]
    ends: tuple[int, ...]
    id: str = ""
    """Kafka's topic id, or leader epochs as `id_of_epochs` encodes them; empty if the brokers report neither."""

    def holds(self, topic: str) -> str:
        """Return the topic's offsets as text."""
        return ", ".join(windows(topic, self.earliest, self.ends)) or "no records"


def id_of_epochs(epochs: Sequence[int]) -> str:
    """Encode leader epochs by partition as an id, for brokers without topic ids; -1 for no epoch yet."""
    return _EPOCHS + ",".join(str(max(0, epoch)) for epoch in epochs) if any(epoch >= 0 for epoch in epochs) else ""


def are_two(stored: str, current: str) -> bool:
    """Return True if the second id is of a later topic than the first; False if either is unknown."""
    if not stored or not current or stored.startswith(_EPOCHS) != current.startswith(_EPOCHS):
        return False
    if not stored.startswith(_EPOCHS):
        return stored != current
    old_epochs, new_epochs = (map(int, topic_id.removeprefix(_EPOCHS).split(",")) for topic_id in (stored, current))
    return any(old is not None and (new is None or new < old) for old, new in zip_longest(old_epochs, new_epochs))


def is_known(topic_id: str) -> bool:
    """Return True if an id is Kafka's own."""
    return bool(topic_id) and not topic_id.startswith(_EPOCHS)


def id_in(manifest: Manifest, topic: str) -> str:
    """Return the id of a topic that a version has read; empty if unknown."""
    return next((source.topic_id for source in manifest.inputs.values() if source.topic == topic), "")


def merged(stored: str, current: str) -> str:
    """Return the id to store for an unchanged topic: Kafka's current id if the stored one is not Kafka's."""
    return stored if is_known(stored) or not current else current


def why_another(topic: str, stored: str, offsets: Sequence[int], current: TopicState) -> str:
    """Explain why a topic is not the one with the id `stored`, which was read up to `offsets`.

    Returns a sentence with the former and the current topic; empty if there is no evidence that the topic changed.
    """
    count, positions = len(current.ends), tuple(offsets) + (0,) * (len(current.ends) - len(offsets))
    short = count < len(offsets) or any(at > end for at, end in zip(positions, current.ends, strict=False))
    if not are_two(stored, current.id) and (not short or (is_known(stored) and stored == current.id)):
        return ""
    return described(topic, stored, offsets, current)


def is_younger(
    offsets: Sequence[int], current: TopicState, since_read: Sequence[int], since_now: Sequence[int]
) -> bool:
    """Return True if all records below `offsets` were written after these were read, by their timestamps.

    `since_read` has the first offset of a record newer than the read, by partition, `since_now` newer than now; -1 for
    none. Records newer than now prove nothing about when they arrived. For topics without known ids.
    """
    overlapping = [
        partition for partition, at in enumerate(offsets[: len(current.ends)]) if at > current.earliest[partition]
    ]
    return bool(overlapping) and all(
        0 <= since_read[partition] <= current.earliest[partition]
        and not 0 <= since_now[partition] <= current.earliest[partition]
        for partition in overlapping
    )


def described(topic: str, stored: str, offsets: Sequence[int], current: TopicState) -> str:
    """Return a sentence with the former and the current state of a topic that was created again."""
    read = ", ".join(f"{topic}[{partition}]@{at}" for partition, at in enumerate(offsets))
    return (
        f"topic {topic!r} was deleted and made again: it had {_id_text(stored)} and {_partitions(len(offsets))}, read "
        f"up to {read}; now it has {_id_text(current.id)} and {_partitions(len(current.ends))}, and holds "
        f"{current.holds(topic)}"
    )


def _id_text(topic_id: str) -> str:
    if not topic_id:
        return "no known id"
    if topic_id.startswith(_EPOCHS):
        return f"leader epochs {topic_id.removeprefix(_EPOCHS)}"
    return f"id {topic_id}"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
