"""What a recovery would do: where the app goes on, what is read once more, and what is lost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...common import instants
from ...errors import NotFound, Refused, SlackwaterError
from ...snapshot.cut import replicas
from ...snapshot.cut.graph import Cut, order, violations
from ...snapshot.cut.in_flight import InFlight, in_flight
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.moments import heads_of, without_retired
from ...snapshot.cut.replicas import Replica, ReplicaCut
from ...snapshot.cut.stored import Snapshot, read_snapshot
from ...snapshot.under_way.exclusion import Intent, UnderWay, check_exclusion
from ...state.records import windows
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.manifest import AppInfo, Input, Manifest
from .fence import Primary
from .kafka_state import anchor_name
from .mirror_offsets import ReadOn, Source, mirrored_name, position


@dataclass(frozen=True, slots=True)
class FailoverTerms:
    """What is said of the Kafka in which the app goes on."""

    mirror: str | None = None
    """The cluster of which it is a mirror, as MirrorMaker 2 calls it; None where it is the same, or has its offsets."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Users' topics that are called otherwise, by their names as declared."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Where partitions are read on, `TOPIC[PARTITION]` as the app read them: whoever says so knows."""


@dataclass(frozen=True, slots=True)
class LostVersions:
    """What one stage had done after the replica's cut."""

    stage: str
    version: int
    """At the cut."""
    newest: int | None
    """Where the app ran; None where that cannot be reached."""
    newest_ms: int
    """When that was committed; 0 for nobody knows."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a recovery is made of."""

    app: str
    info: AppInfo
    replica: Replica
    replicated: ReplicaCut
    cut: Cut
    """What the app is again, from the replica."""
    heads: Mapping[str, Manifest]
    """The newest versions in the replica: where copying was broken off, further than the cut."""
    primary: Primary
    inputs: Mapping[tuple[str, str], tuple[Input, tuple[ReadOn, ...]]]
    """By stage and user's topic as declared, where it reads on, and how that is known."""
    again: Mapping[str, int]
    """By topic: records behind that, which are read, most of them once more; 0 where nobody knows how many."""
    rereads: tuple[str, ...]
    """Their offsets."""
    in_flight: tuple[InFlight, ...]
    """What is carried into channels of its own."""
    keeper: Snapshot | None
    sink_rows: int
    """That were committed and not published, and are."""
    lost: tuple[LostVersions, ...]
    lost_ms: int
    """How long the app went on after the cut, at most, as far as anybody knows."""
    topics: Mapping[str, str]
    """Users' topics that are read under another name from then on, by their names as declared."""


def find_replica(target: ObjectStore, app: str) -> tuple[Replica, ReplicaCut]:
    """The replica of an app, and up to where it is complete.

    Raises `NotFound` where there is none, and `Refused` where it is not whole yet.
    """
    found = replicas.find(target, app)
    if found is None:
        there = tuple(name for name in target.list_folders("") if replicas.find(target, name))
        raise NotFound("replica", app, there, hint=f"looked under {target.url}; --from says where it is")
    history.list_stages(target, app)  # says so where it is half removed
    check_exclusion(target, app, Intent.RECOVER, UnderWay.LEFT)
    cut = replicas.CUTS.newest(target, app)
    if cut is None or apps.find_app(target, app) is None:
        raise Refused(
            f"the replica of {app} under {target.url} is not whole: its first copy was broken off",
            hint=f"finish it, while {found.root} can be read: slackwater replicate {app} --to {target.url} --once",
        )
    return found, cut


def make_plan(target: ObjectStore, app: str, kafka: Topics, primary: Primary, terms: FailoverTerms) -> RecoveryPlan:
    """What recovering an app from its replica means; changes nothing.

    Raises `NotFound` where there is no replica, or no topic, and `Refused` where it cannot be told where a topic is
    read on, or records that were on the way are nowhere any more.
    """
    replica, newest = find_replica(target, app)
    error: Refused | None = None
    for replicated in (newest, *replicas.older_cuts(target, newest)):
        try:
            return _plan_of(target, app, kafka, primary, terms, replica, replicated)
        except Lacking as lacking:
            error = error or lacking
    assert error is not None  # noqa: S101  there was a cut
    raise error


class Lacking(Refused):
    """Records that were on the way at a cut are nowhere any more."""


