"""Carrying what is in flight at a cut into a clone's own channels: it never touches the source's."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Protocol

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from ...store.objects.protocol import ObjectStore
from ...store.versions import limits as fits
from ...store.versions.manifest import Input
from ..cut.graph import Channel, Cut, channels
from ..cut.in_flight import InFlight, stretch
from ..cut.stored import Snapshot
from ..take.capture import read


class Channels(Protocol):
    """What cloning needs of Kafka; `pipeline` implements it."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], /) -> None:
        """Check that a topic can be read on from these offsets, one per partition.

        Raises:
            NotFound: there is no such topic.
            Refused: it has another number of partitions, or these offsets are outside of what it holds.
        """
        ...

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        """The end offset of each partition, or None when there is no such topic."""
        ...

    def announce(self, app: str, stage: str, positions: Mapping[str, tuple[int, ...]], /) -> None:
        """Show Kafka's own tools how far a stage has read, by topic. Nothing depends on it: it does not fail."""
        ...

    def copy(
        self, in_flight: InFlight, topic: str, app: str, /, kept: Iterator[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        """Copy records in flight to the end of `topic`, created with as many partitions if it is missing.

        They are read from Kafka, or given as `kept` (tables as `capture.read` gives them).

        The copies are messages of `app`, version `in_flight.up_to`, under one new attempt. With no attempts
        in `in_flight` the topic is created and nothing copied.

        Returns:
            The end offset of each partition after the copy, the new attempt, and the end offsets before the
            copy, where reading the copied records starts.
        """
        ...


class Carried(Struct, frozen=True):
    """A channel of a clone, as copied."""

    topic: fits.Topic
    ends: fits.Offsets
    attempts: tuple[fits.Attempt, ...]
    rows: fits.Count
    starts: dict[fits.NameOrNone, fits.Offsets]
    """For each receiver, where it reads on."""


def channel_topic(app: str, channel: str) -> str:
    """The repartition topic behind a channel."""
    return f"{app}-{channel}-repartition"


def carry(store: ObjectStore, cut: Cut, app: str, kafka: Channels, keeper: Snapshot) -> dict[str, Carried]:
    """Copy every channel of the cut into the topics of `app`, by channel name.

    What `keeper`, a snapshot of this very cut, keeps of it is copied from there; everything else from Kafka.

    May be called again after a crash: what a broken copy left in a topic has an attempt that nobody names.

    Raises:
        NotFound: a manifest or a topic that holds what is in flight is gone.
        Refused: records in flight are gone.
        Unavailable: storage or Kafka did not answer.
    """
    by_name: dict[str, list[Channel]] = {}
    for channel in channels(cut):
        by_name.setdefault(channel.name, []).append(channel)
    return {name: _carry_one(store, cut, app, kafka, readers, keeper) for name, readers in by_name.items()}


def _carry_one(
    store: ObjectStore, cut: Cut, app: str, kafka: Channels, readers: list[Channel], keeper: Snapshot
) -> Carried:
    """Copy one channel from where the last receiver is, with a stop where each of the others is."""
    # In a clone that has read nothing yet, readers stand at different offsets before one and the same version.
    readers = sorted(readers, key=lambda reader: (reader.input.version, reader.input.offsets) if reader.input else (0,))
    topic = channel_topic(app, readers[0].name)
    starts: dict[str, tuple[int, ...]] = {}
    attempts: list[str] = []
    ends: tuple[int, ...] = ()
    rows = 0
    for reader, following in zip_longest(readers, readers[1:]):
        state = stretch(store, cut, reader, following.input if following else None)
        captured = keeper.captured(state) if state.attempts else None
        records = read(store, captured, state) if captured else None
        ends, attempt, starts[reader.receiver] = kafka.copy(state, topic, app, records)
        if state.attempts:
            attempts.append(attempt)
            # A clone's first version says how much it copied for all of its readers.
            rows += sum(state.counts) if state.counts else state.rows
    return Carried(topic, ends, tuple(attempts), rows, starts)


def carried_input(source: Input, receiver: str, name: str, app: str, cut: Cut, carried: Mapping[str, Carried]) -> Input:
    """What the clone's first version of a receiver says about the channel `name`.

    Of the sender, the clone has nothing but a first version: what is in flight counts as written by that.
    """
    channel = carried.get(name)
    if channel is None:
        # The sender had no version at the cut: it starts afresh in the clone, and its receiver has read nothing.
        none = (0,) * len(source.offsets)
        return Input(channel_topic(app, name), none, source.upstream, consumed=none)
    starts, sender = channel.starts[receiver], cut.stages[source.upstream]
    # A watermark that was not read yet is in flight, too.
    read_all = starts == channel.ends and source.watermark_ms == sender.handed_on_ms
    at = sender.version if read_all else sender.version - 1
    return replace(source, topic=channel.topic, offsets=starts, version=at)
