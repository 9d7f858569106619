"""The stretch of an app's line between two of its prefixes: what a binary search over it needs."""

from dataclasses import dataclass
from functools import cached_property

from ...store.sst import ttl
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut, order
from ..cut.line import Line


@dataclass(frozen=True)
class Between:
    """The commits of a line after the prefix `low`, up to and with the prefix `high`.

    Of the tables of the stages in `watched` only, contents count; those of others may differ. With `channels`, so does
    how far they have read and written.
    """

    whole: Line
    low: Cut
    high: Cut
    watched: frozenset[str]
    channels: bool = False

    @cached_property
    def line(self) -> Line:
        """The line, to be asked for what lies in this stretch."""
        return self.whole.above(self.low)

    def ordered(self) -> bool:
        """Whether `low` is nowhere later than `high`."""
        return all(
            stage in self.high.stages and manifest.version <= self.high.stages[stage].version
            for stage, manifest in self.low.stages.items()
        )

    def length(self, stage: str) -> int:
        """Number of the stage's versions in this stretch."""
        return self.high.stages[stage].version - self._lowest(stage)

    def differing(self) -> tuple[str, ...]:
        """The watched stages whose table may hold other rows in `high` than in `low`, upstream first."""
        return tuple(
            stage
            for stage in order(self.high.stages)
            if stage in self.watched and self._content(self.low, stage) != self._content(self.high, stage)
        )

    def content(self, cut: Cut) -> tuple[frozenset[object], ...]:
        """What decides the predicate at a cut: the same content, the same answer."""
        return tuple(self._content(cut, stage) for stage in sorted(self.watched))

    def middle(self) -> Manifest | None:
        """A commit whose prefix lies strictly between; None when at most one commit of a watched table is left.

        The longest stretch of a watched table's versions is halved. Where each of them is a single version, it is the
        middle one of these.
        """
        differing = self.differing()
        longest = max(differing, key=self.length, default="")
        if longest and self.length(longest) > 1:
            return self.line.read(longest, (self._lowest(longest) + self.high.stages[longest].version) // 2)
        left = sorted((self.high.stages[stage] for stage in differing), key=self.line.place)
        return left[(len(left) - 1) // 2] if len(left) > 1 else None

    def only(self) -> Manifest | None:
        """When `middle` is None, the one commit of a watched table that is left; None without any."""
        return next((self.high.stages[stage] for stage in self.differing()), None)

    def _lowest(self, stage: str) -> int:
        """The stage's version in `low`; when it has none there, the number before its first."""
        return self.low.stages[stage].version if stage in self.low.stages else self.whole.first(stage) - 1

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
