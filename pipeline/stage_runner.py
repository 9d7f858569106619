"""One stage at work: a streaming query whose every batch ends in one commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..store import commit, history, ttl
from ..store.cache import SstCache
from ..store.manifest import Input, Manifest, Output
from ..store.objects import ObjectStore
from .app import Repartition, Stage
from .arrivals import arrive
from .batch import run_state, run_write
from .checkpoint import Checkpoint
from .compactor import Compactor
from .markers import write_markers
from .planner import Position
from .progress import Progress
from .schemas import Shape, apply
from .task import Places, Result, StateTask, WriteTask

if TYPE_CHECKING:
    from pathlib import Path

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
        hold: While this file is there, no batch starts but for a snapshot.
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
        hold: Path,
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
        self._hold = hold
        self._on_commit = on_commit
        self._commit_lock = threading.Lock()
        self._busy = threading.Lock()
        self._compactor = Compactor(store, cache, claimed) if shape.table is not None else None

    @property
    def positions(self) -> dict[str, Input]:
        """How far it has read, by the input's declared name."""
        return {name: self.head.inputs[name] for name in self.stage.inputs}

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query at the head's positions."""
        # The first of several topics looks out for requests; where there are channels, markers bring them.
        asks = next(iter(self.stage.inputs)) if not self.stage.channels else ""
        streams = {name: self._source(spark, name, asks=name == asks) for name in self.stage.inputs}
        applied = apply(self.stage, streams)
        at = self.positions
        positions = [Position(name, at[name].offsets, at[name].version, at[name].consumed) for name in applied.sources]
        self._checkpoint.write(self.head.version, positions)
        return (
            applied.rows(self._shape.key)
            .writeStream.queryName(self.stage.name)
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

    def _source(self, spark: SparkSession, name: str, *, asks: bool) -> DataFrame:
        at = self.head.inputs[name]
        options: dict[str, object] = {
            **{f"kafka.{option}": value for option, value in self._places.kafka.items()},
            "subscribe": at.topic,
            "input": name,
            "patienceS": self._places.patience_s,
            "triggerMs": self._limits.trigger_ms,
            "hold": self._hold,
        }
        if self._limits.max_records is not None:
            options["maxOffsetsPerTrigger"] = self._limits.max_records
        # A topic's source that knows the store looks there for requests.
        if at.upstream or asks:
            options |= {"store": self._places.store, "app": self.head.app}
        if not at.upstream:
            if asks:
                options["handled"] = ",".join(self.head.recorded)
            return spark.readStream.format("slackwater-topic").options(**options).load()  # type: ignore[arg-type]
        options["upstream"] = at.upstream
        reader = spark.readStream.format("slackwater-channel").schema(self._shape.inputs[name])
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
        before, after = self._checkpoint.planned(batch - 1), self._checkpoint.planned(batch)
        outcome = arrive(self.head, before, after, self.closed_snapshots)
        at = self.positions
        moved = any((end.offsets, end.version) != (at[name].offsets, at[name].version) for name, end in after.items())
        if not moved and not outcome.changed:
            return
        version, clock_ms = self.head.version + 1, ttl.batch_clock_ms(self.head, time.time_ns() // 1_000_000)
        some = any(_has_rows(at[name], end) for name, end in after.items())
        results = self._compute(rows, version, clock_ms) if some else ()
        outputs = self._outputs(results)
        for snapshot, channel in outcome.markers:
            outputs[channel] = write_markers(self._places.kafka, outputs[channel], snapshot, self._places.patience_s)
        with self._commit_lock:
            duration_ms = round((time.monotonic() - started) * 1000)
            manifest = self._next("batch", duration_ms)
            ssts = (*manifest.ssts, *(sst for result in results for sst in result.ssts))
            manifest = replace(
                manifest,
                inputs=manifest.inputs | {name: _consumed(at[name], end) for name, end in after.items()},
                outputs=outputs,
                clock_ms=max([clock_ms, *(r.event_ms for r in results if r.event_ms is not None)]),
                ssts=self._compactor.fold(ssts) if self._compactor else ssts,
                recorded=outcome.recorded,
                awaited=outcome.awaited,
                captured=outcome.captured,
            )
            before_head, put = self.head, time.monotonic()
            commit.commit(self._store, manifest)
            self.head, ended = manifest, time.monotonic()
        self._on_commit(
            Progress.of(before_head, manifest, results, seconds=ended - started, commit_seconds=ended - put)
        )
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

    def _compute(self, rows: DataFrame, version: int, clock_ms: int) -> tuple[Result, ...]:
        targets = tuple(self._target(channel) for channel in self.stage.writes)
        writer = self.head.writer
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", self.stage.name)
        if self._shape.bound is None or self.head.table is None:
            return run_write(rows, WriteTask(self._places, writer, version, targets))
        table, ssts = self.head.table, self.head.ssts
        task = StateTask(self._places, writer, version, targets, self._shape.bound, table, ssts, clock_ms)
        return run_state(rows, task)

    def _target(self, channel: Repartition) -> tuple[Repartition, str, int]:
        output = self.head.outputs[channel.name]
        return channel, output.topic, len(output.ends)

    def _outputs(self, results: tuple[Result, ...]) -> dict[str, Output]:
        made = {}
        for name, before in self.head.outputs.items():
            ends, sent = list(before.ends), list(before.sent)
            parts = [(result.attempt, result.sent[name]) for result in results if name in result.sent]
            for _, part in parts:
                for partition, written in part.items():
                    ends[partition] = max(ends[partition], written.end)
                    sent[partition] += written.rows
            made[name] = replace(
                before,
                ends=tuple(ends),
                attempts=tuple(sorted(attempt for attempt, _ in parts)),
                rows=sum(sent) - sum(before.sent),
                markers={},
                sent=tuple(sent),
            )
        return made


def _has_rows(at: Input, end: Position) -> bool:
    known = at.offsets + (0,) * (len(end.offsets) - len(at.offsets))
    return any(last > first for first, last in zip(known, end.offsets, strict=True))


def _consumed(at: Input, end: Position) -> Input:
    """The input as it is after a batch that ended there."""
    if at.upstream:
        # Where the reader began in the middle of the channel, nobody knows what was before.
        rows = sum(end.consumed) - sum(at.consumed) if at.consumed else 0
        return replace(at, offsets=end.offsets, version=end.version, rows=rows, consumed=end.consumed)
    known = at.offsets + (0,) * (len(end.offsets) - len(at.offsets))
    rows = sum(last - first for first, last in zip(known, end.offsets, strict=True))
    return replace(at, offsets=end.offsets, rows=rows)
