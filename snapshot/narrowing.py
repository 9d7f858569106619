"""Cuts between two cuts: what a binary search over the history of a whole app needs.

Consistent cuts are a lattice: of two, the earlier version of each stage makes a consistent cut, and so does
the later one. So between an early cut and a late one there is always a consistent cut that has any version we
like of one stage, until the two differ by a single commit.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from ..store import ttl
from ..store.manifest import Manifest
from .consistency import lower_receivers, raise_senders
from .timeline import newest_where
from .topology import Cut, descendants, order

__all__ = ["Between"]


@dataclass(frozen=True, slots=True)
class Between:
    """The stretch of history between two consistent cuts, `low` at or before `high` in every stage.

    `read` gets a stage's version; `first` is the first version of each stage that is kept. Of the tables of
    the stages in `watched` only, contents count; those of others may differ. With `channels`, so does how far they
    have read and written.
    """

    low: Cut
    high: Cut
    read: Callable[[str, int], Manifest]
    first: dict[str, int]
    watched: frozenset[str]
    channels: bool = False

    def ordered(self) -> bool:
        """Whether `low` is nowhere later than `high`."""
        return all(
            stage in self.high.stages and manifest.version <= self.high.stages[stage].version
            for stage, manifest in self.low.stages.items()
        )

    def lowest(self, stage: str) -> int:
        """The stage's version in `low`; when it has none there, the number before its first."""
        return self.low.stages[stage].version if stage in self.low.stages else self.first[stage] - 1

    def length(self, stage: str) -> int:
        """Number of the stage's versions after `low`, up to and with `high`."""
        return self.high.stages[stage].version - self.lowest(stage)

    def differing(self) -> tuple[str, ...]:
        """The watched stages whose table may hold other rows in `high` than in `low`, upstream first."""
        return tuple(
            stage
            for stage in order(self.high.stages)
            if stage in self.watched and self._content(self.low, stage) != self._content(self.high, stage)
        )

    def middle(self) -> Cut | None:
        """A consistent cut in the middle; None when at most one commit of one watched stage lies between.

        The longest stretch is halved: the stage's middle version, and the other stages as of its time. Where
        every stretch is a single version, half of the stages take theirs, senders first.
        """
        differing = self.differing()
        if not differing:
            return None
        longest = max(differing, key=self.length)
        if self.length(longest) > 1:
            return self._around(longest)
        if len(differing) > 1:
            return self._with(differing[: len(differing) // 2])
        return None

    def last_step(self) -> tuple[str, Cut, Cut]:
        """The stage that differs when `middle` is None, and two consistent cuts that differ by its commit.

        Their watched tables hold what those of `low` and `high` hold, and nothing else of them differs.
        """
        (stage,) = self.differing()
        later = descendants(self.high.stages, stage)
        shared = {
            other: (self.low if other in later else self.high).stages.get(other)
            for other in self.high.stages
            if other != stage
        }
        before = shared | {stage: self.low.stages.get(stage)}
        after = shared | {stage: self.high.stages[stage]}
        app = self.high.app
        return (
            stage,
            Cut(app, {name: manifest for name, manifest in before.items() if manifest is not None}),
            Cut(app, {name: manifest for name, manifest in after.items() if manifest is not None}),
        )

    def _around(self, stage: str) -> Cut:
        pinned = self.read(stage, (self.lowest(stage) + self.high.stages[stage].version) // 2)
        found = {stage: pinned}
        for other, highest in self.high.stages.items():
            if other == stage:
                continue
            # From the first version that may be taken: one of `low` itself needs no search.
            reached = newest_where(
                partial(self.read, other),
                self.lowest(other) + 1,
                highest.version,
                lambda manifest: manifest.time_ms <= pinned.time_ms,
            )
            if (manifest := reached or self.low.stages.get(other)) is not None:
                found[other] = manifest
        lowered = lower_receivers(found, stage, self.read, self._first_allowed)
        return Cut(self.high.app, raise_senders(lowered, self.read))

    def _with(self, stages: Collection[str]) -> Cut:
        """`low`, with these stages as in `high`, and whatever else that needs to be consistent."""
        taken = dict(self.low.stages) | {stage: self.high.stages[stage] for stage in stages}
        return Cut(self.high.app, raise_senders(taken, self.read))

    def _first_allowed(self, stage: str) -> int:
        return max(self.lowest(stage), self.first[stage])

    def _content(self, cut: Cut, stage: str) -> frozenset[object]:
        """The SSTs of a stage's table: the same ones hold the same rows, but for those expired since.

        Compaction replaces them, too.
        """
        if stage not in cut.stages:
            return frozenset()
        manifest = cut.stages[stage]
        content: set[object] = {ttl.shown_rows(sst, manifest.clock_ms) for sst in manifest.ssts}
        if self.channels:
            content |= {(name, read.offsets) for name, read in manifest.inputs.items()}
            content |= {(name, written.ends) for name, written in manifest.outputs.items()}
        return frozenset(content)
