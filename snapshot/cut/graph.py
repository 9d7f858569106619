"""A cut, and how its stages hang together: who reads whose channel, as the manifests' inputs say; making it consistent.

A cut is consistent when nothing is received in it that was not sent. Every manifest says what it consumed and what it
produced, so any versions become a consistent cut after the fact: raise every sender to what its receivers had consumed
(Chandy and Lamport 1985), or take receivers back. Pure: manifests in, answers out. `moments.py` finds them.
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
    """What was asked for and what it is answered with, where garbage collection has left another moment only."""

    asked_ms: int
    """The time that was asked for; for a version, when it was committed."""
    answered_ms: int
    """The time of the cut that is left."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One version per stage of an app, as manifests. Stages without a version at that moment are left out."""

    app: str
    stages: Mapping[str, Manifest]
    snapshot: str = ""
    """The snapshot that names this cut; empty for any other moment."""
    seen_ms: int = 0
    """When a person looks: rows that expire by write time go on doing so until the next version. 0 to see each version
    as it was committed, whenever one looks."""
    thinned: Thinned | None = None
    """Set when the history was thinned out at the moment asked for, and this is not what the whole would have given."""

    @property
    def versions(self) -> dict[str, int]:
        """The version of each stage, upstream first."""
        return {stage: self.stages[stage].version for stage in order(self.stages)}

    @property
    def time_ms(self) -> int:
        """When the newest commit of the cut was made; 0 for the empty cut."""
        return max((manifest.time_ms for manifest in self.stages.values()), default=0)

    def clock_ms(self, stage: str) -> int:
        """The clock by which rows of a stage's table are expired at this cut; 0 for tables beside it."""
        return ttl.seen_clock_ms(self.stages[stage], self.seen_ms) if stage in self.stages else 0

    @property
    def tables(self) -> dict[str, Manifest]:
        """The tables by name, upstream first, each as a version that has it as its table: also those beside others."""
        each = (tables_of(self.stages[stage], stage) for stage in order(self.stages))
        return {name: manifest for tables in each for name, manifest in tables.items()}

    def table(self, name: str) -> Manifest | None:
        """One of `tables`, or None: a stage's own is found without a look at the others."""
        own = self.stages.get(name)
        return own if own is not None and own.table is not None else self.tables.get(name)

    def under_names_of(self, later: Mapping[str, Manifest]) -> "Cut":
        """The cut with stages that got another name since under that, too, as far as these later versions say so."""
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
        """A short name for people: `flights@before-upgrade`, or `flights(legs@v7, routes@v5)`."""
        if self.snapshot:
            return f"{self.app}@{self.snapshot}"
        return f"{self.app}({', '.join(f'{stage}@v{version}' for stage, version in self.versions.items())})"


@dataclass(frozen=True, slots=True)
class Channel:
    """One edge of the cut's graph. While nobody reads the channel, `receiver` is empty and `input` None."""

    name: str
    sender: str
    receiver: str = ""
    input: Input | None = None


def consumed(manifest: Manifest) -> dict[str, int]:
    """The version of each upstream stage that this version has consumed, 0 for none yet."""
    versions: dict[str, int] = {}
    for source in manifest.inputs.values():
        if source.upstream:
            # Two channels of one sender may have been read to different versions: the larger binds the cut.
            versions[source.upstream] = max(source.version, versions.get(source.upstream, 0))
    return versions


def order(stages: Mapping[str, Manifest]) -> tuple[str, ...]:
    """The stages upstream first; among equals by name, so that every caller sees the same order.

    Stages that read each other in a circle (which `App` refuses to declare) come last, by name.
    """
    waiting = {stage: {up for up in consumed(stages[stage]) if up in stages} for stage in sorted(stages)}
    placed: list[str] = []
    while waiting:
        ready = [stage for stage, upstream in waiting.items() if not upstream - set(placed)]
        for stage in ready or list(waiting):
            placed.append(stage)
            del waiting[stage]
    return tuple(placed)


def descendants(stages: Mapping[str, Manifest], stage: str) -> frozenset[str]:
    """Every stage that gets something of `stage`'s, over any number of channels; without `stage` itself."""
    found = {stage}
    for name in order(stages):
        if found & consumed(stages[name]).keys():
            found.add(name)
    return frozenset(found - {stage})


def channels(cut: Cut) -> tuple[Channel, ...]:
    """Every channel once per receiver, senders upstream first; one that nobody reads in the cut once."""
    found: list[Channel] = []
    stages = order(cut.stages)
    for sender in stages:
        for name in sorted(cut.stages[sender].outputs):
            readers = [
                Channel(name, sender, receiver, source)
                for receiver in stages
                if (source := cut.stages[receiver].inputs.get(name)) is not None and source.upstream == sender
            ]
            found += readers or [Channel(name, sender)]
    return tuple(found)


def readers(cut: Cut) -> tuple[tuple[Channel, ...], ...]:
    """`channels`, each with its readers together: the one that is furthest behind comes first."""
    # In a clone that has read nothing yet, readers stand at different offsets before one and the same version.
    each = (tuple(found) for _, found in groupby(channels(cut), attrgetter("name")))
    return tuple(tuple(sorted(found, key=_progress)) for found in each)


def _progress(reader: Channel) -> tuple[object, ...]:
    return (reader.input.version, reader.input.offsets) if reader.input is not None else ()


def violations(stages: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Each way in which something is consumed that was not sent, as a sentence; none means consistent."""
    return tuple(
        f"{receiver}@v{manifest.version} consumed {sender}@v{version}, but the cut holds "
        + (f"{sender}@v{stages[sender].version}" if sender in stages else f"no version of {sender}")
        for receiver, manifest in stages.items()
        for sender, version in consumed(manifest).items()
        if version > (stages[sender].version if sender in stages else 0)
    )


def raise_senders(stages: Mapping[str, Manifest], read: Callable[[str, int], Manifest]) -> dict[str, Manifest]:
    """The least consistent cut with each of these versions or a later one. `read` gets a stage's version."""
    raised = dict(stages)
    while True:
        before = dict(raised)
        # Receivers first: a raised sender may itself have consumed more.
        for receiver in reversed(order(raised)):
            for sender, version in consumed(raised[receiver]).items():
                if version > (raised[sender].version if sender in raised else 0):
                    raised[sender] = read(sender, version)
        if raised == before:
            return raised


def lower_receivers(
    stages: Mapping[str, Manifest],
    pinned: str,
    read: Callable[[str, int], Manifest],
    first: Callable[[str], int],
) -> dict[str, Manifest]:
    """Take back every stage that got something of `pinned`'s that `pinned` has not sent at its version.

    Versions that were taken by time need it where the clocks of two machines differ. The result is consistent and has
    `pinned` exactly as it is. `first` is the lowest version a stage may go back to; a stage that would have to go
    further is left out.
    """
    lowered = dict(stages)
    receivers = descendants(stages, pinned)
    for receiver in filter(receivers.__contains__, order(stages)):
        limits = {stage: lowered[stage].version if stage in lowered else 0 for stage in (pinned, *receivers)}

        def within(manifest: Manifest, limits: dict[str, int] = limits) -> bool:
            return all(version <= limits.get(stage, version) for stage, version in consumed(manifest).items())

        kept = history.newest_where(read, first, lowered.pop(receiver), within)
        if kept is not None:
            lowered[receiver] = kept
    return lowered
