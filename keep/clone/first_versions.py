"""The first version of each stage of a clone: it shares the SSTs of the source, and has channels of its own.

What is in flight at the cut is carried into these: the source's are never touched.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import Protocol

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from ulid import ULID

from ... import instants
from ...errors import Refused
from ...moments.cut.graph import Cut, channels, order
from ...moments.cut.in_flight import InFlight, channel_state
from ...moments.cut.moments import heads_of
from ...moments.cut.stored import Snapshot, of_snapshot, read_snapshot
from ...moments.take.capture import read
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, keys, limits, notes
from ...store.versions.amend import begin
from ...store.versions.commit import carried, without_snapshots
from ...store.versions.manifest import AppInfo, Input, Manifest, Output, Sst
from ...store.versions.side_tables import each_sst


class Channels(Protocol):
    """What cloning needs of Kafka; `pipeline` implements it."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], /) -> None:
        """Check that a topic can be read on from these offsets, one per partition.

        Raises `NotFound` where there is no such topic, `Refused` where it has another number of partitions, or these
        offsets are outside of what it holds.
        """

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        """The end offset of each partition, or None when there is no such topic."""

    def announce(self, app: str, stage: str, positions: Mapping[str, tuple[int, ...]], /) -> None:
        """Show Kafka's own tools how far a stage has read, by topic. Nothing depends on it: it does not fail."""

    def copy(
        self, in_flight: InFlight, topic: str, app: str, /, kept: Iterator[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        """Copy records in flight to the end of `topic`, created with as many partitions if it is missing.

        They are read from Kafka, or are `kept` (tables as `capture.read` gives them). The copies are messages of `app`,
        version `in_flight.up_to`, under one new attempt. With no attempts in `in_flight` nothing is copied.

        Gives the end offset of each partition after the copy, the new attempt, and the end offsets before the copy,
        where reading the copied records starts.
        """


class Carried(Struct, frozen=True):
    """A channel of a clone, as copied."""

    topic: limits.Topic
    ends: limits.Offsets
    attempts: tuple[limits.Attempt, ...]
    rows: limits.Count
    starts: dict[limits.NameOrNone, limits.Offsets]
    """For each receiver, where it reads on."""


def channel_topic(app: str, channel: str) -> str:
    """The repartition topic behind a channel."""
    return f"{app}-{channel}-repartition"


def _carry(store: ObjectStore, cut: Cut, app: str, kafka: Channels, keeper: Snapshot) -> dict[str, Carried]:
    """Copy every channel of the cut into topics of `app`, by channel: from `keeper` what that has, else from Kafka.

    May be called again after a crash: what a broken copy left in a topic has an attempt that nobody names.
    """
    copied: dict[str, Carried] = {}
    # Each channel's readers are neighbours.
    for name, group in groupby(channels(cut), attrgetter("name")):
        # From where the last receiver is, with a stop where each of the others is. In a clone that has read nothing
        # yet, readers stand at different offsets before one and the same version.
        readers = sorted(group, key=lambda one: (one.input.version, one.input.offsets) if one.input else (0,))
        topic, rows = channel_topic(app, name), 0
        starts: dict[str, tuple[int, ...]] = {}
        attempts: list[str] = []
        ends: tuple[int, ...] = ()
        for reader, following in zip_longest(readers, readers[1:]):
            state = channel_state(store, cut, reader, following.input if following else None)
            captured = keeper.captured(state) if state.attempts else None
            records = read(store, captured, state) if captured else None
            ends, attempt, starts[reader.receiver] = kafka.copy(state, topic, app, records)
            if state.attempts:
                attempts.append(attempt)
                # A clone's first version says how much it copied for all of its readers.
                rows += sum(state.counts) if state.counts else state.rows
        copied[name] = Carried(topic, ends, tuple(attempts), rows, starts)
    return copied


def _carried_input(source: Input, receiver: str, name: str, app: str, cut: Cut, copied: Mapping[str, Carried]) -> Input:
    """What the clone's first version of a receiver says about the channel `name`.

    Of the sender, the clone has nothing but a first version: what is in flight counts as written by that.
    """
    if name not in copied:
        # The sender had no version at the cut: it starts afresh in the clone, and its receiver has read nothing.
        none = (0,) * len(source.offsets)
        return Input(channel_topic(app, name), none, source.upstream, consumed=none)
    channel, sender = copied[name], cut.stages[source.upstream]
    starts = channel.starts[receiver]
    # A watermark that was not read yet is in flight, too.
    read_all = starts == channel.ends and source.watermark_ms == sender.handed_on_ms
    at = sender.version if read_all else sender.version - 1
    return replace(source, topic=channel.topic, offsets=starts, version=at)


class _CarriedChannels(Struct, frozen=True):
    """The result of copying, noted before the first manifest: copying again would move the offsets."""

    channels: dict[limits.Topic, Carried]


def finish_clone(
    store: ObjectStore, target: ObjectStore, info: AppInfo, *, channels: Channels, by: str
) -> tuple[str, ...]:
    """Give every stage of a clone in `target` its first version, as far as it has none; returns those that got one.

    Raises `NotFound` where the source's snapshot, a manifest or a topic is gone, `Refused` where the app is no clone,
    or records in flight are gone, and `Unavailable`.
    """
    missing = unfinished(target, info)
    if info.origin is None:
        raise Refused(f"app {info.name!r} is no clone: there is nothing to finish")
    if missing:
        pinned = read_snapshot(store, info.origin.app, info.origin.snapshot)
        cut = of_snapshot(store, pinned)
        key = keys.channels(info.name)
        noted = notes.find(target, key, _CarriedChannels)
        if noted is None:
            # Somebody may finish the same clone at the same time: the note that was first counts.
            noted = notes.add(target, key, _CarriedChannels(_carry(store, cut, info.name, channels, pinned)))
        # Senders first: nobody may see a receiver whose sender is not there.
        for stage in order(cut.stages):
            if stage in missing:
                begin(target, replace(_first_version(store, target, cut, stage, info, noted.channels), by=by))
    # Where the stages begin, for Kafka's own tools; those that run on already show it themselves.
    for stage, head in heads_of(target, info.name, info.origin.cut).items():
        if head.version == info.origin.cut[stage]:
            channels.announce(info.name, stage, {read.topic: read.offsets for read in head.inputs.values()})
    return missing


def has_run(store: ObjectStore, info: AppInfo) -> bool:
    """Whether a clone has gone on from its first versions. The requests of `history.head` for each stage."""
    cut = info.origin.cut if info.origin else {}
    heads = heads_of(store, info.name, history.list_stages(store, info.name))
    return any(head.version != cut.get(stage) for stage, head in heads.items())


def unfinished(store: ObjectStore, info: AppInfo) -> tuple[str, ...]:
    """The stages that a clone has yet to get from its source; empty unless it is an unfinished clone.

    Such a stage must not be started before: it would begin without its state. One request for each stage.
    """
    stages = info.origin.cut if info.origin else {}
    return tuple(stage for stage in stages if not history.first_version(store, info.name, stage))


def check_finished(store: ObjectStore, info: AppInfo) -> None:
    """Raise `Refused` for an unfinished clone. Requests as of `unfinished`."""
    if missing := unfinished(store, info):
        raise Refused(
            f"app {info.name!r} is a clone that was not finished: {', '.join(missing)} have no state yet",
            hint="run the same `slackwater clone` again; it goes on where it stopped",
        )


def _first_version(
    store: ObjectStore, target: ObjectStore, cut: Cut, stage: str, info: AppInfo, copied: Mapping[str, Carried]
) -> Manifest:
    """A stage's first manifest in the clone, under the source's version number: `_seq` goes on from it."""
    source = cut.stages[stage]

    def named(sst: Sst) -> Sst:
        """As a manifest under the clone's root names it."""
        held_by = sst.root or store.url
        return replace(sst, root="" if held_by == target.url else held_by)

    # Snapshots under way are the source's.
    whole = without_snapshots(carried(each_sst(source, named)))
    topics = info.origin.topics if info.origin else {}
    return replace(
        whole,
        app=info.name,
        epoch=1,
        writer=str(ULID()),
        time_ms=max(instants.now_ms(), source.time_ms),
        kind="clone",
        inputs={
            name: _carried_input(read, stage, name, info.name, cut, copied)
            if read.upstream
            else replace(read, topic=topics.get(name, name))
            for name, read in whole.inputs.items()
        },
        outputs={
            name: Output(each.topic, each.ends, output.sent, each.attempts, each.rows, output.schema)
            for name, output in source.outputs.items()
            for each in [copied[name]]
        },
        # What the source has not published yet, it publishes itself.
        sinks={},
        silent=source.silent | {name: sink.kind for name, sink in source.sinks.items()},
        promotion=None,
        # Rows that the source's version wrote are told by it.
        seq=source.seq,
        # What it took is the source's, and so are its migrations, which have numbers of their own, and where its
        # channels were left.
        totals=None,
        migration=0,
        stopped={},
    )
