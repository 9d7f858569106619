"""Retention rules, and the versions that must be kept because of them, each with the reasons.

Pure functions of the state of the app (stages, snapshots, earlier collections) and of a function that reads a version.
As in restic and borg, each rule keeps some versions, and versions that no rule keeps are deleted. For example, one rule
keeps all recent versions, one rule keeps one moment per hour, and one rule keeps one per day. In a thinned history, a
query for a time returns the state at the start of that hour (or day), or a later state. For every stage
`find_reachable` keeps

- a gapless history up to the head. It starts with the oldest version that at least one of these rules keeps: the
  retention rule; younger than an hour; not yet read by a downstream stage; not yet published; recorded for an open
  snapshot request;
- before that, single versions: those of snapshots (including the pin of a clone) and of moments that a thinned history
  keeps.

A retired stage has such a history as well. Unread versions of its senders are not kept, because a retired stage reads
no more versions.

A kept cut includes all versions that its channels need for in-flight records, clones and lineage: the sender's versions
from the consumed version to the sent version, and, for each channel upstream of these, the version up to which the
channel was read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as with_fields

from ...common import instants
from ...common.durations import DAY_MS, HOUR_MS
from ...common.validation import check_whole
from ...errors import Corruption, NotFound
from ...store.versions import history
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary, KeptCut
from ...store.versions.manifest import Manifest
from ..cut.graph import consumed_versions, raise_senders, topological_order
from ..cut.stored import Snapshot


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention rules of an app. None means that a rule is not set. Without any rule, all versions are kept.

    Raises `Usage` (a rule is not a whole number, is negative, or keeps no version).
    """

    all_ms: int | None = None
    """Age in milliseconds up to which all versions are kept."""
    versions: int | None = None
    hourly_ms: int | None = None
    daily_ms: int | None = None
    input_ms: int | None = None
    """Milliseconds for which records stay in the archive after the app read them; None for no archive."""
    input_topics: Mapping[str, int] = field(default_factory=dict)
    """Retention in the archive, in milliseconds, by Kafka topic. `input_ms` applies to all other topics."""

    def __post_init__(self) -> None:
        for topic, value in self.input_topics.items():
            check_whole(f"retention: input of {topic}", value, 1)
        for name, least in (("all_ms", 0), ("hourly_ms", 0), ("daily_ms", 0), ("versions", 1), ("input_ms", 1)):
            if (value := getattr(self, name)) is not None:
                check_whole(f"retention: {name.removesuffix('_ms')}", value, least)

    @property
    def keeps_everything(self) -> bool:
        return replace(self, input_ms=None, input_topics={}) == Retention()

    def input_ms_of_topic(self, topic: str) -> int | None:
        """Return the time in milliseconds for which the archive keeps records of a topic; None for no archive."""
        return self.input_topics.get(topic, self.input_ms)

    @property
    def archives(self) -> bool:
        return self.input_ms is not None or bool(self.input_topics)

    @property
    def collects(self) -> bool:
        return not self.keeps_everything or self.archives

    def moments(self, now_ms: int, until_ms: int) -> tuple[tuple[int, str], ...]:
        """Return the times whose state the hourly and daily rules keep, up to `until_ms`, as (time in ms, rule).

        Oldest first. Each time is the last millisecond of an hour or day. The first time of a rule is right before the
        hour or day in which the rule's window begins: queries for the first moments of the window return the state at
        that time.
        """
        ends: dict[int, str] = {}
        for rule, window_ms, period_ms in (("daily", self.daily_ms, DAY_MS), ("hourly", self.hourly_ms, HOUR_MS)):
            if window_ms is not None:
                begin = max(0, now_ms - window_ms) // period_ms * period_ms
                ends |= {end - 1: rule for end in range(begin, min(now_ms, until_ms + 1) + 1, period_ms)}
        return tuple(sorted(ends.items()))


@dataclass(frozen=True, slots=True)
class StageState:
    """Versions of one stage that limit a collection."""

    first: int
    head: Manifest
    young: int
    published: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppState:
    """State of an app before a collection."""

    now_ms: int
    """Time from which ages are counted, of storage's clock; in a dry run, of this machine's clock."""
    stages: Mapping[str, StageState]
    snapshots: tuple[Snapshot, ...] = ()
    last: Boundary = NOTHING_COLLECTED
    """Last final boundary. Versions that the boundary does not allow count as deleted."""

    def exists(self, stage: str, version: int) -> bool:
        if stage not in self.stages or version > self.stages[stage].head.version:
            return False
        if version >= self.stages[stage].first:
            return True
        return stage in self.last.first and self.last.allows(stage, version)


