"""What lies on an app's line between two moments: what a binary search over it needs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, log2
from types import MappingProxyType

from ...store.sst import ttl
from ...store.versions.aside import beside, owner
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut, order
from ..cut.line import Line

PROBES = 2
"""Moments looked at after the search on each side, for a history that was bad, then good, then bad again."""

Skips = Mapping[str, Collection[int]]
"""By stage, the versions that name moments which the predicate cannot judge."""

_NONE: Skips = MappingProxyType({})


@dataclass(frozen=True)
class Between:
    """The moments of a line after `low`, up to and with `high`.

    These are the prefixes that end with a commit in between; where versions were collected, those that are left.

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
        """The line, to be asked for what lies in between."""
        return self.whole.above(self.low) if self.is_whole else self.whole

    @cached_property
    def is_whole(self) -> bool:
        """Whether every version in between is there."""
        return self.whole.is_whole(self.low)

    def tables(self, cut: Cut) -> frozenset[str]:
        """The tables of the watched stages: their own, also where a cut does not have them, and those beside them."""
        return self.watched | {table for table in cut.tables if owner(table, cut.stages) in self.watched}

    def ordered(self) -> bool:
        """Whether `low` is nowhere later than `high`."""
        return all(
            stage in self.high.stages and manifest.version <= self.high.stages[stage].version
            for stage, manifest in self.low.stages.items()
        )

    def length(self, stage: str) -> int:
        """Number of the stage's versions in this stretch."""
        return self.high.stages[stage].version - self.lowest(stage)

    def differing(self) -> tuple[str, ...]:
        """The watched stages whose table may hold other rows in `high` than in `low`, upstream first."""
        return tuple(
            stage
            for stage in order(self.high.stages)
            if stage in self.watched and self._content(self.low, stage) != self._content(self.high, stage)
        )

    def evaluations_left(self) -> int:
        """How many evaluations a search will take from here, as far as one can tell."""
        if not self.is_whole:
            return len(self.whole.left_between(self.low, self.high)).bit_length()
        differing = self.differing()
        longest = max((self.length(stage) for stage in differing), default=1)
        return ceil(log2(max(longest, 1))) + ceil(log2(max(len(differing), 1))) + PROBES

    def content(self, cut: Cut) -> tuple[frozenset[object], ...]:
        """What decides the predicate at a cut: the same content, the same answer."""
        return tuple(self._content(cut, stage) for stage in sorted(self.watched))

    def middle(self, skips: Skips = _NONE) -> Cut | None:
        """A moment strictly between; None when at most one commit of a watched table is left, or no other moment.

        The longest stretch of a watched table's versions is halved. Where each of them is a single version, it is the
        middle one of these. None of `skips` is given: where they are on all sides, the stretches beside them are
        halved, those that end with a moment that could be judged first.
        """
        if not self.is_whole:
            left = self.whole.left_between(self.low, self.high)
            inside = [each for each in left if each.version not in skips.get(each.stage, ())]
            return self.whole.at(inside[len(inside) // 2]) if inside else None
        commit = self._middle(skips)
        return self.line.up_to(commit) if commit is not None else None

    def _middle(self, skips: Skips) -> Manifest | None:
        differing = self.differing()
        found = {stage: gap for stage in differing if (gap := self._gap(stage, skips)) is not None}
        if found:
            stage = max(found, key=lambda each: found[each][:2])
            _, length, low = found[stage]
            return self.line.read(stage, low + length // 2)
        left = sorted((self.high.stages[stage] for stage in differing), key=self.line.place)
        half = (len(left) - 1) // 2
        others = [each for each in left[:-1] if each.version not in skips.get(each.stage, ())]
        return min(others, key=lambda each: abs(left.index(each) - half), default=None)

    def _gap(self, stage: str, skips: Skips) -> tuple[bool, int, int] | None:
        """The stretch of the stage's versions to look into: whether one of its ends was judged, its length, its start.

        None when no version lies inside one.
        """
        low, high, skipped = self.lowest(stage), self.high.stages[stage].version, skips.get(stage, ())
        places = (low, *sorted(version for version in skipped if low < version < high), high)
        gaps = ((at == low not in skipped or to == high, to - at, at) for at, to in pairwise(places) if to - at > 1)
        return max(gaps, key=lambda gap: gap[:2], default=None)

    def only(self) -> Manifest | None:
        """When `middle` is None, the one commit of a watched table that is left; None without any, or with several."""
        left = self.differing()[:1] if self.is_whole else ()
        return next((self.high.stages[stage] for stage in left if self.length(stage) <= 1), None)

    def lowest(self, stage: str) -> int:
        """The stage's version in `low`; when it has none there, the number before its first."""
        return self.low.stages[stage].version if stage in self.low.stages else self.whole.first(stage) - 1

    def _content(self, cut: Cut, stage: str) -> frozenset[object]:
        """The SSTs of a stage's tables: the same ones hold the same rows, but for those expired since.

        Compaction replaces them, too. A migration shows the same rows in other columns.
        """
        if stage not in cut.stages:
            return frozenset()
        manifest = cut.stages[stage]
        content: set[object] = {ttl.shown_rows(sst, manifest.clock_ms) for sst in manifest.ssts}
        content |= {sst.object for each in beside(manifest) for sst in each.ssts}
        if manifest.table is not None and manifest.table.schema:
            content.add(manifest.table.schema)
        if self.channels:
            content |= {(name, read.offsets) for name, read in manifest.inputs.items()}
            content |= {(name, written.ends) for name, written in manifest.outputs.items()}
        return frozenset(content)


def length(prefix: Cut) -> int:
    """What grows from each moment of a line to the next: of two prefixes the longer holds the other."""
    return sum(prefix.versions.values())
