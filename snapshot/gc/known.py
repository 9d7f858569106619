"""What is known of an app when it is decided what may go: its stages, its snapshots, what was collected before."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...store.versions.horizon import NOTHING_COLLECTED, Boundary
from ...store.versions.manifest import Manifest
from ..cut.stored import Snapshot


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

    def has_collected(self, snapshot: Snapshot) -> bool:
        """Whether a version that the snapshot pins was collected, or was to be, before it was pinned."""
        return not all(self.last.allows(stage, version) for stage, version in snapshot.stages.items())
