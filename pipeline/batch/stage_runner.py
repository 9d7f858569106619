"""One stage at work: a streaming query whose every batch ends in one commit."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.access import S3Access
from ...store.objects.s3.settings import found_by
from ...store.objects.spooled import SpooledStore
from ...store.objects.stats import Stats
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs, ttl
from ...store.versions import commit
from ...store.versions.manifest import Input, Manifest, Output
from ..api.app import Repartition, Stage
from ..kafka.markers import write_markers
from ..source.checkpoint import Checkpoint
from ..source.data_source import Private, SourceOptions, open_stream
from ..source.planner import Position
from .committer import Change, Committed, Committer
from .compactor import Compactor
from .job import run_state, run_write
from .meter import StageMeter
from .prefetcher import Prefetcher
from .progress import Progress
from .schemas import Shape, apply
from .snapshot_events import arrive
from .task import Places, Result, StateTask, WriteTask
from .write_stall import Stall, Triggers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StageRunner"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How large and how frequent a stage's batches are, and how far they may run ahead of the store."""

    max_records: int | None
    trigger_ms: int
    stall: Triggers = field(default_factory=Triggers)
    max_unflushed: int = 0


class StageRunner:
    """Runs one claimed stage. Batches come on Spark's thread; everything else may ask from any other.

    Args:
        stage: As declared.
        shape: Its schemas.
        claimed: The claim's manifest, the head.
        places: Where workers find things.
        access: How they get to the store, asked before each batch: credentials may be temporary.
        limits: Admission and trigger. With `max_unflushed`, `places` has a spool.
        store: Where manifests go.
        meter: Counts what the stage takes of the store.
        cache: The SST cache of this machine.
        compaction_threads: Merges that go on at once beside the batches; 0 for none, when another process merges.
        checkpoint: Scratch for Spark.
        hold: While this file is there, no batch starts but for a snapshot.
        on_commit: Told of each committed batch.
        on_acknowledged: Called when a batch is acknowledged that is not committed yet.
        prefetch: Whether SSTs are fetched beside the batches; for tasks that run on this machine.
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
        meter: StageMeter,
        cache: SstCache,
        checkpoint: Checkpoint,
        hold: Path,
        on_commit: Callable[[Progress], None],
        on_acknowledged: Callable[[], None] = lambda: None,
        compaction_threads: int = 1,
        prefetch: bool = False,
        access: Callable[[], S3Access | None] = lambda: None,
    ) -> None:
        self.stage = stage
        self.error: BaseException | None = None
        self.closed_snapshots: frozenset[str] = frozenset()
        """Recorded snapshots that nobody asks for any more; the next version forgets them."""
        self.stopping = False
        self._shape = shape
        self._places = places
        self._access = access
        self._limits = limits
        self._meter = meter
        self._checkpoint = checkpoint
        self._hold = hold
        self._on_commit = on_commit
        self._on_acknowledged = on_acknowledged
        spool = SpooledStore(store, Path(places.spool)) if places.spool else None
        self._committer = Committer(
            store, claimed, meter=meter, spool=spool, max_unflushed=limits.max_unflushed, failed=self._failed
        )
        self._busy = threading.Lock()
        self._compactor = (
            Compactor(spool or store, cache, claimed, threads=compaction_threads) if shape.table is not None else None
        )
        self._prefetcher = Prefetcher(spool or store, cache, claimed) if prefetch and shape.table is not None else None
        self._stall = self._stall_of(self._compactor) if self._compactor else None
        self._batch_s = 0.0
        """What the batch before took."""

    @property
    def head(self) -> Manifest:
        """The newest committed version."""
        return self._committer.head

    @property
    def tip(self) -> Manifest:
        """The newest acknowledged version: with `max_unflushed`, it may not be committed yet."""
        return self._committer.tip

    @property
    def positions(self) -> dict[str, Input]:
        """How far it has read, by the input's declared name."""
        return {name: self.head.inputs[name] for name in self.stage.inputs}

    @property
    def busy(self) -> bool:
        """Whether a batch is under way."""
        return self._busy.locked()

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query at the head's positions."""
        # The first of several topics looks out for requests; where there are channels, markers bring them.
        asks = next(iter(self.stage.inputs)) if not self.stage.channels else ""
        streams = {name: self._source(spark, name, asks=name == asks) for name in self.stage.inputs}
        applied = apply(self.stage, streams)
        at = self.positions
        positions = [Position(name, at[name].offsets, at[name].version, at[name].passed) for name in applied.sources]
        self._checkpoint.write(self.head.version, positions)
        return (
            applied.rows(self._shape.key)
            .writeStream.queryName(self.stage.name)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoint.folder))
            .start()
        )

    def settle(self, timeout_s: float) -> None:
        """Let the batch under way end and what is not flushed be committed; what takes longer is dropped whole."""
        deadline = time.monotonic() + timeout_s
        if self._busy.acquire(timeout=timeout_s):
            self._busy.release()
            self._committer.drain(max(0.0, deadline - time.monotonic()))
        self._committer.close()

    def check_epoch(self) -> None:
        """Look whether somebody compacted the stage, or took it over. Raises `Fenced`."""
        self._committer.look()

    def close(self) -> None:
        """Stop compactions and fetches under way, and commit nothing more."""
        self._committer.close()
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self._compactor is not None:
            self._compactor.close()

    def _stall_of(self, compactor: Compactor) -> Stall:
        def l0() -> int:
            tip = self._committer.tip
            assert tip.table is not None  # noqa: S101  only a stage with a table has a compactor
            return sorted_runs.l0_files(compactor.fold(tip.ssts), tip.table.partitions)

        def begin() -> None:
            if compactor.doing == "nothing":
                compactor.consider(self._committer.tip)

        return Stall(
            f"stage {self.head.app}/{self.head.stage}",
            self._limits.stall,
            l0,
            lambda: compactor.doing,
            begin,
        )

    def _source(self, spark: SparkSession, name: str, *, asks: bool) -> DataFrame:
        at = self.head.inputs[name]
        # A topic's source that knows the store looks there for requests.
        looks = bool(at.upstream) or asks
        options = SourceOptions(
            input=name,
            topic=at.topic,
            upstream=at.upstream,
            patience_s=self._places.patience_s,
            max_records=self._limits.max_records,
            trigger_ms=self._limits.trigger_ms,
            hold=str(self._hold),
            app=self.head.app,
            store=self._places.store if looks else "",
            counts=str(self._meter.folder) if looks else "",
            handled=tuple(self.head.recorded) if asks else (),
        )
        private = Private(self._places.kafka, found_by(os.environ))
        return open_stream(spark, options, private, self._shape.inputs[name] if at.upstream else None)

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        with self._busy:
            if self.stopping:
                return
            try:
                self._run(rows, batch)
            except BaseException as error:
                # Spark shows a query's failure as text; the runner wants the error itself.
                self._failed(error)
                raise

    def _failed(self, error: BaseException) -> None:
        self.error = self.error or error

    def _run(self, rows: DataFrame, batch: int) -> None:
        before, after = self._checkpoint.planned(batch - 1), self._checkpoint.planned(batch)
        has_rows = any(_has_rows(self._committer.tip.inputs[name], end) for name, end in after.items())
        stall_seconds = self._stall.wait(self._batch_s, lambda: self.stopping) if self._stall and has_rows else 0.0
        if self.stopping:
            return
        started = time.monotonic()
        # One head for all of the batch: a compaction may be adopted meanwhile.
        base = self._committer.tip
        outcome = arrive(base, before, after, self.closed_snapshots)
        at = base.inputs
        moved = any((end.offsets, end.version) != (at[name].offsets, at[name].version) for name, end in after.items())
        if not moved and not outcome.changed:
            return
        clock_ms = ttl.batch_clock_ms(base, time.time_ns() // 1_000_000)
        folded = replace(base, ssts=self._compactor.fold(base.ssts)) if self._compactor else base
        results = self._compute(rows, folded, clock_ms) if has_rows else ()
        outputs = self._outputs(base, results)
        for snapshot, channel in outcome.markers:
            outputs[channel] = write_markers(self._places.kafka, outputs[channel], snapshot, self._places.patience_s)
        ssts = (*base.ssts, *(sst for result in results for sst in result.ssts))
        manifest = self._next(base, round((time.monotonic() - started) * 1000))
        manifest = replace(
            manifest,
            inputs=manifest.inputs | {name: _consumed(at[name], end) for name, end in after.items()},
            outputs=outputs,
            clock_ms=max([clock_ms, *(result.event_ms for result in results if result.event_ms is not None)]),
            ssts=self._compactor.fold(ssts) if self._compactor else ssts,
            recorded=outcome.recorded,
            awaited=outcome.awaited,
            captured=outcome.captured,
        )
        merges = self._compactor.offered if self._compactor else ()
        # Its SSTs are there, and when it is not committed nothing will be.
        due = self._compactor.consider(manifest) if self._compactor else ()
        if self._prefetcher is not None:
            self._prefetcher.consider(manifest, (name for result in results for name in result.pieced))

        def told(done: Committed) -> None:
            self._on_commit(
                Progress.of(
                    done.before,
                    done.manifest,
                    results,
                    seconds=done.seconds,
                    commit_seconds=done.commit_seconds,
                    stall_seconds=stall_seconds,
                    unflushed=done.unflushed,
                    due=due,
                )
            )

        taken = sum((result.stats for result in results), Stats())
        self._committer.submit(Change(base, manifest, merges, started, told, taken))
        self._batch_s = time.monotonic() - started
        if self._limits.max_unflushed:
            self._on_acknowledged()

    def _next(self, base: Manifest, duration_ms: int) -> Manifest:
        return commit.successor(
            base,
            kind="batch",
            epoch=base.epoch,
            writer=base.writer,
            by=base.by,
            now_ms=time.time_ns() // 1_000_000,
            duration_ms=duration_ms,
        )

    def _compute(self, rows: DataFrame, base: Manifest, clock_ms: int) -> tuple[Result, ...]:
        targets = tuple(self._target(channel) for channel in self.stage.writes)
        writer, version = base.writer, base.version + 1
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", self.stage.name)
        if self._shape.bound is None or base.table is None:
            return run_write(rows, WriteTask(self._places, writer, version, targets, self._shape.rows))
        places = dataclasses.replace(self._places, s3=self._access())
        task = StateTask(places, writer, version, targets, self._shape.bound, base.table, base.ssts, clock_ms)
        return run_state(rows, task)

    def _target(self, channel: Repartition) -> tuple[Repartition, str, int]:
        output = self.head.outputs[channel.name]
        return channel, output.topic, len(output.ends)

    def _outputs(self, base: Manifest, results: tuple[Result, ...]) -> dict[str, Output]:
        made = {}
        for name, before in base.outputs.items():
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
    if at.upstream and at.passed:
        # A marker has an offset too, and no row.
        return sum(end.consumed) > sum(at.passed)
    known = at.offsets + (0,) * (len(end.offsets) - len(at.offsets))
    return any(last > first for first, last in zip(known, end.offsets, strict=True))


def _consumed(at: Input, end: Position) -> Input:
    """The input as it is after a batch that ended there."""
    if at.upstream:
        # Where the reader began in the middle of the channel, nobody knows what was before.
        rows = sum(end.consumed) - sum(at.passed) if at.passed else 0
        consumed = tuple(passed - lost for passed, lost in zip_longest(end.consumed, at.lost, fillvalue=0))
        return replace(at, offsets=end.offsets, version=end.version, rows=rows, consumed=consumed)
    known = at.offsets + (0,) * (len(end.offsets) - len(at.offsets))
    rows = sum(last - first for first, last in zip(known, end.offsets, strict=True))
    return replace(at, offsets=end.offsets, rows=rows)
