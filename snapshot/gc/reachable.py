"""Which versions of an app are reachable, and why: the one function that decides what garbage collection may take.

Pure: what is known of the app goes in, with a function that reads a version; what must stay comes out, each with its
reasons. Of every stage stays

- a history without gaps up to the head: what retention keeps whole, what was written in the last hour, what a stage
  downstream has not read yet, what is not published yet, and what an open request for a snapshot has recorded;
- before that, single versions: those of snapshots (a clone's pin is one) and of the moments that a thinned history
  keeps.

A retired stage has the same history, but holds up nobody else's: what it has not read, nobody will read.

With a cut stays what its channels need: the sender's versions between what was consumed and what was sent, and, up
through all channels, the versions that mark how far each was read: for records in flight, clones and lineage.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...common import instants
from ...errors import Corruption, NotFound
from ...store.versions import history
from ...store.versions.horizon import Boundary, KeptCut
from ...store.versions.manifest import Manifest
from ..cut.graph import consumed, order, raise_senders
from ..cut.stored import Snapshot
from .retention import Known, Retention

Read = Callable[[str, int], Manifest]
"""Gets a stage and a version; of the manifest, inputs, outputs and times are looked at."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something stays."""

    rule: str
    """`head`, `retention`, `versions`, `hourly`, `daily`, `young`, `unread`, `unpublished`, `request`, `snapshot` or
    `clone`."""
    detail: str
    """The same as half a sentence."""
    reader: str = ""
    """For `unread`, the stage that has not read it; empty while none has begun to."""


_EVERYTHING = Reason("retention", "no rule of retention is set: everything stays")


@dataclass(frozen=True, slots=True)
class Absent:
    """A version that a snapshot pins and that is not there, though no collection took it."""

    snapshot: str
    stage: str
    version: int


@dataclass(slots=True)
class Reachable:
    """What must stay of an app."""

    known: Known
    wholes: dict[str, tuple[tuple[int, Reason], ...]] = field(default_factory=dict)
    """By stage: versions from which on, up to the head, all stay, and why."""
    single: dict[str, dict[int, tuple[Reason, ...]]] = field(default_factory=dict)
    """By stage and version: reasons to keep just this one, wherever it lies."""
    moments: tuple[KeptCut, ...] = ()
    """The cuts that stay before the whole history."""
    absent: tuple[Absent, ...] = ()
    """What snapshots pin that is not there. The other versions that they pin stay all the same."""

    def first(self, stage: str) -> int:
        """The version from which on the stage's history stays whole."""
        return min(version for version, _ in self.wholes[stage])

    def why(self, stage: str, version: int) -> tuple[Reason, ...]:
        """The reasons for which a version stays; none when it may go."""
        if stage not in self.wholes or not self.known.exists(stage, version):
            return ()
        head = self.known.stages[stage].head.version
        # Of the whole history, the rules that would keep this version by themselves.
        found = [each for at, each in self.wholes[stage] if at <= version and (each.rule != "head" or version == head)]
        return tuple(dict.fromkeys((*found, *self.single.get(stage, {}).get(version, ()))))

    def versions(self, stage: str) -> Iterator[int]:
        """All versions of a stage that stay, ascending."""
        first = self.first(stage)
        yield from sorted(version for version in self.single.get(stage, {}) if version < first)
        yield from range(first, self.known.stages[stage].head.version + 1)

    def counts(self, stage: str) -> dict[str, int]:
        """How many versions stay by rule, each counted under the first of its rules."""
        found: dict[str, int] = {}
        covered = self.known.stages[stage].head.version + 1
        for start, reason in self.wholes[stage]:
            if start < covered:
                found[reason.rule] = found.get(reason.rule, 0) + covered - start
                covered = start
        for version, reasons in self.single.get(stage, {}).items():
            if version < covered:
                found[reasons[0].rule] = found.get(reasons[0].rule, 0) + 1
        return found

    def held_up_by(self, stage: str, silent_ms: int) -> tuple[str, ...]:
        """The readers for which alone versions of a stage stay: they are behind, and committed nothing for so long."""
        known = self.known.stages
        others = min(version for version, reason in self.wholes[stage] if reason.rule != "unread")
        names = {reason.reader for version, reason in self.wholes[stage] if reason.reader and version < others}
        return tuple(
            name
            for name in sorted(names)
            # A migration may have taken the channel from a reader since, or given its sender another name.
            if (at := consumed(known[name].head).get(stage)) is not None
            and at < known[stage].head.version
            and known[name].head.time_ms <= self.known.now_ms - silent_ms
        )

    def boundary(self, number: int, by: str, *, final: bool) -> Boundary:
        """What may exist from now on."""
        first, kept = {}, {}
        for stage, known in self.known.stages.items():
            start = self.first(stage)
            if start > known.first or stage in self.known.last.first:
                first[stage] = start
                kept[stage] = tuple(sorted(version for version in self.single.get(stage, {}) if version < start))
        return Boundary(number, final, first, {stage: each for stage, each in kept.items() if each}, self.moments, by)


