"""Cuts of an app, the graph of their stages and channels, and the rules of consistency.

A cut is consistent if every row that a stage in the cut has consumed was sent by the sender's version in the cut
(Chandy and Lamport 1985). Manifests record the consumed and the sent versions. So any set of versions can be made
consistent later: either raise senders to the versions that their receivers consumed, or move receivers back to earlier
versions. Pure functions of manifests, which `moments.py` reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from ...store.sst import ttl
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest
from ...store.versions.side_tables import tables_of


@dataclass(frozen=True, slots=True)
class Thinned:
    """Requested time of a moment that garbage collection removed, and the time of the cut that was returned for it."""

    asked_ms: int
    answered_ms: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut of an app: the manifest of one version of each stage.

    Stages without a version at that moment are left out.
    """

    app: str
    stages: Mapping[str, Manifest]
    snapshot: str = ""
    seen_ms: int = 0
    """Time by which rows expire, for tables with a TTL by write time; 0 if each version's clock applies."""
    thinned: Thinned | None = None

    @property
    def versions(self) -> dict[str, int]:
        return {stage: self.stages[stage].version for stage in topological_order(self.stages)}

    @property
    def time_ms(self) -> int:
        return max((manifest.time_ms for manifest in self.stages.values()), default=0)

    def clock_ms(self, stage: str) -> int:
        """Return the time by which rows of a stage's table expire at this cut; 0 for side tables."""
        return ttl.read_clock_ms(self.stages[stage], self.seen_ms) if stage in self.stages else 0

    @property
    def tables(self) -> dict[str, Manifest]:
        """Manifests of all tables and side tables by table name, upstream stages first."""
        tables_by_stage = (tables_of(self.stages[stage], stage) for stage in topological_order(self.stages))
        return {name: manifest for tables in tables_by_stage for name, manifest in tables.items()}

    def table(self, name: str) -> Manifest | None:
        own = self.stages.get(name)
        return own if own is not None and own.table is not None else self.tables.get(name)

    def with_renamed_stages(self, later: Mapping[str, Manifest]) -> "Cut":
        renamed = {
            name: self.stages[former.stage]
            for name, head in later.items()
            if name not in self.stages
            for former in head.formerly
            if former.stage in self.stages
        }
        return replace(self, stages={**renamed, **self.stages}) if renamed else self

    @property
    def ref(self) -> str:
        if self.snapshot:
            return f"{self.app}@{self.snapshot}"
        return f"{self.app}({', '.join(f'{stage}@v{version}' for stage, version in self.versions.items())})"


@dataclass(frozen=True, slots=True)
class Channel:
    """Channel of a cut, for one receiver. If no stage reads the channel, `receiver` is empty and `input` is None."""

    name: str
    sender: str
    receiver: str = ""
    input: Input | None = None


def consumed_versions(manifest: Manifest) -> dict[str, int]:
    """Return the consumed version of each upstream stage; 0 if no version was consumed."""
    versions: dict[str, int] = {}
    for source in manifest.inputs.values():
        if source.upstream:
            # If a stage reads two channels of the same sender up to different versions, the cut needs the later
            # version.
            versions[source.upstream] = max(source.version, versions.get(source.upstream, 0))
    return versions


def topological_order(stages: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Return the stages in topological order, upstream first; unrelated stages are sorted by name.

    Stages in a cycle (which `App` refuses to declare) come last, by name.
    """
    remaining = {stage: {up for up in consumed_versions(stages[stage]) if up in stages} for stage in sorted(stages)}
    ordered: list[str] = []
    while remaining:
        next_stages = [stage for stage, upstream in remaining.items() if not upstream - set(ordered)]
        for stage in next_stages or list(remaining):
            ordered.append(stage)
            del remaining[stage]
    return tuple(ordered)


def downstream_stages(stages: Mapping[str, Manifest], stage: str) -> frozenset[str]:
    affected = {stage}
    for name in topological_order(stages):
        if affected & consumed_versions(stages[name]).keys():
            affected.add(name)
    return frozenset(affected - {stage})


def upstream_stages(stages: Mapping[str, Manifest], stage: str) -> tuple[str, ...]:
    """Return the stages whose rows reach a stage through channels, the nearest first."""
    reached = [stage]
    for name in reached:
        reached += sorted((consumed_versions(stages[name]).keys() & stages.keys()) - {*reached})
    return tuple(reached[1:])


def channels(cut: Cut) -> tuple[Channel, ...]:
    """Return the channels of a cut, upstream senders first: one entry per receiver, or one if there is no receiver."""
    result: list[Channel] = []
    stages = topological_order(cut.stages)
    for sender in stages:
        for name in sorted(cut.stages[sender].outputs):
            readers = [
                Channel(name, sender, receiver, source)
                for receiver in stages
                if (source := cut.stages[receiver].inputs.get(name)) is not None and source.upstream == sender
            ]
            result += readers or [Channel(name, sender)]
    return tuple(result)


def readers_by_channel(cut: Cut) -> tuple[tuple[Channel, ...], ...]:
    """Return the readers of each channel, the slowest reader first. The channels are in the order of `channels`."""
    # In a clone that has read nothing yet, readers of the same version may be at different offsets.
    by_name = (tuple(channel_readers) for _, channel_readers in groupby(channels(cut), attrgetter("name")))
    return tuple(tuple(sorted(channel_readers, key=_progress)) for channel_readers in by_name)


def _progress(reader: Channel) -> tuple[object, ...]:
    return (reader.input.version, reader.input.offsets) if reader.input is not None else ()


def violations(stages: Mapping[str, Manifest]) -> tuple[str, ...]:
    return tuple(
        f"{receiver}@v{manifest.version} consumed {sender}@v{version}, but the cut holds "
        + (f"{sender}@v{stages[sender].version}" if sender in stages else f"no version of {sender}")
        for receiver, manifest in stages.items()
        for sender, version in consumed_versions(manifest).items()
        if version > (stages[sender].version if sender in stages else 0)
    )


def raise_senders(stages: Mapping[str, Manifest], read: Callable[[str, int], Manifest]) -> dict[str, Manifest]:
    """Return the smallest consistent cut with these or later versions. The function `read` reads a stage's version."""
    raised = dict(stages)
    while True:
        previous = dict(raised)
        # Receivers first, because a raised sender may itself have consumed more.
        for receiver in reversed(topological_order(raised)):
            for sender, version in consumed_versions(raised[receiver]).items():
                if version > (raised[sender].version if sender in raised else 0):
                    raised[sender] = read(sender, version)
        if raised == previous:
            return raised


def lower_receivers(
    stages: Mapping[str, Manifest], pinned: str, read: Callable[[str, int], Manifest], first: Callable[[str], int]
) -> dict[str, Manifest]:
    """Return a consistent cut with the version `pinned`, and with earlier versions of stages downstream of it.

    Needed if versions are chosen by time and clocks differ. The function `read` reads a stage's version. The function
    `first` returns the lowest version to which a stage may be moved back. The cut omits a stage that would have to be
    moved back further.
    """
    lowered = dict(stages)
    receivers = downstream_stages(stages, pinned)
    for receiver in filter(receivers.__contains__, topological_order(stages)):
        limits = {stage: lowered[stage].version if stage in lowered else 0 for stage in (pinned, *receivers)}

        def within(manifest: Manifest, limits: dict[str, int] = limits) -> bool:
            return all(version <= limits.get(stage, version) for stage, version in consumed_versions(manifest).items())

        earlier = history.newest_where(read, first, lowered.pop(receiver), within)
        if earlier is not None:
            lowered[receiver] = earlier
    return lowered
