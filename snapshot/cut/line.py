"""The app's line: all its commits in one order, of which every moment without a name is a prefix.

A commit's *effective time* is the smaller of its own time and the effective times of the later commits that depend on
it: those of its stage, and of receivers that had consumed it. So a sender whose clock is ahead is pulled forward to its
first receiver. The line orders commits by effective time; of one instant senders come first, and then stages by name.

It extends causality, so each of its prefixes is a consistent cut, and two neighbours differ by one commit. The commits
with an effective time up to T are those of that time, with what these had consumed: `app@T`. The prefix that ends with
a commit is `app/stage@vN`. What a stage has consumed only grows, so a place on the line is found by binary searches.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary
from ...store.versions.manifest import Manifest
from .graph import Cut, consumed, order, raise_senders


@dataclass(frozen=True, slots=True)
class KeptMoment:
    """A moment that is left where history was collected around it."""

    stage: str
    version: int
    """No earlier moment has this version of this stage, so it names the moment."""
    time_ms: int
    versions: Mapping[str, int]


@dataclass(frozen=True)
class Line:
    """The line of an app up to a consistent cut, which is all of it that is looked at.

    Where garbage collection took versions, moments before the whole line may be left: they come first, by their times.
    """

    store: ObjectStore
    heads: Cut
    """The newest version of each stage: with the same heads, the line is the same."""
    limit: Boundary = NOTHING_COLLECTED
    """What was collected. Without it, only the whole line may be asked about."""
    floor: Mapping[str, int] = field(default_factory=dict)
    """Versions of a prefix. Searches begin behind it, so only commits that lie behind it may be asked about."""
    _firsts: dict[str, int] = field(default_factory=dict, init=False, compare=False)

    def above(self, low: Cut) -> "Line":
        """The same line, to be asked for what lies behind a prefix only."""
        return replace(self, floor=low.versions)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """Which stage comes first of those that committed at one instant: senders before receivers."""
        return {stage: rank for rank, stage in enumerate(order(self.heads.stages))}

    def read(self, stage: str, version: int) -> Manifest:
        """A commit of the line."""
        return history.read(self.store, self.heads.app, stage, version)

    def first(self, stage: str) -> int:
        """The version with which the stage's whole history begins."""
        if stage not in self._firsts:
            self._firsts[stage] = history.first_version(self.store, self.heads.app, stage)
        return self._firsts[stage]

    @cached_property
    def left(self) -> tuple[KeptMoment, ...]:
        """The moments before the whole line, the oldest first."""
        found: list[KeptMoment] = []
        earlier: Mapping[str, int] = {}
        for each in self.limit.moments:
            new = (stage for stage, version in each.stages.items() if earlier.get(stage) != version)
            stage, earlier = next(new, next(iter(each.stages))), each.stages
            found.append(KeptMoment(stage, each.stages[stage], each.time_ms, each.stages))
        return tuple(found)

    def left_between(self, low: Cut, high: Cut) -> tuple[KeptMoment, ...]:
        """The moments before the whole line that come after one and before another."""
        return self.left[self._number_left(low)[1] : self._number_left(high)[0]]

    def is_left(self, cut: Cut) -> bool:
        """Whether a cut is one of the moments before the whole line."""
        before, up_to = self._number_left(cut)
        return before < up_to

    def at(self, left: KeptMoment) -> Cut:
        """One of the moments before the whole line."""
        return self._cut({stage: self.read(stage, version) for stage, version in left.versions.items()})

    def is_whole(self, cut: Cut) -> bool:
        """Whether a cut lies where no version was collected."""
        return self.limit.is_whole(cut.versions)

    def _number_left(self, cut: Cut) -> tuple[int, int]:
        """How many moments before the whole line come before a cut; and with it, where it is one of them."""
        if self.is_whole(cut):
            return len(self.left), len(self.left)
        # These moments have no stages that were retired by then.
        there = {stage: each.version for stage, each in cut.stages.items() if not each.retired}
        for number, left in enumerate(self.left):
            if left.versions in (there, cut.versions):
                return number, number + 1
        return (bisect_left(self.left, cut.time_ms, key=lambda left: left.time_ms),) * 2

    def place(self, commit: Manifest) -> tuple[int, int, int]:
        """Where a commit stands: its effective time, the rank of its stage, its version. What is smaller comes first.

        The effective time is the earliest of a commit that depends on this one, itself included.
        """
        is_whole = commit.version >= self.limit.first.get(commit.stage, 0)
        dependents = self.dependents(commit).values() if is_whole else ()
        time_ms = min(each.time_ms for each in (commit, *dependents))
        return time_ms, self.ranks[commit.stage], commit.version

    def up_to(self, commit: Manifest) -> Cut:
        """The prefix that ends with this commit."""
        time_ms, rank, _ = self.place(commit)
        of_then, earlier = self._of_time(time_ms), self._of_time(time_ms - 1)
        found = {stage: (of_then if each < rank else earlier).get(stage) for stage, each in self.ranks.items()}
        found[commit.stage] = commit
        return self._cut(found)

    def before(self, commit: Manifest) -> Cut:
        """The prefix that ends right before this commit; the empty cut when it is the first."""
        found: dict[str, Manifest | None] = dict(self.up_to(commit).stages)
        began = commit.version <= self.first(commit.stage)
        found[commit.stage] = None if began else self.read(commit.stage, commit.version - 1)
        return self._cut(found)

    def last(self, prefix: Cut) -> Manifest | None:
        """The commit that a prefix ends with, None for the empty one; of a moment before the line, what names it."""
        before, up_to = self._number_left(prefix)
        if before < up_to:
            return self.read(self.left[before].stage, self.left[before].version)
        return max(prefix.stages.values(), key=self.place, default=None)

    def ref(self, prefix: Cut) -> str:
        """The ref of a prefix, or of a moment before the line; empty for the moment before the first commit."""
        commit = self.last(prefix)
        return f"{commit.app}/{commit.stage}@v{commit.version}" if commit is not None else ""

    def within(self, cut: Cut) -> Cut:
        """The longest prefix that lies within a cut: the cut itself, if it is a prefix."""
        beyond = [
            self.read(stage, version)
            for stage, head in self.heads.stages.items()
            if (version := cut.stages[stage].version + 1 if stage in cut.stages else self.first(stage)) <= head.version
        ]
        return self.before(min(beyond, key=self.place)) if beyond else self._cut(self.heads.stages)

    def around(self, cut: Cut) -> Cut:
        """The shortest prefix that holds all of a cut: the cut itself, if it is a prefix."""
        last = self.last(cut)
        return self.up_to(last) if last else self._cut({})

    def beginning(self) -> Cut:
        """The shortest prefix that holds what all history begins with: tables of a clone or an init, or what gc left.

        Otherwise a history begins with nothing. Then it is the line's first commit, if that brings no rows, else empty.
        """
        firsts = [self.read(stage, self.first(stage)) for stage in self.heads.stages]
        brought = [
            commit for commit in firsts if commit.traits.brings_rows or (commit.version > 1 and not commit.former_name)
        ]
        if brought:
            return self.up_to(max(brought, key=self.place))
        earliest = min(firsts, key=self.place, default=None)
        return self._cut({} if earliest is None or earliest.ssts else {earliest.stage: earliest})

    def dependents(self, commit: Manifest) -> dict[str, Manifest]:
        """Of each stage that got something of a commit's, over any number of channels, the first version that did."""
        earliest = {commit.stage: commit}

        def independent(manifest: Manifest) -> bool:
            read = consumed(manifest)
            return not any(read.get(sender, 0) >= sent.version for sender, sent in earliest.items())

        for stage in self.ranks:
            head = self.heads.stages[stage]
            last = history.newest_where(self.read, self._lowest, head, independent) if stage != commit.stage else head
            if last is not head:
                first = last.version + 1 if last else min(self._lowest(stage), head.version)
                earliest[stage] = self.read(stage, first)
        del earliest[commit.stage]
        return earliest

    def _of_time(self, time_ms: int) -> dict[str, Manifest]:
        """The commits with an effective time up to this one, as the newest of each stage."""
        found = {}
        for stage, head in self.heads.stages.items():
            newest = history.newest_where(self.read, self._lowest, head, lambda manifest: manifest.time_ms <= time_ms)
            if newest is None and stage in self.floor:
                newest = self.read(stage, self.floor[stage])
            if newest is not None:
                found[stage] = newest
        return raise_senders(found, self.read)

    def _lowest(self, stage: str) -> int:
        return self.floor[stage] + 1 if stage in self.floor else self.first(stage)

    def _cut(self, found: Mapping[str, Manifest | None]) -> Cut:
        """A prefix; one that ends amidst a rewind has all of it, for what stages have read and sent fits only then."""
        there = {stage: commit for stage, commit in found.items() if commit is not None}
        number = max((commit.migration for commit in there.values() if commit.rewind is not None), default=0)
        for stage, head in self.heads.stages.items() if number else ():
            if head.migration >= number and (stage not in there or there[stage].migration < number):
                done = history.first_where(self.read, self.first, head, lambda each: each.migration >= number)
                there[stage] = self.read(stage, done)
        return Cut(self.heads.app, there)