def reachable(known: Known, retention: Retention, read: Read) -> Reachable:
    """What must stay. `read` is asked only for versions that are part of the history.

    Raises what `read` raises: a version that should be there and is not must end a collection.
    """
    found = Reachable(known)
    _whole(found, retention, read)
    kept = [moment for snapshot in known.snapshots for moment in _keep_pinned(found, snapshot, read)]
    if retention.keeps_everything:
        kept += [_keep(found, moment.stages, _EVERYTHING, read) for moment in known.last.moments]
    starts = {stage: found.first(stage) for stage in known.stages}
    lost = [stage for stage, start in starts.items() if start > 1]
    whole_ms = max((read(stage, starts[stage]).time_ms for stage in lost), default=0)
    for time_ms, rule in retention.moments(known.now_ms, whole_ms):
        versions = _cut(known, time_ms, read)
        if any(version < starts[stage] for stage, version in versions.items()):
            shown = instants.iso(time_ms + 1, "minutes")
            kept.append(_keep(found, versions, Reason(rule, f"the app as it was at {shown}, kept {rule}"), read))
    before = (one for one in kept if any(version < starts[stage] for stage, version in one.stages.items()))
    unique = {tuple(sorted(one.stages.items())): one for one in before}
    lasting = (_lasting(known, one, read) for one in unique.values())
    found.moments = tuple(sorted(lasting, key=lambda one: (one.time_ms, sorted(one.stages.items()))))
    return found


def _whole(found: Reachable, retention: Retention, read: Read) -> None:
    """From where on each stage's history stays whole; receivers first, because senders wait for them."""
    stages = found.known.stages
    heads = {stage: known.head for stage, known in stages.items()}
    needed: dict[str, list[tuple[int, Reason]]] = {stage: [] for stage in stages}
    for stage, head in heads.items():
        needed[stage] += _needed_whole(found.known, stage, retention, read)
        for spans in head.captured.values():
            for name, span in spans.items():
                sender = head.inputs[name].upstream if name in head.inputs else ""
                if sender in needed:
                    needed[sender].append((span.after, Reason("request", f"{stage} captures it for a snapshot")))
    # A head does not say what was read before a migration: who is found to be needed from earlier on comes again.
    waiting = [*reversed(order(heads))]
    for receiver in waiting:
        first, last = stages[receiver].first, heads[receiver].version
        found.wholes[receiver] = tuple((min(max(version, first), last), reason) for version, reason in needed[receiver])
        if heads[receiver].retired:
            continue
        start = found.first(receiver)
        for source in read(receiver, start).inputs.values():
            if source.upstream in needed:
                detail = f"{receiver}@v{start} has read up to v{source.version}, and goes on from there"
                needed[source.upstream].append((source.version, Reason("unread", detail, receiver)))
                at = max(source.version, stages[source.upstream].first)
                if source.upstream in found.wholes and at < found.first(source.upstream):
                    waiting.append(source.upstream)


def _needed_whole(known: Known, stage: str, retention: Retention, read: Read) -> Iterator[tuple[int, Reason]]:
    """From where on a stage's versions stay, whoever reads it, and why."""
    there = known.stages[stage]
    yield there.head.version, Reason("head", "it is the newest version of its stage")
    if retention.keeps_everything:
        yield there.first, _EVERYTHING
    if retention.all_ms is not None:
        at = _at(known, stage, known.now_ms - retention.all_ms, read)
        yield at.version if at else there.first, Reason("retention", "retention keeps all of this age")
    if retention.versions is not None:
        start = there.head.version - retention.versions + 1
        yield start, Reason("versions", f"retention keeps the newest {retention.versions:,} versions")
    if there.young <= there.head.version:
        yield there.young, Reason("young", "it is less than an hour old")
    reads = {name for each in known.stages.values() for name, at in each.head.inputs.items() if at.upstream == stage}
    for name in sorted(there.head.outputs.keys() - reads) if not there.head.retired else ():
        yield there.first, Reason("unread", f"no stage has begun to read the channel {name}")
    for name, version in sorted(there.published.items()):
        yield version, Reason("unpublished", f"the sink {name} is published up to v{version}")
    for version in there.head.recorded.values():
        yield version, Reason("request", "a snapshot under way has recorded it")


