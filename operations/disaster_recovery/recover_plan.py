"""Plan of a recovery: the versions and offsets from which the app continues, and the data that is lost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...common import instants
from ...errors import NotFound, Refused, SlackwaterError
from ...snapshot.cut import replicas
from ...snapshot.cut.graph import Cut, topological_order, violations
from ...snapshot.cut.in_flight import InFlight, in_flight
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.moments import heads_of, without_retired
from ...snapshot.cut.replicas import Replica, ReplicaCut
from ...snapshot.cut.stored import Snapshot, read_snapshot
from ...snapshot.under_way.exclusion import AppCondition, Intent, check_exclusion
from ...state.records import format_windows
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.manifest import AppInfo, Input, Manifest
from .fence import Primary
from .kafka_state import anchor_name
from .mirror_offsets import SourcePartition, StartOffset, find_start_offset, mirrored_name


@dataclass(frozen=True, slots=True)
class FailoverTerms:
    """Options that describe the Kafka in which the recovered app continues."""

    mirror: str | None = None
    """Name of the mirrored cluster in MirrorMaker 2; None if Kafka has the original offsets."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Topics with a new name in the new Kafka, by the name that the program declares."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Start offset by `TOPIC[PARTITION]`, with the topic's old name. These offsets are not checked."""


@dataclass(frozen=True, slots=True)
class LostVersions:
    """Versions of one stage that were committed after the replica's cut and are lost."""

    stage: str
    version: int
    newest: int | None
    """Newest version in the old store; None if the store cannot be reached."""
    newest_ms: int
    """Commit time of the newest version; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Plan of a recovery."""

    app: str
    info: AppInfo
    replica: Replica
    replicated: ReplicaCut
    cut: Cut
    heads: Mapping[str, Manifest]
    """Newest versions in the replica. They are newer than the cut if replication was interrupted."""
    primary: Primary
    inputs: Mapping[tuple[str, str], tuple[Input, tuple[StartOffset, ...]]]
    again: Mapping[str, int]
    """Number of records after the start offsets, by topic; 0 if unknown.

    The app may already have read some of these records.
    """
    rereads: tuple[str, ...]
    in_flight: tuple[InFlight, ...]
    keeper: Snapshot | None
    sink_rows: int
    """Number of committed rows that were not published. The recovered app publishes them."""
    lost: tuple[LostVersions, ...]
    lost_ms: int
    """Upper bound of the time during which the app ran after the cut, in milliseconds."""
    topics: Mapping[str, str]
    """New names of users' topics that the recovered app reads, by declared name."""


def find_replica(target: ObjectStore, app: str) -> tuple[Replica, ReplicaCut]:
    """Return the replica of an app, and the newest cut for which the replica is complete.

    Raises `NotFound` if there is no replica, and `Refused` if the first copy is not complete yet.
    """
    replica = replicas.find_replica_state(target, app)
    if replica is None:
        candidates = tuple(name for name in target.list_folders("") if replicas.find_replica_state(target, name))
        raise NotFound(
            "replica", app, candidates, hint=f"looked under {target.url}; for another store root: --from ROOT"
        )
    history.list_stages(target, app)  # raises if the replica is half removed
    check_exclusion(target, app, Intent.RECOVER, AppCondition.LEFT)
    cut = replicas.REPLICA_CUTS.newest(target, app)
    if cut is None or apps.find_app(target, app) is None:
        raise Refused(
            f"the replica of {app} under {target.url} is incomplete: its first copy was interrupted",
            hint=f"finish it, while {replica.root} can be read: slackwater replicate {app} --to {target.url} --once",
        )
    return replica, cut


def make_plan(
    target: ObjectStore, app: str, kafka: KafkaTopics, primary: Primary, terms: FailoverTerms
) -> RecoveryPlan:
    """Return the plan of a recovery. Changes nothing.

    Raises `NotFound` if there is no replica or a topic is missing, and `Refused` if the offset to read from cannot be
    determined, or in-flight records no longer exist.
    """
    replica, newest = find_replica(target, app)
    error: Refused | None = None
    for replicated in (newest, *replicas.older_cuts(target, newest)):
        try:
            return _plan_for_cut(target, app, kafka, primary, terms, replica, replicated)
        except MissingRecords as lacking:
            error = error or lacking
    assert error is not None  # noqa: S101  there was a cut
    raise error


class MissingRecords(Refused):
    """In-flight records of a cut no longer exist."""


