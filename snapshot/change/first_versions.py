"""First versions of a clone's stages, and copies of in-flight records in the clone's own channels.

The source's topics are never written to.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from ...common import instants, runtime
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, codec, history, keys, limits
from ...store.versions.amend import commit_first
from ...store.versions.apps import CloneJournal
from ...store.versions.commit import without_open_snapshots, without_version_fields
from ...store.versions.forgotten import add_counts
from ...store.versions.manifest import AppInfo, Input, Manifest, Output
from ..cut.graph import Channel, Cut, readers_by_channel, topological_order
from ..cut.in_flight import InFlight, channel_state
from ..cut.kafka_topics import KafkaTopics
from ..cut.moments import heads_of
from ..cut.stored import Snapshot
from ..take.capture import count_by_partition, read_captured
from .copies import CloneSsts


class CopiedChannel(Struct, frozen=True):
    """Channel of a clone, with the in-flight records that were copied into the channel."""

    topic: limits.Topic
    ends: limits.Offsets
    attempts: tuple[limits.Attempt, ...]
    rows: limits.Count
    starts: dict[limits.NameOrNone, limits.Offsets]
    forgotten: dict[limits.NameOrNone, limits.Counts] = {}
    topic_id: limits.ShortText = ""


def offset_syncs(alias: str) -> str:
    return f"mm2-offset-syncs.{alias}.internal"


def channel_topic(app: str, channel: str) -> str:
    return f"{app}-{channel}-repartition"


def topics_of_unfinished(store: ObjectStore, note: CloneJournal) -> tuple[str, ...]:
    origin = note.info.origin
    if origin is None:
        return ()
    source = store.at(note.root)
    manifests = (history.find(source, origin.app, stage, version) for stage, version in origin.cut.items())
    return tuple(
        channel_topic(note.info.name, name)
        for manifest in manifests
        if manifest is not None
        for name in manifest.outputs
    )


InFlightReader = Callable[[Channel, Channel | None], tuple[InFlight, Iterator[pa.Table] | None, tuple[int, ...]]]
"""Function that reads the records of a channel between the positions of two readers, the slower reader first.

