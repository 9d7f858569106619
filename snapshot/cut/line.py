"""Line of an app: all commits in an order in which every prefix is a consistent cut.

A commit's *effective time* is the smallest of its own time and the times of all commits that depend on it: later
commits of the stage, and commits of receivers that consumed the commit. So if a sender's clock is ahead, the line
places the sender's commit before the first commit that consumed it. The line orders commits by effective time, then
senders before receivers, then by stage name.

The order extends causality, so each prefix is a consistent cut, and two neighbouring prefixes differ by one commit.
`app@T` is the prefix of all commits with an effective time up to T. `app/stage@vN` is the prefix that ends with that
commit. Consumed versions only grow, so positions on the line are found by binary search.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary
from ...store.versions.manifest import Manifest
from ...store.versions.pages.stored import StagePages
from .graph import Cut, consumed_versions, raise_senders, topological_order


@dataclass(frozen=True, slots=True)
class KeptMoment:
    """Moment that garbage collection kept when it deleted the versions around it."""

    stage: str
    version: int
    time_ms: int
    versions: Mapping[str, int]


@dataclass(frozen=True)
class Line:
    """Line of an app up to a consistent cut.

    If garbage collection deleted versions, the line starts with single moments that were kept, in order of time.
    """

    store: ObjectStore
    heads: Cut
    limit: Boundary = NOTHING_COLLECTED
    """Boundary of the collected history; by default, all versions exist."""
    floor: Mapping[str, int] = field(default_factory=dict)
    """Versions of a prefix of the line, by stage. Only commits after this prefix may be queried."""
    _firsts: dict[str, int] = field(default_factory=dict, init=False, compare=False)
    _pages: dict[str, StagePages | None] = field(default_factory=dict, init=False, compare=False)

    def above(self, low: Cut) -> "Line":
        return replace(self, floor=low.versions)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        return {stage: rank for rank, stage in enumerate(topological_order(self.heads.stages))}

    def read(self, stage: str, version: int) -> Manifest:
        return history.read(self.store, self.heads.app, stage, version)

    def outline(self, stage: str, version: int) -> Manifest:
        """Return the outline of a version from its page; if no page has the version, the whole manifest."""
        pages = self._pages_of(stage)
        return (pages.outline(version) if pages is not None else None) or self.read(stage, version)

    def _pages_of(self, stage: str) -> StagePages | None:
        if stage not in self._pages:
            self._pages[stage] = history.pages_of(self.store, self.heads.stages[stage], self._lowest(stage))
        return self._pages[stage]

    def first_version(self, stage: str) -> int:
        if stage not in self._firsts:
            self._firsts[stage] = history.first_version(self.store, self.heads.app, stage)
        return self._firsts[stage]

    @cached_property
    def kept_moments(self) -> tuple[KeptMoment, ...]:
        moments: list[KeptMoment] = []
        earlier: Mapping[str, int] = {}
        for moment_cut in self.limit.moments:
            new = (stage for stage, version in moment_cut.stages.items() if earlier.get(stage) != version)
            stage, earlier = next(new, next(iter(moment_cut.stages))), moment_cut.stages
            moments.append(KeptMoment(stage, moment_cut.stages[stage], moment_cut.time_ms, moment_cut.stages))
        return tuple(moments)

    def kept_between(self, low: Cut, high: Cut) -> tuple[KeptMoment, ...]:
        return self.kept_moments[self._kept_range(low)[1] : self._kept_range(high)[0]]

    def is_kept(self, cut: Cut) -> bool:
        start, end = self._kept_range(cut)
        return start < end

    def cut_of_moment(self, moment: KeptMoment) -> Cut:
        return self._consistent_cut({stage: self.read(stage, version) for stage, version in moment.versions.items()})

    def is_whole(self, cut: Cut) -> bool:
        return self.limit.has_complete_history(cut.versions)

    def _kept_range(self, cut: Cut) -> tuple[int, int]:
        """Return the start and end index of a cut in `kept_moments`; an empty range if the cut is no kept moment."""
        if self.is_whole(cut):
            return len(self.kept_moments), len(self.kept_moments)
        # Kept moments do not include retired stages.
        active = {stage: manifest.version for stage, manifest in cut.stages.items() if not manifest.retired}
        for number, moment in enumerate(self.kept_moments):
            if moment.versions in (active, cut.versions):
                return number, number + 1
        return (bisect_left(self.kept_moments, cut.time_ms, key=lambda moment: moment.time_ms),) * 2

    def sort_key(self, commit: Manifest) -> tuple[int, int, int]:
        """Return the sort key of a commit on the line: effective time, rank of the stage, version number."""
        is_whole = commit.version >= self.limit.first.get(commit.stage, 0)
        dependents = self.dependents(commit).values() if is_whole else ()
        time_ms = min(dependent.time_ms for dependent in (commit, *dependents))
        return time_ms, self.ranks[commit.stage], commit.version

    def prefix_up_to(self, commit: Manifest) -> Cut:
        time_ms, rank, _ = self.sort_key(commit)
        at_time, earlier = self._up_to_time(time_ms), self._up_to_time(time_ms - 1)
        versions = {
            stage: (at_time if stage_rank < rank else earlier).get(stage) for stage, stage_rank in self.ranks.items()
        }
        versions[commit.stage] = commit
        return self._consistent_cut(versions)

    def prefix_before(self, commit: Manifest) -> Cut:
        versions: dict[str, Manifest | None] = dict(self.prefix_up_to(commit).stages)
        is_first = commit.version <= self.first_version(commit.stage)
        versions[commit.stage] = None if is_first else self.read(commit.stage, commit.version - 1)
        return self._consistent_cut(versions)

    def last_commit(self, prefix: Cut) -> Manifest | None:
        """Return the last commit of a prefix; None for the empty prefix.

        For a moment that garbage collection kept, returns the commit in the ref of the moment.
        """
        start, end = self._kept_range(prefix)
        if start < end:
            return self.read(self.kept_moments[start].stage, self.kept_moments[start].version)
        return max(prefix.stages.values(), key=self.sort_key, default=None)

    def ref(self, prefix: Cut) -> str:
        commit = self.last_commit(prefix)
        return f"{commit.app}/{commit.stage}@v{commit.version}" if commit is not None else ""

    def longest_prefix_within(self, cut: Cut) -> Cut:
        """Return the longest prefix of the line in which every stage is at most as new as in the cut."""
        beyond = [
            self.read(stage, version)
            for stage, head in self.heads.stages.items()
            if (version := cut.stages[stage].version + 1 if stage in cut.stages else self.first_version(stage))
            <= head.version
        ]
        return self.prefix_before(min(beyond, key=self.sort_key)) if beyond else self._consistent_cut(self.heads.stages)

    def shortest_prefix_around(self, cut: Cut) -> Cut:
        last = self.last_commit(cut)
        return self.prefix_up_to(last) if last else self._consistent_cut({})

    def beginning(self) -> Cut:
        """Return the shortest prefix that contains the app's initial rows.

        Initial rows are the rows of a clone's first versions, the rows that `init` wrote, or, if older versions were
        collected, the rows of the oldest kept versions. Without initial rows, returns the empty cut, or the cut of the
        first commit if that commit wrote no rows.
        """
        firsts = [self.read(stage, self.first_version(stage)) for stage in self.heads.stages]
        initial = [
            commit for commit in firsts if commit.traits.brings_rows or (commit.version > 1 and not commit.former_name)
        ]
        if initial:
            return self.prefix_up_to(max(initial, key=self.sort_key))
        earliest = min(firsts, key=self.sort_key, default=None)
        return self._consistent_cut({} if earliest is None or earliest.ssts else {earliest.stage: earliest})

    def dependents(self, commit: Manifest) -> dict[str, Manifest]:
        earliest = {commit.stage: commit}

        def independent(manifest: Manifest) -> bool:
            read = consumed_versions(manifest)
            return not any(read.get(sender, 0) >= sent.version for sender, sent in earliest.items())

        for stage in self.ranks:
            head = self.heads.stages[stage]
            last = (
                history.newest_where(self.outline, self._lowest, head, independent) if stage != commit.stage else head
            )
            if last is not head:
                first = last.version + 1 if last else min(self._lowest(stage), head.version)
                earliest[stage] = self.read(stage, first)
        del earliest[commit.stage]
        return earliest

    def _up_to_time(self, time_ms: int) -> dict[str, Manifest]:
        newest_by_stage = {}
        for stage, head in self.heads.stages.items():
            newest = history.newest_at(self.store, head, self._lowest(stage), time_ms, self._pages_of(stage))
            if newest is None and stage in self.floor:
                newest = self.read(stage, self.floor[stage])
            if newest is not None:
                newest_by_stage[stage] = newest
        return raise_senders(newest_by_stage, self.read)

    def _lowest(self, stage: str) -> int:
        return self.floor[stage] + 1 if stage in self.floor else self.first_version(stage)

    def _consistent_cut(self, manifests: Mapping[str, Manifest | None]) -> Cut:
        present = {stage: commit for stage, commit in manifests.items() if commit is not None}
        number = max((commit.migration for commit in present.values() if commit.rewind is not None), default=0)
        for stage, head in self.heads.stages.items() if number else ():
            if head.migration >= number and (stage not in present or present[stage].migration < number):
                done = history.first_where(
                    self.outline, self.first_version, head, lambda manifest: manifest.migration >= number
                )
                present[stage] = self.read(stage, done)
        return Cut(self.heads.app, present)


def commits_newest_first(
    store: ObjectStore, app: str, heads: Mapping[str, Manifest], *, with_kept: bool = False
) -> Iterator[Manifest]:
    """Yield the commits of the line, newest first. Reads one manifest ahead for each stage.

    `heads` is a consistent cut, or one stage alone. If versions of a stage were collected, yields only the versions
    after the last collected version. With `with_kept`, also yields older versions that were kept.
    """
    limit = horizon.newest(store, app)
    ranks = {stage: rank for rank, stage in enumerate(topological_order(heads))}
    ahead, last_ms = dict(heads), max((head.time_ms for head in heads.values()), default=0)

    def position(commit: Manifest) -> tuple[int, int]:
        # All dependents of this commit were yielded, the earliest last. The effective time is the smaller of both
        # times.
        return min(commit.time_ms, last_ms), ranks[commit.stage]

    while ahead:
        # A commit on which another remaining commit depends cannot be next.
        needed = [read for manifest in ahead.values() for read in consumed_versions(manifest).items()]
        free = [
            manifest
            for manifest in ahead.values()
            if not any(s == manifest.stage and v >= manifest.version for s, v in needed)
        ]
        commit = max(free or ahead.values(), key=position)
        last_ms = min(commit.time_ms, last_ms)
        yield commit
        del ahead[commit.stage]
        number = limit.previous_version(commit.stage, commit.version)
        is_next = with_kept or number >= limit.first.get(commit.stage, 0)
        if (
            number
            and is_next
            and not commit.starts_history
            and (earlier := history.find(store, app, commit.stage, number))
        ):
            ahead[commit.stage] = earlier
