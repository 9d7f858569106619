"""What is known of a stage before its first batch. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..api.stage import Stage
from ..source.checkpoint import Checkpoint
from ..source.wake import Told
from ..spark.places import Places
from ..upkeep.write_stall import Triggers
from .job import Rejecter
from .schemas import Shape


@dataclass(frozen=True, slots=True)
class Limits:
    """How large and how frequent a stage's batches are, and how far they may run ahead of the store.

    `until` is where users' topics end for it, by name: of the others it reads whatever comes.
    """

    max_records: int | None
    trigger_ms: int
    stall: Triggers = field(default_factory=Triggers)
    max_unflushed: int = 0
    until: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageConfig:
    """What a runner knows of one stage before it starts.

    Attributes:
        stage: As declared.
        shape: Its schemas.
        places: Where workers find things.
        limits: Admission and trigger. With `max_unflushed`, `places` has a spool.
        checkpoint: Scratch for Spark.
        told: What the runner tells the planners of its stages.
        hold: While this file is there, no batch starts but for a snapshot.
        compaction_threads: Merges that go on at once beside the batches; 0 for none, when another process merges.
        prefetch: Whether SSTs are fetched beside the batches; for tasks that run on this machine.
        rejecter: Who leaves out records for which a batch fails; None where that stops the stage.
    """

    stage: Stage
    shape: Shape
    places: Places
    limits: Limits
    checkpoint: Checkpoint
    told: Told
    hold: Path
    compaction_threads: int = 1
    prefetch: bool = False
    rejecter: Rejecter | None = None