For the fastest reader, the second argument is None: then records are read up to the cut. Returns three values: the
state of the channel, the records, and counts. The records are None if they must be read from Kafka. The counts are the
numbers of records by Kafka partition before keys were forgotten; empty if no key was forgotten.
"""


def in_flight_reader(store: ObjectStore, cut: Cut, keeper: Snapshot | None) -> InFlightReader:
    """Return a function that reads in-flight records from the snapshot `keeper`.

    The function returns None for records that the snapshot lacks; these must be read from Kafka.
    """

    def records(
        reader: Channel, following: Channel | None
    ) -> tuple[InFlight, Iterator[pa.Table] | None, tuple[int, ...]]:
        state = channel_state(store, cut, reader, following.input if following else None)
        captured = keeper.find_captured_channel(state) if state.attempts and keeper is not None else None
        if captured is None:
            return state, None, ()
        were = (state.counts or add_counts(captured.counts, captured.forgotten)) if captured.forgotten else ()
        return state, read_captured(store, captured, state), were

    return records


def copy_channels(cut: Cut, app: str, kafka: KafkaTopics, records: InFlightReader) -> dict[str, CopiedChannel]:
    """Copy the in-flight records of every channel of the cut into topics of `app`. Returns the channels by name.

    Safe to repeat after a crash: no manifest names the attempt of an incomplete copy.
    """
    copied: dict[str, CopiedChannel] = {}
    for of_channel in readers_by_channel(cut):
        # Start at the slowest receiver's offsets, and split the copy at the offsets of each other receiver.
        name, rows = of_channel[0].name, 0
        topic = channel_topic(app, name)
        starts: dict[str, tuple[int, ...]] = {}
        attempts: list[str] = []
        forgotten: dict[str, tuple[int, ...]] = {}
        ends: tuple[int, ...] = ()
        for reader, following in zip_longest(of_channel, of_channel[1:]):
            state, kept_records, original_counts = records(reader, following)
            counts = np.zeros(len(state.ends), np.int64)
            if kept_records is not None and original_counts:
                kept_records = _count_rows(kept_records, counts)
            ends, attempt, starts[reader.receiver] = kafka.copy(state, topic, app, kept_records)
            if state.attempts:
                attempts.append(attempt)
                # The first version of a clone counts the copied rows of all readers together.
                rows += sum(state.counts) if state.counts else state.rows
            if original_counts:
                num_forgotten = np.array(original_counts) - counts
                forgotten[reader.receiver] = tuple(num_forgotten.tolist())
                rows -= int(num_forgotten.sum())
        copied[name] = CopiedChannel(topic, ends, tuple(attempts), rows, starts, forgotten, kafka.topic_id(topic))
    return copied


def _count_rows(chunks: Iterator[pa.Table], counts: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    for rows in chunks:
        counts += count_by_partition(rows, len(counts))
        yield rows


def _cloned_input(
    source: Input, receiver: str, name: str, app: str, cut: Cut, copied: Mapping[str, CopiedChannel]
) -> Input:
    """Return the input `name` of a receiver's first version in the clone.

    In-flight records count as written by the sender's first version in the clone, which is the sender's only version.
    """
    if name not in copied:
        # The sender has no version at the cut: in the clone it starts empty, and its receiver has read nothing.
        none = (0,) * len(source.offsets)
        return Input(channel_topic(app, name), none, source.upstream, consumed=none)
    channel, sender = copied[name], cut.stages[source.upstream]
    starts = channel.starts[receiver]
    # A watermark that was sent and not read is in flight as well.
    read_all = starts == channel.ends and source.watermark_ms == sender.downstream_watermark_ms
    at = sender.version if read_all else sender.version - 1
    # Records forgotten in flight count as lost.
    gone = channel.forgotten.get(receiver, ())
    lost = add_counts(source.lost, gone) if any(gone) else source.lost
    return replace(source, topic=channel.topic, offsets=starts, version=at, lost=lost, topic_id=channel.topic_id)


class _CopiedChannels(Struct, frozen=True):
    channels: dict[limits.Topic, CopiedChannel]


def finish_clone(
    target: ObjectStore,
    info: AppInfo,
    cut: Cut,
    records: InFlightReader,
    copies: CloneSsts,
    channels: KafkaTopics,
    *,
    by: str,
    is_new: bool,
) -> None:
    """Commit the missing first versions of a clone in `target`, and then the clone's identity.

    With `is_new`, no first version exists yet. Raises `NotFound` if a manifest or topic is gone, `Refused` if
    in-flight records are gone, `Corruption` if an SST to copy is damaged, and `Unavailable`.
    """
    first_versions = {} if is_new else _committed_first_versions(target, info.name, cut)
    # Senders first, in the order in which runners would commit.
    missing = [stage for stage in topological_order(cut.stages) if stage not in first_versions]
    if missing:
        key, manifests = keys.channels(info.name), copies.create_ssts(missing)
        carried_channels = None if is_new else codec.find(target, key, _CopiedChannels)
        if carried_channels is None:
            # Another process may be finishing the same clone: the first journal entry wins.
            carried_channels = codec.add(target, key, _CopiedChannels(copy_channels(cut, info.name, channels, records)))
        topics = info.origin.topics if info.origin else {}
        ids = {name: channels.topic_id(topics.get(name, read.topic)) for name, read in users_inputs_by_name(cut)}
        for stage in missing:
            first_versions[stage] = replace(
                _first_version(manifests[stage], cut, info, carried_channels.channels, ids), by=by
            )
            commit_first(target, first_versions[stage])
    # Commit the start offsets to the consumer groups, for Kafka's own tools.
    for stage, first in first_versions.items():
        if first.attached is not None:
            continue  # it reads from a Spark checkpoint
        channels.commit_positions(info.name, stage, {read.topic: read.offsets for read in first.inputs.values()})
    # From now on the clone exists.
    apps.create_app(target, info, cloned=True)
    target.delete(keys.clone_journal(info.name))


def _committed_first_versions(store: ObjectStore, app: str, cut: Cut) -> dict[str, Manifest]:
    manifests = ((stage, history.find(store, app, stage, version)) for stage, version in cut.versions.items())
    return {stage: manifest for stage, manifest in manifests if manifest is not None}


def has_run(store: ObjectStore, info: AppInfo) -> bool:
    """Return True if a clone has versions after its first versions.

    Makes the requests of `history.head` for each stage.
    """
    cut = info.origin.cut if info.origin else {}
    heads = heads_of(store, info.name, history.list_stages(store, info.name))
    return any(head.version != cut.get(stage) for stage, head in heads.items())


def users_inputs_by_name(cut: Cut) -> Iterator[tuple[str, Input]]:
    """Yield the declared name and input of each user's topic that the app's stages read.

    Inputs of attached Spark queries are left out.
    """
    for stage in topological_order(cut.stages):
        if cut.stages[stage].attached is None:
            yield from ((name, read) for name, read in sorted(cut.stages[stage].inputs.items()) if not read.upstream)


def _first_version(
    source: Manifest, cut: Cut, info: AppInfo, copied: Mapping[str, CopiedChannel], ids: Mapping[str, str]
) -> Manifest:
    """Return the first manifest of a stage in the clone.

    `source` is the stage's version in the cut, with the clone's SSTs. The manifest keeps the version number of
    `source`, since the column `_seq` of rows refers to it. `ids` are the topic ids in the clone, by declared name.
    """
    # Open snapshots belong to the source.
    base = without_open_snapshots(without_version_fields(source))
    topics = info.origin.topics if info.origin else {}
    return replace(
        base,
        app=info.name,
        epoch=1,
        writer=str(runtime.ulid()),
        time_ms=max(instants.now_ms(), source.time_ms),
        kind="clone",
        inputs={
            name: _cloned_input(read, source.stage, name, info.name, cut, copied)
            if read.upstream
            else replace(read, topic=topics.get(name, name), topic_id=ids.get(name, ""))
            for name, read in base.inputs.items()
        },
        outputs={
            name: Output(
                channel.topic,
                channel.ends,
                output.sent,
                channel.attempts,
                channel.rows,
                output.schema,
                topic_id=channel.topic_id,
            )
            for name, output in source.outputs.items()
            for channel in [copied[name]]
        },
        # The source itself publishes its unpublished rows.
        sinks={},
        silent=source.silent | {name: sink.kind for name, sink in source.sinks.items()},
        promotion=None,
        # `_seq` of the rows that the source's version wrote.
        seq=source.seq,
        # These fields belong to the source, whose migrations and erasures are numbered separately.
        totals=None,
        migration=0,
        forgotten=0,
        stopped={},
    )


def is_awaiting_initial_rows(store: ObjectStore, info: AppInfo) -> bool:
    """Return True if `slackwater init` created the app and has not committed its rows yet. At most one request."""
    return bool(info.initialised) and not history.first_version(store, info.name, info.initialised)
