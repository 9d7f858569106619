"""What of an app's history is worth keeping: all of it for a while, then a moment an hour, then a moment a day.

Pure. As with restic's and borg's policies, each rule keeps something, and what no rule keeps goes. A thinned history
answers for every moment of its window: with the app as it was when the hour (or the day) of that moment began, or
better. What is decided by is known of an app beforehand: its stages, its snapshots, what was collected before.
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
    """The rules for one app. None is no such rule; without any rule everything is kept.

    Raises `Usage` where a rule is no whole number, or is negative, or keeps no version.
    """

    all_ms: int | None = None
    """Every version this young."""
    versions: int | None = None
    """Every one of the newest so many versions of each stage."""
    hourly_ms: int | None = None
    """Within this age, the app as it was at the end of each hour (UTC)."""
    daily_ms: int | None = None
    """Within this age, the app as it was at the end of each day (UTC)."""
    input_ms: int | None = None
    """What was read of users' topics is archived, and kept there for so long after it was read; None for no archive."""
    input_topics: Mapping[str, int] = field(default_factory=dict)
    """The same of single topics, by their names in Kafka: these alone, where `input_ms` says nothing of the others."""

    def __post_init__(self) -> None:
        for topic, value in self.input_topics.items():
            whole(f"retention: input of {topic}", value, 1)
        for name, least in (("all_ms", 0), ("hourly_ms", 0), ("daily_ms", 0), ("versions", 1), ("input_ms", 1)):
            if (value := getattr(self, name)) is not None:
                whole(f"retention: {name.removesuffix('_ms')}", value, least)

    @property
    def keeps_everything(self) -> bool:
        """Whether no rule is set for versions: the whole history stays."""
        return replace(self, input_ms=None, input_topics={}) == Retention()

    def input_of(self, topic: str) -> int | None:
        """For how long what was read of a topic stays in the archive, in ms; None where it is not archived."""
        return self.input_topics.get(topic, self.input_ms)

    @property
    def archives(self) -> bool:
        """Whether any topic is archived."""
        return self.input_ms is not None or bool(self.input_topics)

    def moments(self, now_ms: int, until_ms: int) -> tuple[tuple[int, str], ...]:
        """The ends of the hours and days whose state stays, up to `until_ms`, oldest first, each with its rule.

        An end is the last millisecond of its hour or day. Of each rule's window the hour or day in which it begins is
        there too: the first moments of the window are answered from it.
        """
        found: dict[int, str] = {}
        for rule, window_ms, period_ms in (("daily", self.daily_ms, DAY_MS), ("hourly", self.hourly_ms, HOUR_MS)):
            if window_ms is not None:
                begin = max(0, now_ms - window_ms) // period_ms * period_ms
                found |= {end - 1: rule for end in range(begin, min(now_ms, until_ms + 1) + 1, period_ms)}
        return tuple(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class StageKnown:
    """What there is of one stage."""

    first: int
    """From here on its history is whole."""
    head: Manifest
    young: int
    """From here on its versions are too young to go; after the head when none is."""
    published: Mapping[str, int] = field(default_factory=dict)
    """By sink: from here on versions are needed to publish it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What there is of an app."""

    now_ms: int
    """What ages count from: storage's clock, or this machine's in a dry run."""
    stages: Mapping[str, StageKnown]
    """Those that have a version."""
    snapshots: tuple[Snapshot, ...] = ()
    last: Boundary = NOTHING_COLLECTED
    """The last final boundary; what it gives up does not exist, whoever names it."""

    def exists(self, stage: str, version: int) -> bool:
        """Whether the version is part of the history."""
        if stage not in self.stages or version > self.stages[stage].head.version:
            return False
        if version >= self.stages[stage].first:
            return True
        return stage in self.last.first and self.last.allows(stage, version)
