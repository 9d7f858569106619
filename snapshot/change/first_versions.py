"""The first version of each stage of a clone: with the SSTs that `copies` gives it, and channels of its own.

What is in flight at the cut is carried into these: the source's are never touched.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from ulid import ULID

from ...common import instants
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys, limits, notes
from ...store.versions.amend import begin
from ...store.versions.apps import Cloning
from ...store.versions.commit import carried, without_snapshots
from ...store.versions.forgotten.index import added
from ...store.versions.manifest import AppInfo, Input, Manifest, Output
from ..cut.graph import Channel, Cut, order, readers
from ..cut.in_flight import InFlight, channel_state
from ..cut.kafka_topics import Topics
from ..cut.moments import heads_of
from ..cut.stored import Snapshot
from ..take.capture import count_by_partition, read
from .copies import Copies


class Carried(Struct, frozen=True):
    """A channel of a clone, as copied."""

    topic: limits.Topic
    ends: limits.Offsets
    attempts: tuple[limits.Attempt, ...]
    rows: limits.Count
    starts: dict[limits.NameOrNone, limits.Offsets]
    """For each receiver, where it reads on."""
    forgotten: dict[limits.NameOrNone, limits.Counts] = {}
    """For each receiver, how many records were forgotten of those on their way to it, by Kafka partition."""
    topic_id: limits.Line = ""


def offset_syncs(alias: str) -> str:
    """The topic in which MirrorMaker 2 says which offsets records of a cluster have in its mirror."""
    return f"mm2-offset-syncs.{alias}.internal"


def channel_topic(app: str, channel: str) -> str:
    """The repartition topic behind a channel."""
    return f"{app}-{channel}-repartition"


def topics_of(store: ObjectStore, note: Cloning) -> tuple[str, ...]:
    """The topics that half a clone may have in Kafka, as far as its source still says so."""
    origin = note.info.origin
    if origin is None:
        return ()
    source = store.at(note.root)
    found = (history.find(source, origin.app, stage, version) for stage, version in origin.cut.items())
    return tuple(channel_topic(note.info.name, name) for each in found if each is not None for name in each.outputs)


Records = Callable[[Channel, Channel | None], tuple[InFlight, Iterator[pa.Table] | None, tuple[int, ...]]]
"""Gets a reader of a channel, and the next one that has read further, None for the last; gives what the first has still
to read up to where that stands, these records, None where Kafka has them, and how many there were, by Kafka partition,
where some may have been forgotten since: else nothing."""


def kept_or_in_kafka(store: ObjectStore, cut: Cut, keeper: Snapshot | None) -> Records:
    """The records in flight at a stored cut: from the snapshot `keeper` what that has, else from Kafka."""

    def records(
        reader: Channel, following: Channel | None
    ) -> tuple[InFlight, Iterator[pa.Table] | None, tuple[int, ...]]:
        state = channel_state(store, cut, reader, following.input if following else None)
        captured = keeper.captured(state) if state.attempts and keeper is not None else None
        if captured is None:
            return state, None, ()
        were = (state.counts or added(captured.counts, captured.forgotten)) if captured.forgotten else ()
        return state, read(store, captured, state), were

    return records


def carry(cut: Cut, app: str, kafka: Topics, records: Records) -> dict[str, Carried]:
    """Copy every channel of the cut into topics of `app`, by channel.

    May be called again after a crash: what a broken copy left in a topic has an attempt that nobody names.
    """
    copied: dict[str, Carried] = {}
    for of_channel in readers(cut):
        # From where the last receiver is, with a stop where each of the others is.
        name, rows = of_channel[0].name, 0
        topic = channel_topic(app, name)
        starts: dict[str, tuple[int, ...]] = {}
        attempts: list[str] = []
        forgotten: dict[str, tuple[int, ...]] = {}
        ends: tuple[int, ...] = ()
        for reader, following in zip_longest(of_channel, of_channel[1:]):
            state, kept, were = records(reader, following)
            found = np.zeros(len(state.ends), np.int64)
            if kept is not None and were:
                kept = _counted(kept, found)
            ends, attempt, starts[reader.receiver] = kafka.copy(state, topic, app, kept)
            if state.attempts:
                attempts.append(attempt)
                # A clone's first version says how much it copied for all of its readers.
                rows += sum(state.counts) if state.counts else state.rows
            if were:
                gone = np.array(were) - found
                forgotten[reader.receiver] = tuple(gone.tolist())
                rows -= int(gone.sum())
        copied[name] = Carried(topic, ends, tuple(attempts), rows, starts, forgotten, kafka.topic_id(topic))
    return copied


def _counted(chunks: Iterator[pa.Table], counts: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """These records, counted by Kafka partition as they pass."""
    for rows in chunks:
        counts += count_by_partition(rows, len(counts))
        yield rows


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
    # What was forgotten on its way is not there to be read.
    gone = channel.forgotten.get(receiver, ())
    lost = added(source.lost, gone) if any(gone) else source.lost
    return replace(source, topic=channel.topic, offsets=starts, version=at, lost=lost, topic_id=channel.topic_id)


class _CarriedChannels(Struct, frozen=True):
    """The result of copying, noted before the first manifest: copying again would move the offsets."""

    channels: dict[limits.Topic, Carried]


def finish_clone(
    target: ObjectStore,
    info: AppInfo,
    cut: Cut,
    records: Records,
    copies: Copies,
    channels: Topics,
    *,
    by: str,
    is_new: bool,
) -> None:
    """Give every stage of a clone in `target` its first version, as far as it has none, and the clone its identity.

    None has a first version where it `is_new`. Raises `NotFound` where a manifest or a topic is gone, `Refused`
    where records in flight are, `Corruption` where an SST is that is to be copied, and `Unavailable`.
    """
    there = {} if is_new else _there(target, info.name, cut)
    # Senders first, as their runners would have committed them.
    missing = [stage for stage in order(cut.stages) if stage not in there]
    if missing:
        key, made = keys.channels(info.name), copies.made(missing)
        noted = None if is_new else notes.find(target, key, _CarriedChannels)
        if noted is None:
            # Somebody may finish the same clone at the same time: the note that was first counts.
            noted = notes.add(target, key, _CarriedChannels(carry(cut, info.name, channels, records)))
        topics = info.origin.topics if info.origin else {}
        ids = {name: channels.topic_id(topics.get(name, read.topic)) for name, read in users_inputs(cut)}
        for stage in missing:
            there[stage] = replace(_first_version(made[stage], cut, info, noted.channels, ids), by=by)
            begin(target, there[stage])
    # Where the stages begin, for Kafka's own tools.
    for stage, first in there.items():
        if first.attached is not None:
            continue  # whoever goes on with it reads a checkpoint
        channels.announce(info.name, stage, {read.topic: read.offsets for read in first.inputs.values()})
    # From here on it exists.
    apps.create_app(target, info, cloned=True)
    target.delete(keys.cloning(info.name))


def _there(store: ObjectStore, app: str, cut: Cut) -> dict[str, Manifest]:
    """The first versions that an earlier call has committed."""
    found = ((stage, history.find(store, app, stage, version)) for stage, version in cut.versions.items())
    return {stage: manifest for stage, manifest in found if manifest is not None}


def has_run(store: ObjectStore, info: AppInfo) -> bool:
    """Whether a clone has gone on from its first versions. The requests of `history.head` for each stage."""
    cut = info.origin.cut if info.origin else {}
    heads = heads_of(store, info.name, history.list_stages(store, info.name))
    return any(head.version != cut.get(stage) for stage, head in heads.items())


def users_inputs(cut: Cut) -> Iterator[tuple[str, Input]]:
    """Declared name and input of everything that the app reads from users' topics: not what a query of Spark's does."""
    for stage in order(cut.stages):
        if cut.stages[stage].attached is None:
            yield from ((name, read) for name, read in sorted(cut.stages[stage].inputs.items()) if not read.upstream)


def _first_version(
    source: Manifest, cut: Cut, info: AppInfo, copied: Mapping[str, Carried], ids: Mapping[str, str]
) -> Manifest:
    """A stage's first manifest in the clone, under the source's version number: `_seq` goes on from it.

    `source` is the stage's version in the cut, with the SSTs that the clone has. `ids` are those of users' topics, by
    declared name: of a topic that the clone has for itself, it is another one than the source's.
    """
    # Snapshots under way are the source's.
    whole = without_snapshots(carried(source))
    topics = info.origin.topics if info.origin else {}
    return replace(
        whole,
        app=info.name,
        epoch=1,
        writer=str(ULID()),
        time_ms=max(instants.now_ms(), source.time_ms),
        kind="clone",
        inputs={
            name: _carried_input(read, source.stage, name, info.name, cut, copied)
            if read.upstream
            else replace(read, topic=topics.get(name, name), topic_id=ids.get(name, ""))
            for name, read in whole.inputs.items()
        },
        outputs={
            name: Output(
                each.topic,
                each.ends,
                output.sent,
                each.attempts,
                each.rows,
                output.schema,
                topic_id=each.topic_id,
            )
            for name, output in source.outputs.items()
            for each in [copied[name]]
        },
        # What the source has not published yet, it publishes itself.
        sinks={},
        silent=source.silent | {name: sink.kind for name, sink in source.sinks.items()},
        promotion=None,
        # Rows that the source's version wrote are told by it.
        seq=source.seq,
        # What it took is the source's, and so are its migrations and what was forgotten, which have numbers of their
        # own, and where its channels were left.
        totals=None,
        migration=0,
        forgotten=0,
        stopped={},
    )


def waits_for_rows(store: ObjectStore, info: AppInfo) -> bool:
    """Tell an app that `init` began and whose rows were never committed. At most one request."""
    return bool(info.initialised) and not history.first_version(store, info.name, info.initialised)
