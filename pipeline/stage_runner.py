"""One stage at work: a streaming query whose every batch ends in one commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..chandy_lamport import Action, MarkerArrived, Process, RecordState, Requested, SendMarker
from ..store import commit, history
from ..store.cache import SstCache
from ..store.manifest import Input, Manifest, Output
from ..store.objects import ObjectStore
from .app import Repartition, Stage, Topic
from .batch import run_state, run_write
from .checkpoint import Checkpoint
from .compactor import Compactor
from .markers import write_markers
from .planner import Position
from .progress import Progress
from .schemas import Shape, apply
from .task import Places, Result, StateTask, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StageRunner"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How large and how frequent a stage's batches are."""

    max_records: int | None
    trigger_ms: int


class StageRunner:
    """Runs one claimed stage. Batches come on Spark's thread; everything else may ask from any other.

    Args:
        stage: As declared.
        shape: Its schemas.
        claimed: The claim's manifest, the head.
        places: Where workers find things.
        limits: Admission and trigger.
        store: Where manifests go.
        cache: The SST cache of this machine.
        checkpoint: Scratch for Spark.
        on_commit: Told of each committed batch.
    """

    def __init__(
        self,
        stage: Stage,
        shape: Shape,
        claimed: Manifest,
        *,
        places: Places,
        limits: Limits,
        store: ObjectStore,
        cache: SstCache,
        checkpoint: Checkpoint,
        on_commit: Callable[[Progress], None],
    ) -> None:
        self.stage = stage
        self.head = claimed
        self.error: BaseException | None = None
        self.closed_snapshots: frozenset[str] = frozenset()
        """Recorded snapshots that nobody asks for any more; the next version forgets them."""
        self.stopping = False
        self._shape = shape
        self._places = places
        self._limits = limits
        self._store = store
        self._checkpoint = checkpoint
        self._on_commit = on_commit
        self._commit_lock = threading.Lock()
        self._busy = threading.Lock()
        self._compactor = Compactor(store, cache, claimed) if shape.table is not None else None

    @property
    def input_name(self) -> str:
        """The declared name of what it reads."""
        return self.stage.reads.name if isinstance(self.stage.reads, Topic) else self.stage.reads

    @property
    def position(self) -> Input:
        """How far it has read."""
        return self.head.inputs[self.input_name]

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query at the head's position."""
        at = self.position
        self._checkpoint.write(self.head.version, [Position(at.offsets, at.version)])
        rows = apply(self.stage, self._source(spark))
        return (
            rows.writeStream.queryName(self.stage.name)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoint.folder))
            .start()
        )

    def idle(self, timeout_s: float) -> bool:
        """Wait until no batch is under way; False when one still is after the timeout."""
        if not self._busy.acquire(timeout=timeout_s):
            return False
        self._busy.release()
        return True

    def check_epoch(self) -> None:
        """Look whether somebody took the stage over. Raises `Fenced`."""
        with self._commit_lock:
            newer = next(iter(history.after(self._store, self.head.app, self.head.stage, self.head.version)), None)
            if newer is not None and newer.epoch > self.head.epoch:
                # The commit that loses says it best.
                commit.commit(self._store, self._next("batch", 0))

    def close(self) -> None:
        """Let a compaction under way end."""
        if self._compactor is not None:
            self._compactor.close()

    def _source(self, spark: SparkSession) -> DataFrame:
        at = self.position
        options: dict[str, object] = {
            **{f"kafka.{name}": value for name, value in self._places.kafka.items()},
            "subscribe": at.topic,
            "store": self._places.store,
            "app": self.head.app,
            "patienceS": self._places.patience_s,
            "triggerMs": self._limits.trigger_ms,
        }
        if self._limits.max_records is not None:
            options["maxOffsetsPerTrigger"] = self._limits.max_records
        if not at.upstream:
            options["handled"] = ",".join(self.head.recorded)
            return spark.readStream.format("slackwater-topic").options(**options).load()  # type: ignore[arg-type]
        options |= {"upstream": at.upstream, "channel": self.input_name}
        reader = spark.readStream.format("slackwater-channel").schema(self._shape.input)
        return reader.options(**options).load()  # type: ignore[arg-type]

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        with self._busy:
            if self.stopping:
                return
            try:
                self._run(rows, batch)
            except BaseException as error:
                # Spark shows a query's failure as text; the runner wants the error itself.
                self.error = self.error or error
                raise

    def _run(self, rows: DataFrame, batch: int) -> None:
        started = time.monotonic()
        (end,) = self._checkpoint.planned(batch)
        at = self.position
        new = tuple(name for name in end.snapshots if name not in self.head.recorded)
        if (end.offsets, end.version) == (at.offsets, at.version) and not new:
            return
        version = self.head.version + 1
        results = self._compute(rows, version) if self._has_rows(at, end) else ()
        outputs = self._outputs(results)
        actions = self._protocol(new)
        for action in actions:
            if isinstance(action, SendMarker):
                outputs[action.channel] = write_markers(
                    self._places.kafka, outputs[action.channel], action.snapshot, self._places.patience_s
                )
        with self._commit_lock:
            duration_ms = round((time.monotonic() - started) * 1000)
            manifest = self._next("batch", duration_ms)
            recorded = {n: v for n, v in manifest.recorded.items() if n not in self.closed_snapshots}
            recorded |= {a.snapshot: manifest.version for a in actions if isinstance(a, RecordState)}
            ssts = (*manifest.ssts, *(sst for result in results for sst in result.ssts))
            manifest = replace(
                manifest,
                inputs={self.input_name: self._consumed(at, end)},
                outputs=outputs,
                ssts=self._compactor.fold(ssts) if self._compactor else ssts,
                recorded=recorded,
            )
            commit.commit(self._store, manifest)
            self.head = manifest
        self._on_commit(Progress.of(manifest, at.offsets, results, time.monotonic() - started))
        if self._compactor is not None:
            self._compactor.consider(manifest)

    def _next(self, kind: str, duration_ms: int) -> Manifest:
        return commit.successor(
            self.head,
            kind=kind,  # type: ignore[arg-type]
            epoch=self.head.epoch,
            writer=self.head.writer,
            by=self.head.by,
            now_ms=time.time_ns() // 1_000_000,
            duration_ms=duration_ms,
        )

    def _has_rows(self, at: Input, end: Position) -> bool:
        return any(last > first for first, last in zip(at.offsets, end.offsets, strict=False)) or any(
            end.offsets[len(at.offsets) :]
        )

    def _compute(self, rows: DataFrame, version: int) -> tuple[Result, ...]:
        targets = tuple(self._target(channel) for channel in self.stage.writes)
        writer = self.head.writer
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", self.stage.name)
        if self._shape.bound is None or self._shape.table is None:
            return run_write(rows, WriteTask(self._places, writer, version, targets))
        task = StateTask(self._places, writer, version, targets, self._shape.bound, self._shape.table, self.head.ssts)
        return run_state(rows, task)

    def _target(self, channel: Repartition) -> tuple[Repartition, str, int]:
        output = self.head.outputs[channel.name]
        return channel, output.topic, len(output.ends)

    def _outputs(self, results: tuple[Result, ...]) -> dict[str, Output]:
        made = {}
        for name, before in self.head.outputs.items():
            ends = list(before.ends)
            for result in results:
                for partition, end in result.ends.get(name, {}).items():
                    ends[partition] = max(ends[partition], end)
            made[name] = replace(
                before,
                ends=tuple(ends),
                attempts=tuple(sorted(result.attempt for result in results if result.ends.get(name))),
                rows=sum(result.rows_out.get(name, 0) for result in results),
                markers={},
            )
        return made

    def _protocol(self, new: tuple[str, ...]) -> tuple[Action, ...]:
        """What the snapshots at which this batch ended ask of the stage."""
        upstream = self.position.upstream
        inputs = frozenset({self.input_name} if upstream else ())
        # Rebuilt from the head each time: a batch that did not commit must leave no trace.
        process = Process.restore(inputs, frozenset(self.head.outputs), recorded=dict.fromkeys(self.head.recorded, ()))
        return tuple(
            action
            for name in new
            for action in process.receive(MarkerArrived(name, self.input_name) if upstream else Requested(name))
        )

    def _consumed(self, at: Input, end: Position) -> Input:
        if not at.upstream:
            known = at.offsets + (0,) * (len(end.offsets) - len(at.offsets))
            rows = sum(last - first for first, last in zip(known, end.offsets, strict=True))
            return replace(at, offsets=end.offsets, rows=rows)
        rows = 0
        for version in range(at.version + 1, end.version + 1):
            upstream = history.read(self._store, self.head.app, at.upstream, version)
            if self.input_name in upstream.outputs:
                rows += upstream.outputs[self.input_name].rows
        return replace(at, offsets=end.offsets, version=end.version, rows=rows)