def _plan_for_cut(
    target: ObjectStore,
    app: str,
    kafka: KafkaTopics,
    primary: Primary,
    terms: FailoverTerms,
    replica: Replica,
    replicated: ReplicaCut,
) -> RecoveryPlan:
    info = apps.read_app(target, app)
    stages = {stage: history.read(target, app, stage, version) for stage, version in replicated.stages.items()}
    cut = without_retired(target, app, stages)
    if wrong := violations(cut.stages):
        raise Refused(
            f"the cut of the replica is not consistent: {'; '.join(wrong)}",
            hint=f"`slackwater verify {app} --store {target.url}` lists what is damaged",
        )
    heads = heads_of(target, app, tuple(target.list_folders(keys.stages(app))))
    _check_names(app, heads, stages)
    topics = _topics(cut, kafka, info, terms)
    inputs = dict(_inputs(cut, kafka, replicated, topics, terms))
    keeper = read_snapshot(target, app, replicated.snapshot) if replicated.snapshot else None
    states = in_flight(target, cut)
    _check_in_flight_available(kafka, states, keeper, replicated, app)
    lost = tuple(_lost_versions(cut, primary))
    rereads, reread_counts = _remaining_records(kafka, inputs)
    newest_ms = max((versions.newest_ms for versions in lost), default=0)
    lost_ms = max(0, newest_ms - cut.time_ms) if newest_ms else max(0, instants.now_ms() - replicated.seen_ms)
    return RecoveryPlan(
        app,
        info,
        replica,
        replicated,
        cut,
        heads,
        primary,
        inputs,
        reread_counts,
        rereads,
        tuple(state for state in states if state.receiver),
        keeper,
        sum(sink.rows.rows for sink in replicated.sinks),
        lost,
        lost_ms,
        topics,
    )


def _check_names(app: str, heads: Mapping[str, Manifest], stages: Mapping[str, Manifest]) -> None:
    for stage, head in heads.items():
        if stage in stages and head.called and not stages[stage].called:
            raise Refused(
                f"replication of {app} was interrupted during a migration that renames {stage} to {head.called}",
                hint=f"clone the replica's cut, and run the earlier program as the clone: slackwater clone {app} NAME",
            )


def _topics(cut: Cut, kafka: KafkaTopics, info: AppInfo, terms: FailoverTerms) -> dict[str, str]:
    declared = {
        name: read.topic for at in cut.stages.values() for name, read in at.inputs.items() if not read.upstream
    }  # fmt: skip
    for name in terms.topics:
        if name not in declared:
            raise NotFound(f"topic read by {cut.app}", name, declared, hint="--topic takes NAME=OTHER")
    new_names = {}
    for name, topic in declared.items():
        if name in terms.topics:
            new_names[name] = terms.topics[name]
        else:
            new_names[name] = topic if terms.mirror is None else mirrored_name(kafka, topic, terms.mirror)
    own = info.origin.topics if info.origin is not None else {}
    return {name: topic for name, topic in new_names.items() if topic != own.get(name, name)}


def _inputs(
    cut: Cut, kafka: KafkaTopics, replicated: ReplicaCut, topics: Mapping[str, str], terms: FailoverTerms
) -> Iterator[tuple[tuple[str, str], tuple[Input, tuple[StartOffset, ...]]]]:
    for stage in topological_order(cut.stages):
        for name, read in sorted(cut.stages[stage].inputs.items()):
            if read.upstream:
                continue
            anchors = replicated.anchors.get(anchor_name(stage, name), ())
            topic, positions = topics.get(name, read.topic), []
            for partition, offset in enumerate(read.offsets):
                given_offset = terms.offsets.get(f"{read.topic}[{partition}]")
                if given_offset is not None:
                    positions.append(StartOffset(given_offset, "said"))
                    continue
                partition_anchors = anchors[partition] if partition < len(anchors) else ()
                source = SourcePartition(topic, read.topic, partition, offset, partition_anchors)
                positions.append(find_start_offset(kafka, source, terms.mirror))
            offsets = tuple(position_.offset for position_ in positions)
            new_input = replace(read, topic=topic, offsets=offsets, rows=0, topic_id=kafka.topic_id(topic))
            yield (stage, name), (new_input, tuple(positions))


def _check_in_flight_available(
    kafka: KafkaTopics, states: tuple[InFlight, ...], keeper: Snapshot | None, replicated: ReplicaCut, app: str
) -> None:
    for state in states:
        if not state.receiver or (keeper is not None and keeper.find_captured_channel(state)):
            continue
        try:
            kafka.check_topic(state.topic, state.starts, state.topic_id)
        except SlackwaterError as error:
            raise MissingRecords(
                f"{state.rows} in-flight rows on {state.channel!r} no longer exist: "
                f"{replicated.lacks or error.message}",
                hint=f"restore the Kafka that has {state.topic}; or clone an earlier moment without in-flight rows: "
                f"slackwater clone {app}@REF NAME",
            ) from None


def _lost_versions(cut: Cut, primary: Primary) -> Iterator[LostVersions]:
    for stage in topological_order(cut.stages):
        head = primary.heads.get(stage)
        newest, at_ms = (head.version, head.time_ms) if head is not None else (None, 0)
        yield LostVersions(stage, cut.stages[stage].version, newest, at_ms)


def _remaining_records(
    kafka: KafkaTopics, inputs: Mapping[tuple[str, str], tuple[Input, tuple[StartOffset, ...]]]
) -> tuple[tuple[str, ...], dict[str, int]]:
    furthest: dict[str, tuple[int, ...]] = {}
    for read, _ in inputs.values():
        offsets_so_far = furthest.get(read.topic, read.offsets)
        furthest[read.topic] = tuple(map(min, offsets_so_far, read.offsets))
    ranges, counts = list[str](), dict[str, int]()
    for topic, offsets in sorted(furthest.items()):
        ends = kafka.ends(topic) or offsets
        ranges += format_windows(topic, offsets, ends)
        counts[topic] = sum(max(0, end - at) for at, end in zip(offsets, ends, strict=False))
    return tuple(ranges), counts
