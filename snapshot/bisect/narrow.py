"""The search itself: a stretch of the line is narrowed down to one commit, or to those that nothing can be said of.

As git's bisect does it on a linear history: a moment that cannot be judged is passed over and another one taken, until
none is left between the last good and the first bad one. Which stretches are looked into first is our own: those beside
a moment that could be judged (see `Between.middle`), so that a column which came late is found in a few steps.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log2

from ..cut.graph import Cut
from .judge import Judge
from .lattice import Between

_PROBES = 2
"""Prefixes looked at after the search on each side, for a history that was bad, then good, then bad again."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What is left of a stretch."""

    between: Between
    """From a good moment to a bad one; nothing in between could be judged."""
    good: tuple[Cut, ...]
    """Prefixes that are good, each nearer to the verdict than the one before it."""
    bad: tuple[Cut, ...]
    """Prefixes that are bad, likewise."""
    certain: bool
    """Whether a single commit is left that can have made it bad."""


def narrow(judge: Judge, between: Between) -> Narrowed:
    """Halve a stretch, whose ends are judged, as far as that goes. Raises as `Predicate.rows`."""
    good, bad = [between.low], [between.high]
    skips: dict[str, set[int]] = {stage: set() for stage in between.watched}
    lacking: dict[str, list[int]] = {stage: [] for stage in between.watched}
    low = judge.judge(between.low, 0)
    if low.answer == "skip":
        for stage in between.watched:
            _skip(skips[stage], lacking[stage], between.lowest(stage), lacks=low.lacks)
    while (cut := _next(judge, between, skips)) is not None:
        step = judge.judge(cut, evaluations_left(between) - 1)
        if step.answer == "bad":
            between = replace(between, high=cut)
            bad.append(cut)
        elif step.answer == "good":
            between = replace(between, low=cut)
            good.append(cut)
        elif (commit := between.line.last(cut)) is not None:
            _skip(skips[commit.stage], lacking[commit.stage], commit.version, lacks=step.lacks)
    return Narrowed(between, tuple(good), tuple(bad), _is_certain(judge, between))


def probe(judge: Judge, found: Narrowed) -> None:
    """Look into the widest stretches that the search jumped over, where nothing proves the order."""
    cuts: list[Cut] = []
    for chain in (found.good, found.bad[::-1]):
        gaps = [replace(judge.between, low=low, high=high) for low, high in pairwise(chain)]
        gaps.sort(key=lambda gap: sum(gap.length(stage) for stage in gap.differing()), reverse=True)
        commits = ((gap, gap.middle()) for gap in gaps[:_PROBES])
        cuts += [gap.line.up_to(commit) for gap, commit in commits if commit is not None]
    for number, cut in enumerate(cuts, 1):
        judge.judge(cut, len(cuts) - number)


def evaluations_left(between: Between) -> int:
    """How many evaluations it will take from here, as far as one can tell."""
    differing = between.differing()
    longest = max((between.length(stage) for stage in differing), default=1)
    return ceil(log2(max(longest, 1))) + ceil(log2(max(len(differing), 1))) + _PROBES


def length(prefix: Cut) -> int:
    """What grows from each prefix of a line to the next: of two prefixes the longer holds the other."""
    return sum(prefix.versions.values())


def _next(judge: Judge, between: Between, skips: dict[str, set[int]]) -> Cut | None:
    """The prefix to look at next, None when no other can be."""
    if (commit := between.middle(skips)) is not None:
        return between.line.up_to(commit)
    commit = between.only()
    if commit is None or between.length(commit.stage) > 1:
        return None
    # Commits of other watched tables that were undone may lie beside it: then both its sides must be looked at.
    before, up_to = between.line.before(commit), between.line.up_to(commit)
    if judge.judge(before, 0).answer == "bad":
        return before
    return up_to if judge.judge(up_to, 0).answer == "good" else None


def _is_certain(judge: Judge, between: Between) -> bool:
    differing, commit = between.differing(), between.only()
    if commit is None or len(differing) > 1 or between.length(commit.stage) > 1:
        return False
    sides = between.line.before(commit), between.line.up_to(commit)
    return [judge.judge(side, 0).answer for side in sides] == ["good", "bad"]


def _skip(skips: set[int], lacking: list[int], version: int, *, lacks: bool) -> None:
    """Pass over a version; when it lacks a column, also those between it and the next ones that lack it, too."""
    skips.add(version)
    if lacks:
        for other in (
            max((each for each in lacking if each < version), default=version),
            min((each for each in lacking if each > version), default=version),
        ):
            skips.update(range(min(other, version), max(other, version)))
        lacking.append(version)
