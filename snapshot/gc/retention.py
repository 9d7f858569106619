"""Retention rules: all versions for a while, then one moment per hour, then one per day.

Pure. As in restic and borg, each rule keeps something, and what no rule keeps is deleted. A thinned history answers for
every moment of its window with the state at the start of its hour (or day), or a later one. The input is what is known
of an app: stages, snapshots, and earlier collections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...common.durations import DAY_MS, HOUR_MS
from ...common.validation import whole
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary
from ...store.versions.manifest import Manifest
from ..cut.stored import Snapshot


@dataclass(frozen=True, slots=True)
class Retention:
    """Rules for one app. A rule of None is not set; without any rule everything is kept.

    Raises `Usage` (a rule is not a whole number, is negative, or keeps no version).
    """

    all_ms: int | None = None
    """Age up to which every version is kept."""
    versions: int | None = None
    """Number of newest versions of each stage that are kept."""
    hourly_ms: int | None = None
    """Age up to which the state at the end of each hour (UTC) is kept."""
    daily_ms: int | None = None
    """Age up to which the state at the end of each day (UTC) is kept."""
    input_ms: int | None = None
    """Age since reading up to which input records are kept in the archive; None for no archive."""
    input_topics: Mapping[str, int] = field(default_factory=dict)
    """`input_ms` of single topics, by their names in Kafka. Other topics follow `input_ms`."""

    def __post_init__(self) -> None:
        for topic, value in self.input_topics.items():
            whole(f"retention: input of {topic}", value, 1)
        for name, least in (("all_ms", 0), ("hourly_ms", 0), ("daily_ms", 0), ("versions", 1), ("input_ms", 1)):
            if (value := getattr(self, name)) is not None:
                whole(f"retention: {name.removesuffix('_ms')}", value, least)

    @property
    def keeps_everything(self) -> bool:
        """True if no rule for versions is set, so that the whole history is kept."""
        return replace(self, input_ms=None, input_topics={}) == Retention()

    def input_of(self, topic: str) -> int | None:
        """Return how long records of a topic are kept in the archive, in ms; None if it is not archived."""
        return self.input_topics.get(topic, self.input_ms)

    @property
    def archives(self) -> bool:
        """True if any topic is archived."""
        return self.input_ms is not None or bool(self.input_topics)

    def moments(self, now_ms: int, until_ms: int) -> tuple[tuple[int, str], ...]:
        """Return the ends of the hours and days to keep, up to `until_ms`, oldest first, each with its rule.

        An end is the last millisecond of its hour or day. The hour or day in which a rule's window begins is included,
        since it answers for the first moments of the window.
        """
        ends: dict[int, str] = {}
        for rule, window_ms, period_ms in (("daily", self.daily_ms, DAY_MS), ("hourly", self.hourly_ms, HOUR_MS)):
            if window_ms is not None:
                begin = max(0, now_ms - window_ms) // period_ms * period_ms
                ends |= {end - 1: rule for end in range(begin, min(now_ms, until_ms + 1) + 1, period_ms)}
        return tuple(sorted(ends.items()))


@dataclass(frozen=True, slots=True)
class StageState:
    """State of one stage."""

    first: int
    """First version of the gapless history."""
    head: Manifest
    young: int
    """First version that is too young to be deleted; above the head if there is none."""
    published: Mapping[str, int] = field(default_factory=dict)
    """By sink: first version that is needed to publish it."""


@dataclass(frozen=True, slots=True)
class AppState:
    """State of an app before a collection."""

    now_ms: int
    """Reference time of ages: storage's clock, or this machine's in a dry run."""
    stages: Mapping[str, StageState]
    """Stages that have a version."""
    snapshots: tuple[Snapshot, ...] = ()
    last: Boundary = NOTHING_COLLECTED
    """Last final boundary. Versions that it released do not exist, even if something names them."""

    def exists(self, stage: str, version: int) -> bool:
        """Return True if the version is part of the history."""
        if stage not in self.stages or version > self.stages[stage].head.version:
            return False
        if version >= self.stages[stage].first:
            return True
        return stage in self.last.first and self.last.allows(stage, version)