def _plan_of(
    target: ObjectStore,
    app: str,
    kafka: Topics,
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
            hint=f"`slackwater verify {app} --store {target.url}` says what is damaged",
        )
    heads = heads_of(target, app, tuple(target.list_folders(keys.stages(app))))
    _check_names(app, heads, stages)
    topics = _topics(cut, kafka, info, terms)
    inputs = dict(_inputs(cut, kafka, replicated, topics, terms))
    keeper = read_snapshot(target, app, replicated.snapshot) if replicated.snapshot else None
    states = in_flight(target, cut)
    _check_kept(kafka, states, keeper, replicated, app)
    lost = tuple(_lost(cut, primary))
    rereads, again = _behind(kafka, inputs)
    newest_ms = max((each.newest_ms for each in lost), default=0)
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
        again,
        rereads,
        tuple(state for state in states if state.receiver),
        keeper,
        sum(each.rows.rows for each in replicated.sinks),
        lost,
        lost_ms,
        topics,
    )


def _check_names(app: str, heads: Mapping[str, Manifest], stages: Mapping[str, Manifest]) -> None:
    for stage, head in heads.items():
        if stage in stages and head.called and not stages[stage].called:
            raise Refused(
                f"copying {app} was broken off amidst a migration that renames {stage} to {head.called}",
                hint=f"clone the replica's cut, and run the program of then as the clone: slackwater clone {app} NAME",
            )


def _topics(cut: Cut, kafka: Topics, info: AppInfo, terms: FailoverTerms) -> dict[str, str]:
    """What users' topics are called from then on, by their names as declared, where it is something else."""
    declared = {
        name: read.topic for at in cut.stages.values() for name, read in at.inputs.items() if not read.upstream
    }  # fmt: skip
    for name in terms.topics:
        if name not in declared:
            raise NotFound(f"topic read by {cut.app}", name, declared, hint="--topic takes NAME=OTHER")
    found = {}
    for name, topic in declared.items():
        if name in terms.topics:
            found[name] = terms.topics[name]
        else:
            found[name] = topic if terms.mirror is None else mirrored_name(kafka, topic, terms.mirror)
    own = info.origin.topics if info.origin is not None else {}
    return {name: topic for name, topic in found.items() if topic != own.get(name, name)}


def _inputs(
    cut: Cut, kafka: Topics, replicated: ReplicaCut, topics: Mapping[str, str], terms: FailoverTerms
) -> Iterator[tuple[tuple[str, str], tuple[Input, tuple[ReadOn, ...]]]]:
    for stage in order(cut.stages):
        for name, read in sorted(cut.stages[stage].inputs.items()):
            if read.upstream:
                continue
            anchors = replicated.anchors.get(anchor_name(stage, name), ())
            topic, found = topics.get(name, read.topic), []
            for partition, offset in enumerate(read.offsets):
                said = terms.offsets.get(f"{read.topic}[{partition}]")
                if said is not None:
                    found.append(ReadOn(said, "said"))
                    continue
                known = anchors[partition] if partition < len(anchors) else ()
                source = Source(topic, read.topic, partition, offset, known)
                found.append(position(kafka, source, terms.mirror))
            offsets = tuple(each.offset for each in found)
            there = replace(read, topic=topic, offsets=offsets, rows=0, topic_id=kafka.topic_id(topic))
            yield (stage, name), (there, tuple(found))


def _check_kept(
    kafka: Topics, states: tuple[InFlight, ...], keeper: Snapshot | None, replicated: ReplicaCut, app: str
) -> None:
    """See that what was on the way is in the replica, or still in this Kafka."""
    for state in states:
        if not state.receiver or (keeper is not None and keeper.captured(state)):
            continue
        try:
            kafka.check_topic(state.topic, state.starts, state.topic_id)
        except SlackwaterError as error:
            raise Lacking(
                f"{state.rows} rows were on the way on {state.channel!r}, and are in no place any more: "
                f"{replicated.lacks or error.message}",
                hint=f"bring back the Kafka that has {state.topic}; or clone an earlier moment, at which nothing was "
                f"on the way: slackwater clone {app}@REF NAME",
            ) from None


def _lost(cut: Cut, primary: Primary) -> Iterator[LostVersions]:
    for stage in order(cut.stages):
        head = primary.heads.get(stage)
        newest, at_ms = (head.version, head.time_ms) if head is not None else (None, 0)
        yield LostVersions(stage, cut.stages[stage].version, newest, at_ms)


def _behind(
    kafka: Topics, inputs: Mapping[tuple[str, str], tuple[Input, tuple[ReadOn, ...]]]
) -> tuple[tuple[str, ...], dict[str, int]]:
    """What is behind where users' topics are read on: offsets in words, and how many by topic."""
    furthest: dict[str, tuple[int, ...]] = {}
    for read, _ in inputs.values():
        had = furthest.get(read.topic, read.offsets)
        furthest[read.topic] = tuple(map(min, had, read.offsets))
    words, counts = list[str](), dict[str, int]()
    for topic, offsets in sorted(furthest.items()):
        ends = kafka.ends(topic) or offsets
        words += windows(topic, offsets, ends)
        counts[topic] = sum(max(0, end - at) for at, end in zip(offsets, ends, strict=False))
    return tuple(words), counts