VersionReader = Callable[[str, int], Manifest]
"""Function that reads a version. Only inputs, outputs and times of the manifest are used."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why a version is kept."""

    rule: str
    """Rule: head, retention, versions, hourly, daily, young, unread, unpublished, request, snapshot or clone."""
    detail: str
    reader: str = ""


_EVERYTHING = Reason("retention", "no retention rule is set: everything is kept")


@dataclass(frozen=True, slots=True)
class MissingVersion:
    """Error for a version that a snapshot pins and that is missing, although no collection deleted it."""

    snapshot: str
    stage: str
    version: int


@dataclass(slots=True)
class Reachable:
    """Versions of an app that must be kept, with the reasons."""

    state: AppState
    gapless_starts: dict[str, tuple[tuple[int, Reason], ...]] = field(default_factory=dict)
    """Start of the gapless history of each stage, with the reasons: all versions from there on are kept."""
    single_versions: dict[str, dict[int, tuple[Reason, ...]]] = field(default_factory=dict)
    moments: tuple[KeptCut, ...] = ()
    absent: tuple[MissingVersion, ...] = ()

    def first(self, stage: str) -> int:
        return min(version for version, _ in self.gapless_starts[stage])

    def reasons(self, stage: str, version: int) -> tuple[Reason, ...]:
        """Return the reasons why a version is kept; empty if the version may be deleted."""
        if stage not in self.gapless_starts or not self.state.exists(stage, version):
            return ()
        head = self.state.stages[stage].head.version
        # Only rules that by themselves would keep this version.
        reasons = [
            reason
            for start, reason in self.gapless_starts[stage]
            if start <= version and (reason.rule != "head" or version == head)
        ]
        return tuple(dict.fromkeys((*reasons, *self.single_versions.get(stage, {}).get(version, ()))))

    def versions(self, stage: str) -> Iterator[int]:
        yield from self._earlier(stage)
        yield from range(self.first(stage), self.state.stages[stage].head.version + 1)

    def _earlier(self, stage: str) -> tuple[int, ...]:
        first = self.first(stage)
        return tuple(sorted(version for version in self.single_versions.get(stage, {}) if version < first))

    def counts(self, stage: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        covered = self.state.stages[stage].head.version + 1
        for start, reason in self.gapless_starts[stage]:
            if start < covered:
                counts[reason.rule] = counts.get(reason.rule, 0) + covered - start
                covered = start
        for version, reasons in self.single_versions.get(stage, {}).items():
            if version < covered:
                counts[reasons[0].rule] = counts.get(reasons[0].rule, 0) + 1
        return counts

    def held_up_by(self, stage: str, silent_ms: int) -> tuple[str, ...]:
        """Return the readers whose unread versions of a stage are kept, and that have not committed for `silent_ms`."""
        stages = self.state.stages
        otherwise_kept = min(version for version, reason in self.gapless_starts[stage] if reason.rule != "unread")
        names = {
            reason.reader
            for version, reason in self.gapless_starts[stage]
            if reason.reader and version < otherwise_kept
        }
        return tuple(
            name
            for name in sorted(names)
            # A migration may have removed the channel from a reader since, or renamed its sender.
            if (read_version := consumed_versions(stages[name].head).get(stage)) is not None
            and read_version < stages[stage].head.version
            and stages[name].head.time_ms <= self.state.now_ms - silent_ms
        )

    def boundary(self, number: int, by: str, *, final: bool) -> Boundary:
        first, single = {}, {}
        for stage, stage_state in self.state.stages.items():
            start = self.first(stage)
            if start > stage_state.first or stage in self.state.last.first:
                first[stage] = start
                if earlier := self._earlier(stage):
                    single[stage] = earlier
        return Boundary(number, final, first, single, self.moments, by)


def find_reachable(state: AppState, retention: Retention, read: VersionReader) -> Reachable:
    """Find the versions that must be kept. Calls `read` only for existing versions, and raises its errors."""
    plan = Reachable(state)
    _find_whole_histories(plan, retention, read)
    moments = [moment for snapshot in state.snapshots for moment in _keep_pinned(plan, snapshot, read)]
    if retention.keeps_everything:
        moments += [_keep_cut(plan, moment.stages, _EVERYTHING, read) for moment in state.last.moments]
    starts = {stage: plan.first(stage) for stage in state.stages}
    thinned = [stage for stage, start in starts.items() if start > 1]
    whole_ms = max((read(stage, starts[stage]).time_ms for stage in thinned), default=0)
    for time_ms, rule in retention.moments(state.now_ms, whole_ms):
        versions = _cut_at(state, time_ms, read)
        if any(version < starts[stage] for stage, version in versions.items()):
            time = instants.format_iso(time_ms + 1, "minutes")
            moments.append(_keep_cut(plan, versions, Reason(rule, f"the app as it was at {time}, kept {rule}"), read))
    early = (moment for moment in moments if any(version < starts[stage] for stage, version in moment.stages.items()))
    unique = {tuple(sorted(moment.stages.items())): moment for moment in early}
    lasting = (_with_end(state, moment, read) for moment in unique.values())
    plan.moments = tuple(sorted(lasting, key=lambda moment: (moment.time_ms, sorted(moment.stages.items()))))
    return plan


def _find_whole_histories(plan: Reachable, retention: Retention, read: VersionReader) -> None:
    """Add the start of each stage's gapless history to the plan, with the reasons.

    Receivers are processed before their senders, since versions of a sender are kept until the receiver has read them.
    """
    stages = plan.state.stages
    heads = {stage: stage_state.head for stage, stage_state in stages.items()}
    needed: dict[str, list[tuple[int, Reason]]] = {stage: [] for stage in stages}
    for stage, head in heads.items():
        needed[stage] += _start_rules(plan.state, stage, retention, read)
        for spans in head.captured.values():
            for name, span in spans.items():
                sender = head.inputs[name].upstream if name in head.inputs else ""
                if sender in needed:
                    needed[sender].append((span.after, Reason("request", f"{stage} captures it for a snapshot")))
    # A head does not show what was read before a migration, so a sender whose start moves back is queued again.
    waiting = [*reversed(topological_order(heads))]
    for receiver in waiting:
        first, last = stages[receiver].first, heads[receiver].version
        plan.gapless_starts[receiver] = tuple(
            (min(max(version, first), last), reason) for version, reason in needed[receiver]
        )
        if heads[receiver].retired:
            continue
        start = plan.first(receiver)
        for source in read(receiver, start).inputs.values():
            if source.upstream in needed:
                detail = f"{receiver}@v{start} has read up to v{source.version} and continues from there"
                needed[source.upstream].append((source.version, Reason("unread", detail, receiver)))
                at = max(source.version, stages[source.upstream].first)
                if source.upstream in plan.gapless_starts and at < plan.first(source.upstream):
                    waiting.append(source.upstream)


def _start_rules(
    state: AppState, stage: str, retention: Retention, read: VersionReader
) -> Iterator[tuple[int, Reason]]:
    """Yield, for each rule, the first version of a stage's history that the rule keeps, with the reason.

    Versions that are kept because a reader has not read them are left out: `_find_whole_histories` adds them.
    """
    stage_state = state.stages[stage]
    yield stage_state.head.version, Reason("head", "it is the newest version of its stage")
    if retention.keeps_everything:
        yield stage_state.first, _EVERYTHING
    if retention.all_ms is not None:
        oldest = _version_at(state, stage, state.now_ms - retention.all_ms, read)
        yield (
            oldest.version if oldest else stage_state.first,
            Reason("retention", "retention keeps all versions of this age"),
        )
    if retention.versions is not None:
        start = stage_state.head.version - retention.versions + 1
        yield start, Reason("versions", f"retention keeps the newest {retention.versions:,} versions")
    if stage_state.young <= stage_state.head.version:
        yield stage_state.young, Reason("young", "it is less than an hour old")
    reads = {
        name
        for other in state.stages.values()
        for name, source in other.head.inputs.items()
        if source.upstream == stage
    }
    for name in sorted(stage_state.head.outputs.keys() - reads) if not stage_state.head.retired else ():
        yield stage_state.first, Reason("unread", f"no stage reads the channel {name} yet")
    for name, version in sorted(stage_state.published.items()):
        yield version, Reason("unpublished", f"the sink {name} is published up to v{version}")
    for version in stage_state.head.recorded.values():
        yield version, Reason("request", "a snapshot in progress has recorded it")


def _version_at(state: AppState, stage: str, time_ms: int, read: VersionReader) -> Manifest | None:
    stage_state = state.stages[stage]
    return history.newest_where(
        read, lambda _stage: stage_state.first, stage_state.head, lambda at: at.time_ms <= time_ms
    )


def _cut_at(state: AppState, time_ms: int, read: VersionReader) -> dict[str, int]:
    """Return the version numbers of the consistent cut at a time, or of a kept moment if versions were deleted."""
    at = {
        stage: manifest for stage in state.stages if (manifest := _version_at(state, stage, time_ms, read)) is not None
    }
    if not state.last.first.keys() <= at.keys():
        moment = state.last.kept_cut_at(time_ms)
        return dict(moment.stages) if moment else {}
    at = {stage: manifest for stage, manifest in at.items() if not manifest.retired}
    return {stage: manifest.version for stage, manifest in raise_senders(at, read).items()}


def _keep_pinned(plan: Reachable, snapshot: Snapshot, read: VersionReader) -> Iterator[KeptCut]:
    state = plan.state
    if not all(state.last.allows(stage, version) for stage, version in snapshot.stages.items()):
        return  # the snapshot pins collected versions, and the process that takes it will withdraw it
    existing = {stage: version for stage, version in snapshot.stages.items() if state.exists(stage, version)}
    reason = Reason("snapshot", f"snapshot {snapshot.name} pins it, or needs it for in-flight records and lineage")
    if snapshot.kind == "clone":
        location = f" under {snapshot.clone_root}" if snapshot.clone_root else ""
        reason = Reason("clone", f"the clone {snapshot.clone}{location} uses it (snapshot {snapshot.name})")
    moment = _keep_cut(plan, existing, reason, read) if existing else None
    if moment is not None and len(existing) == len(snapshot.stages):
        yield moment
    plan.absent += tuple(
        MissingVersion(snapshot.name, stage, version)
        for stage, version in snapshot.stages.items()
        # Versions above the listed heads were committed since the listing.
        if stage not in existing and (stage not in state.stages or version <= state.stages[stage].head.version)
    )


def _keep_cut(plan: Reachable, versions: Mapping[str, int], reason: Reason, read: VersionReader) -> KeptCut:
    cut = {stage: read(stage, version) for stage, version in versions.items()}
    for stage, version in _versions_of_cut(plan.state, cut, read):
        reasons = plan.single_versions.setdefault(stage, {})
        if reason not in reasons.get(version, ()):
            reasons[version] = (*reasons.get(version, ()), reason)
    return KeptCut(max(manifest.time_ms for manifest in cut.values()), dict(versions))


def _with_end(state: AppState, moment: KeptCut, read: VersionReader) -> KeptCut:
    for earlier in state.last.moments:
        if earlier.stages == moment.stages:
            return earlier
    following = {
        stage: moment.stages.get(stage, stage_state.first - 1) + 1 for stage, stage_state in state.stages.items()
    }
    later = {stage: version for stage, version in following.items() if version <= state.stages[stage].head.version}
    try:
        if later and all(state.exists(*place) for place in later.items()):
            until_ms = min(read(*place).time_ms for place in later.items()) - 1
            if until_ms >= moment.time_ms and _cut_at(state, moment.time_ms, read) == moment.stages:
                return with_fields(moment, until_ms=until_ms)
    except (Corruption, NotFound):
        pass  # the version is not part of the moment, so it need not exist
    return moment


def _versions_of_cut(state: AppState, cut: Mapping[str, Manifest], read: VersionReader) -> Iterator[tuple[str, int]]:
    for manifest in cut.values():
        yield manifest.stage, manifest.version
        for source in manifest.inputs.values():
            if source.upstream in cut:
                for version in range(source.version, cut[source.upstream].version):
                    if state.exists(source.upstream, version):
                        yield source.upstream, version
    seen: set[tuple[str, int]] = set()
    waiting = list(cut.values())
    while waiting:
        for source in waiting.pop().inputs.values():
            place = (source.upstream, source.version)
            if source.upstream and place not in seen and state.exists(*place):
                seen.add(place)
                waiting.append(read(*place))
                yield place