def _at(known: Known, stage: str, time_ms: int, read: Read) -> Manifest | None:
    """The stage's version at a time, None when its whole history is later."""
    there = known.stages[stage]
    return history.newest_where(read, lambda _stage: there.first, there.head, lambda at: at.time_ms <= time_ms)


def _cut(known: Known, time_ms: int, read: Read) -> dict[str, int]:
    """The consistent cut of a time, by version; from the moments that stay where the history is not whole any more."""
    at = {stage: found for stage in known.stages if (found := _at(known, stage, time_ms, read)) is not None}
    if not known.last.first.keys() <= at.keys():
        moment = known.last.at(time_ms)
        return dict(moment.stages) if moment else {}
    at = {stage: manifest for stage, manifest in at.items() if not manifest.retired}
    return {stage: manifest.version for stage, manifest in raise_senders(at, read).items()}


def _keep_pinned(found: Reachable, snapshot: Snapshot, read: Read) -> Iterator[KeptCut]:
    """Keep what a snapshot pins; gives its moment, if all of it is there."""
    known = found.known
    if not all(known.last.allows(stage, version) for stage, version in snapshot.stages.items()):
        return  # it pins what was collected, or was to be, before: its maker is about to give it up
    there = {stage: version for stage, version in snapshot.stages.items() if known.exists(stage, version)}
    reason = Reason("snapshot", f"snapshot {snapshot.name} pins it, or its records in flight and lineage need it")
    if snapshot.kind == "clone":
        where = f" under {snapshot.clone_root}" if snapshot.clone_root else ""
        reason = Reason("clone", f"the clone {snapshot.clone}{where} lives from it (snapshot {snapshot.name})")
    moment = _keep(found, there, reason, read) if there else None
    if moment is not None and len(there) == len(snapshot.stages):
        yield moment
    found.absent += tuple(
        Absent(snapshot.name, stage, version)
        for stage, version in snapshot.stages.items()
        # Versions above the heads that were seen came since.
        if stage not in there and (stage not in known.stages or version <= known.stages[stage].head.version)
    )


def _keep(found: Reachable, versions: Mapping[str, int], reason: Reason, read: Read) -> KeptCut:
    """Keep a cut, with what its channels and its lineage need."""
    cut = {stage: read(stage, version) for stage, version in versions.items()}
    for stage, version in _needed(found.known, cut, read):
        mine = found.single.setdefault(stage, {})
        if reason not in mine.get(version, ()):
            mine[version] = (*mine.get(version, ()), reason)
    return KeptCut(max(manifest.time_ms for manifest in cut.values()), dict(versions))


def _lasting(known: Known, moment: KeptCut, read: Read) -> KeptCut:
    """The moment, with the time up to which the app stood there: what is about to go knows it."""
    for earlier in known.last.moments:
        if earlier.stages == moment.stages:
            return earlier
    following = {stage: moment.stages.get(stage, there.first - 1) + 1 for stage, there in known.stages.items()}
    later = {stage: version for stage, version in following.items() if version <= known.stages[stage].head.version}
    try:
        if later and all(known.exists(*place) for place in later.items()):
            until_ms = min(read(*place).time_ms for place in later.items()) - 1
            if until_ms >= moment.time_ms and _cut(known, moment.time_ms, read) == moment.stages:
                return replace(moment, until_ms=until_ms)
    except (Corruption, NotFound):
        pass  # no version of the moment: none that has to stay
    return moment


def _needed(known: Known, cut: Mapping[str, Manifest], read: Read) -> Iterator[tuple[str, int]]:
    for manifest in cut.values():
        yield manifest.stage, manifest.version
        for source in manifest.inputs.values():
            if source.upstream in cut:
                for version in range(source.version, cut[source.upstream].version):
                    if known.exists(source.upstream, version):
                        yield source.upstream, version
    seen: set[tuple[str, int]] = set()
    waiting = list(cut.values())
    while waiting:
        for source in waiting.pop().inputs.values():
            place = (source.upstream, source.version)
            if source.upstream and place not in seen and known.exists(*place):
                seen.add(place)
                waiting.append(read(*place))
                yield place
