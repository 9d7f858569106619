"""What one stage's batches compute: their tasks, made of its schemas and the version that a batch is built on.

And what is known of a stage before its first batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ... import instants
from ...fold.event_time import BatchTimes, Lateness, Times, due_after
from ...fold.next_version import Result
from ...fold.records import Position
from ...fold.step import Step
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.settings import S3Access
from ...store.read.cache import SstCache
from ...store.sst import ttl
from ...store.versions.manifest import Manifest
from ..api.stage import Stage
from ..source.checkpoint import Checkpoint
from ..source.wake import PlannerFiles
from ..spark.homes import Homes
from ..spark.places import Places
from ..upkeep.write_stall import Triggers
from .job import Batch, Computed, Rejecter, run_state, run_write
from .pre_aggregation import Expected, Forecast
from .schemas import Shape
from .task import StateTask, WriteTask, target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        compaction_threads: Merges that go on at once beside the batches; 0 for none, when another process merges.
        prefetch: Whether SSTs are fetched beside the batches; for tasks that run on this machine.
        rejecter: Who leaves out records for which a batch fails; None where that stops the stage.
    """

    stage: Stage
    shape: Shape
    places: Places
    limits: Limits
    checkpoint: Checkpoint
    told: PlannerFiles
    compaction_threads: int = 1
    prefetch: bool = False
    rejecter: Rejecter | None = None


class StageJob:
    """Computes the batches of one stage.

    Args:
        config: The stage.
        store: Where its SSTs are.
        cache: This machine's.
        homes: Where state partitions are, if there are several machines.
        access: How workers get to the store, asked before each batch: credentials may be temporary.
        stopping: Whether the stage is to stop.
    """

    def __init__(
        self,
        config: StageConfig,
        store: ObjectStore,
        cache: SstCache,
        *,
        homes: Homes | None,
        access: Callable[[], S3Access | None],
        stopping: Callable[[], bool],
    ) -> None:
        self._config, self._stage, self._shape = config, config.stage, config.shape
        self._store, self._cache = store, cache
        self._homes, self._access, self._stopping = homes, access, stopping
        self._forecast = Forecast()

    def times(self, base: Manifest) -> BatchTimes:
        """Those of the batch after a version, now."""
        now_ms, by = instants.now_ms(), self._shape.due_by
        due = due_after(base.event_time, by, now_ms) if by is not None else None
        return BatchTimes(ttl.batch_clock_ms(base, now_ms), now_ms + self._stage.event_time.ahead_ms, due)

    def batch(self, base: Manifest, after: Mapping[str, Position], times: BatchTimes) -> Batch:
        """A batch that is built on `base` and ends there on each input."""
        nothing = dataclasses.replace(times.due, pending=False) if times.due is not None else None
        checked = dataclasses.replace(times, due=nothing)
        return Batch(
            base,
            after,
            begin=lambda rows: self._compute(rows, base, times, expected=self._forecast.next),
            compute=lambda rows: self._compute(rows, base, times),
            check=lambda rows: self._compute(rows, base, checked, only_checks=True),
            store=self._store,
            cache=self._cache,
            stopping=self._stopping,
        )

    def computed(self, rows: DataFrame, batch: Batch) -> Computed:
        """What the batch gives; where it fails and the stage rejects, without the records that are to blame."""
        try:
            results = batch.begin(rows)
        except Exception as error:
            if self._config.rejecter is None or self._stopping():
                raise
            return self._config.rejecter.rescue(batch, error)
        self._forecast.learn(results)
        return Computed(results)

    def _compute(
        self,
        rows: DataFrame,
        base: Manifest,
        times: BatchTimes,
        *,
        only_checks: bool = False,
        expected: Expected | None = None,
    ) -> tuple[Result, ...]:
        config, shape = self._config, self._shape
        targets = tuple(target_of(one, base) for one in self._stage.emits_to)
        writer, version = base.writer, base.version + 1
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", self._stage.name)
        seen = Times(shape.watermarks, times.bound_ms)
        if shape.bound is None or base.table is None:
            return run_write(rows, WriteTask(config.places, writer, version, targets, shape.rows, times=seen))
        late_by, late = shape.late_by, self._stage.late
        task = StateTask(
            dataclasses.replace(config.places, s3=self._access()),
            writer,
            version,
            targets,
            Step(
                base.table,
                shape.bound,
                version,
                times.clock_ms,
                Lateness(late_by, base.watermark_ms, times.bound_ms) if late_by else None,
                times.due,
                tells=self._stage.max_rejected if config.rejecter is not None else None,
            ),
            base.ssts,
            only_checks,
            late_to=(target_of(late, base), shape.late) if late and not only_checks else None,
            times=seen,
        )
        # What is only checked need not be where its SSTs are.
        return run_state(rows, task, None if only_checks else self._homes, expected)
