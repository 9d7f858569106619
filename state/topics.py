"""Tell whether a topic of Kafka's is still the one whose offsets are kept under its name.

A topic that is deleted and made again has its name, and offsets that mean other records. Kafka gives each topic an id
(KIP-516). Of brokers that give none, the leader epochs of the partitions stand for it: they never fall while a topic
lives, and begin anew in one that is made again.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from ..store.versions.manifest import Manifest
from .records import windows

_EPOCHS = "~"
"""Begins an id that is made of leader epochs."""
NOT_KNOWN = "?"
"""Stands in a `Reset` for the id of a former topic that nobody knew."""


class TopicState(NamedTuple):
    """A topic as Kafka has it, by partition."""

    earliest: tuple[int, ...]
    ends: tuple[int, ...]
    id: str = ""
    """Kafka's id of it, or its leader epochs as `id_of_epochs` has them; empty where the brokers say neither."""

    def holds(self, topic: str) -> str:
        """Its offsets in words."""
        return ", ".join(windows(topic, self.earliest, self.ends)) or "no records"


def id_of_epochs(epochs: Sequence[int]) -> str:
    """What stands for the id of a topic of which brokers only say leader epochs, by partition; -1 for none yet."""
    return _EPOCHS + ",".join(str(max(0, epoch)) for epoch in epochs) if any(each >= 0 for each in epochs) else ""


def are_two(kept: str, now: str) -> bool:
    """Whether these ids are of two topics, the second one the later. False also where one of them is not known."""
    if not kept or not now or kept.startswith(_EPOCHS) != now.startswith(_EPOCHS):
        return False
    if not kept.startswith(_EPOCHS):
        return kept != now
    before, after = (map(int, each.removeprefix(_EPOCHS).split(",")) for each in (kept, now))
    return any(then is not None and (at is None or at < then) for then, at in zip_longest(before, after))


def is_known(topic_id: str) -> bool:
    """Whether an id is Kafka's own."""
    return bool(topic_id) and not topic_id.startswith(_EPOCHS)


def id_in(at: Manifest, topic: str) -> str:
    """The id of a topic that a version has read; empty where it is not known."""
    return next((each.topic_id for each in at.inputs.values() if each.topic == topic), "")


def merged(kept: str, now: str) -> str:
    """The id to keep of a topic that is the same: what Kafka says now, if that says more."""
    return kept if is_known(kept) or not now else now


def why_another(topic: str, kept: str, offsets: Sequence[int], now: TopicState) -> str:
    """Why a topic is another one than the one of the id `kept`, which was read up to `offsets`.

    A sentence that says what was there and what is there; empty where nothing says that it is another one.
    """
    count, stood = len(now.ends), tuple(offsets) + (0,) * (len(now.ends) - len(offsets))
    short = count < len(offsets) or any(at > end for at, end in zip(stood, now.ends, strict=False))
    if not are_two(kept, now.id) and (not short or (is_known(kept) and kept == now.id)):
        return ""
    return described(topic, kept, offsets, now)


def is_younger(offsets: Sequence[int], now: TopicState, since_read: Sequence[int], since_now: Sequence[int]) -> bool:
    """Whether all that lies before where a topic was read is later than that, by the time stamps of its records.

    `since_read` has the first offset with a record of after it was read, by partition, `since_now` of after now; -1 for
    none. A record of after now says nothing of when it came. For topics without known ids.
    """
    stands = [partition for partition, at in enumerate(offsets[: len(now.ends)]) if at > now.earliest[partition]]
    return bool(stands) and all(
        0 <= since_read[each] <= now.earliest[each] and not 0 <= since_now[each] <= now.earliest[each]
        for each in stands
    )


def described(topic: str, kept: str, offsets: Sequence[int], now: TopicState) -> str:
    """What was there and what is there, of a topic that was made again."""
    read = ", ".join(f"{topic}[{partition}]@{at}" for partition, at in enumerate(offsets))
    return (
        f"topic {topic!r} was deleted and made again: it was {_named(kept)} with {_partitions(len(offsets))}, read up "
        f"to {read}; now it is {_named(now.id)} with {_partitions(len(now.ends))}, and holds {now.holds(topic)}"
    )


def _named(topic_id: str) -> str:
    if not topic_id:
        return "one without a known id"
    if topic_id.startswith(_EPOCHS):
        return f"one of leader epochs {topic_id.removeprefix(_EPOCHS)}"
    return f"the one of id {topic_id}"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