def newest_first(
    store: ObjectStore, app: str, heads: Mapping[str, Manifest], *, left: bool = False
) -> Iterator[Manifest]:
    """The line from its end, the newest commit first; reads one manifest ahead for each stage.

    `heads` is a consistent cut, or one stage alone. Of a stage whose history was collected come those versions from
    which on it is whole; with `left` then also those left before.
    """
    limit = horizon.newest(store, app)
    ranks = {stage: rank for rank, stage in enumerate(order(heads))}
    ahead, last_ms = dict(heads), max((head.time_ms for head in heads.values()), default=0)

    def place(commit: Manifest) -> tuple[int, int]:
        # All that depends on it has come, and the last that came is the earliest of what has. So its effective time is
        # that of the last, if that is before its own.
        return min(commit.time_ms, last_ms), ranks[commit.stage]

    while ahead:
        # What something left depends on cannot be next.
        needed = [read for each in ahead.values() for read in consumed(each).items()]
        free = [one for one in ahead.values() if not any(s == one.stage and v >= one.version for s, v in needed)]
        commit = max(free or ahead.values(), key=place)
        last_ms = min(commit.time_ms, last_ms)
        yield commit
        del ahead[commit.stage]
        number = limit.before(commit.stage, commit.version)
        is_next = left or number >= limit.first.get(commit.stage, 0)
        if number and is_next and not commit.begins and (found := history.find(store, app, commit.stage, number)):
            ahead[commit.stage] = found
