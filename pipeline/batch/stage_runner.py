"""One stage at work: a streaming query whose every batch ends in one commit."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ... import instants
from ...snapshot.backfill.fill import fill_changes
from ...store.compaction import plan
from ...store.compaction.plan import Done
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.access import S3Access
from ...store.objects.s3.settings import aws_variables
from ...store.objects.spooled import SpooledStore
from ...store.objects.stats import Stats
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs, ttl
from ...store.versions.aside import rejected_of
from ...store.versions.manifest import Input, Manifest, Output
from ..api.app import Stage
from ..event_time import due
from ..event_time.late import Lateness
from ..event_time.progress import Times
from ..kafka.markers import write_markers
from ..source.checkpoint import Checkpoint
from ..source.data_source import Private, SourceOptions, open_stream
from ..source.planner import Position
from ..source.wake import Wake
from ..spark.homes import Homes
from ..state.falling import Falling
from .batch_report import BatchReport
from .committer import Change, Committed, Committer
from .compactor import Compactor
from .job import Batch, Computed, Rejecter, run_state, run_write
from .meter import StageMeter
from .next_manifest import has_rows, next_manifest
from .places import Places
from .prefetcher import Delivery, Prefetcher
from .schemas import Shape, apply
from .snapshot_events import Outcome, arrive, unchanged
from .task import Result, StateTask, WriteTask, target_of
from .write_stall import Stall, Triggers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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
    hold: Path
    compaction_threads: int = 1
    prefetch: bool = False
    rejecter: Rejecter | None = None


class StageRunner:
    """Runs one claimed stage. Batches come on Spark's thread; everything else may be called from any other.

    Args:
        claimed: The claim's manifest, the head.
        access: How workers get to the store, asked before each batch: credentials may be temporary.
        on_commit: Told of each committed batch.
        on_move: Gets the newest committed and the newest acknowledged version when one of them is another.
    """

    def __init__(
        self,
        config: StageConfig,
        claimed: Manifest,
        *,
        store: ObjectStore,
        meter: StageMeter,
        access: Callable[[], S3Access | None] = lambda: None,
        on_commit: Callable[[BatchReport], None],
        on_move: Callable[[Manifest, Manifest], None] = lambda _head, _tip: None,
    ) -> None:
        self.stage = config.stage
        self._config = config
        self._places = config.places
        self._shape = config.shape
        self._limits = config.limits
        self._meter = meter
        self._access = access
        self._on_commit = on_commit
        self._on_move = on_move
        scratch = config.checkpoint.folder
        self._wake = Wake(scratch.with_name(f"{scratch.name}.wake"))
        self._busy = threading.Lock()
        self._stopping = self._settled = False
        self.error: BaseException | None = None
        """What ended the stage, unless it was stopped."""
        self._closed_snapshots: frozenset[str] = frozenset()
        self._batch_s = 0.0
        """What the batch before took."""
        # On this machine all tasks have one cache.
        self._homes = Homes() if self._places.elsewhere else None
        spool = SpooledStore(store, Path(self._places.spool)) if self._places.spool else None
        folder, max_bytes, hot_bytes = self._places.cache
        # Only a table has SSTs of level 0 that the tier in memory is for.
        hot_bytes = hot_bytes if self._shape.table is not None else 0
        cache = self._cache = SstCache(Path(folder), max_bytes, hot_bytes=hot_bytes)
        self._store: ObjectStore = spool or store
        self._committer = Committer(
            store,
            claimed,
            meter=meter,
            spool=spool,
            max_unflushed=self._limits.max_unflushed,
            failed=self._fail,
            fill=partial(fill_changes, self._store, cache) if self._shape.table is not None else None,
        )
        self._compactor = self._prefetcher = self._stall = None
        if self._shape.table is not None:
            deliver = Delivery(self._homes, self._places, access) if self._homes else None
            self._compactor = Compactor(self._store, cache, claimed, threads=config.compaction_threads, deliver=deliver)
            self._stall = self._stall_of(self._compactor)
            if config.prefetch:
                self._prefetcher = Prefetcher(self._store, cache, claimed)

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

    def forget(self, snapshots: frozenset[str]) -> None:
        """Have the next version forget these recorded snapshots, as nobody asks for them any more."""
        self._closed_snapshots = snapshots

    def stop(self) -> None:
        """Start no further batch."""
        self._stopping = True

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
        positions = [
            Position(name, at[name].offsets, at[name].version, at[name].passed, (), at[name].watermark_ms)
            for name in applied.sources
        ]
        self._config.checkpoint.write(self.head.version, positions)
        if self._shape.due_by is not None:
            self._wake_for(self.head)
        return (
            applied.rows(self._shape.key)
            .writeStream.queryName(self.stage.name)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._config.checkpoint.folder))
            .start()
        )

    def settle(self, timeout_s: float) -> None:
        """Let the batch under way end and what is not flushed be committed; what takes longer is dropped whole.

        What fails from then on, because it was stopped, is no `error`.
        """
        deadline = time.monotonic() + timeout_s
        if self._busy.acquire(timeout=timeout_s):
            self._busy.release()
            self._committer.drain(max(0.0, deadline - time.monotonic()))
        self._settled = True
        self._committer.close()

    def check_epoch(self) -> None:
        """Adopt compactions of other processes, and see whether somebody took the stage over. Raises `Fenced`."""
        self._committer.refresh()

    def close(self) -> None:
        """Stop compactions and fetches under way, and commit nothing more."""
        self._committer.close()
        if self._homes is not None:
            self._homes.close()
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self._compactor is not None:
            self._compactor.close()

    def _stall_of(self, compactor: Compactor) -> Stall:
        def l0() -> int:
            tip = self._committer.tip
            assert tip.table is not None  # noqa: S101  only a stage with a table has a compactor
            return sorted_runs.l0_files(plan.apply(tip.ssts, compactor.finished), tip.table.partitions)

        def begin() -> None:
            if compactor.doing == "nothing":
                compactor.consider(self._committer.tip)

        name = f"stage {self.head.app}/{self.head.stage}"
        return Stall(name, self._limits.stall, l0, lambda: compactor.doing, begin)

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
            hold=str(self._config.hold),
            app=self.head.app,
            store=self._places.store if looks else "",
            counts=str(self._meter.folder) if looks else "",
            handled=tuple(self.head.recorded) if asks else (),
            until=self._limits.until.get(at.topic),
            wake=str(self._wake.path)
            if self._shape.due_by is not None and name == next(iter(self.stage.inputs))
            else "",
        )
        private = Private(self._places.kafka, self._places.s3_settings, aws_variables(os.environ))
        return open_stream(spark, options, private, self._shape.inputs[name] if at.upstream else None)

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        with self._busy:
            if self._stopping:
                return
            try:
                self._run(rows, batch)
            except BaseException as error:
                # Spark shows a query's failure as text; the runner wants the error itself.
                self._fail(error)
                raise

    def _fail(self, error: BaseException) -> None:
        if not self._settled:
            self.error = self.error or error

    def _run(self, rows: DataFrame, batch: int) -> None:
        checkpoint = self._config.checkpoint
        before, after = checkpoint.planned(batch - 1), checkpoint.planned(batch)
        tip = self._committer.tip
        with_rows = any(has_rows(tip.inputs[name], end) for name, end in after.items())
        falling = self._falling(tip)
        pending = falling is not None and falling.pending
        with_job = with_rows or pending
        stall_seconds = self._stall.wait(self._batch_s, lambda: self._stopping) if self._stall and with_job else 0.0
        if self._stopping:
            return
        started = time.monotonic()
        # One head for all of the batch: a compaction may be adopted meanwhile.
        base = self._committer.tip
        outcome = arrive(base, before, after, self._closed_snapshots)
        at = base.inputs
        moved = any((end.offsets, end.version) != (at[name].offsets, at[name].version) for name, end in after.items())
        if not moved and not outcome.changed and not pending:
            return
        clock_ms = ttl.batch_clock_ms(base, instants.now_ms())
        merged = replace(base, ssts=plan.apply(base.ssts, self._finished_merges()))
        bound_ms = instants.now_ms() + self.stage.event_time.ahead_ms
        whole = self._batch(merged, after, clock_ms, bound_ms, falling)
        computed = self._computed(rows, whole) if with_job else Computed()
        markers = {mark: self._write_markers(mark[0], base.outputs[mark[1]]) for mark in outcome.markers}
        bounds = (clock_ms, bound_ms if with_rows else None, falling)
        self._submit(base, after, outcome, computed, markers, bounds, started, stall_seconds)

    def retry(self) -> None:
        """Put the rejected records that wait through the program: a batch of its own, between two others.

        Its version says in one commit what became of the table, of the channels and of each record. Raises what a batch
        raises, which ends the stage.
        """
        with self._busy:
            base = self._committer.tip
            rejecter = self._config.rejecter
            if self._stopping or rejecter is None or not rejected_of(base).waiting:
                return
            started, clock_ms = time.monotonic(), ttl.batch_clock_ms(base, instants.now_ms())
            merged = replace(base, ssts=plan.apply(base.ssts, self._finished_merges()))
            bound_ms, falling = instants.now_ms() + self.stage.event_time.ahead_ms, self._falling(base)
            try:
                computed = rejecter.retry(self._batch(merged, {}, clock_ms, bound_ms, falling))
                self._submit(base, {}, unchanged(base), computed, {}, (clock_ms, bound_ms, falling), started)
            except BaseException as error:
                self._fail(error)
                raise

    def _submit(
        self,
        base: Manifest,
        after: Mapping[str, Position],
        outcome: Outcome,
        computed: Computed,
        markers: Mapping[tuple[str, str], tuple[int, ...]],
        bounds: tuple[int, int | None, Falling | None],
        started: float,
        stall_seconds: float = 0.0,
    ) -> None:
        """Hand a computed batch over to be committed; `bounds`: its clock, bound, and what falls due."""
        clock_ms, bound_ms, falling = bounds
        results, merges = computed.results, self._finished_merges()
        manifest = next_manifest(
            base,
            after,
            outcome,
            results,
            markers=markers,
            merges=merges,
            watermarks=self._shape.watermarks,
            timed=self._shape.timed,
            bound_ms=bound_ms,
            due_by=self._shape.due_by,
            falling=falling,
            clock_ms=clock_ms,
            now_ms=instants.now_ms(),
            duration_ms=round((time.monotonic() - started) * 1000),
            aside=computed.aside,
        )
        # Its SSTs are there, and when it is not committed nothing will be.
        due = self._compactor.consider(manifest, merges) if self._compactor else ()
        if self._prefetcher is not None:
            self._prefetcher.consider(manifest, (name for result in results for name in result.ranged))

        def on_commit(committed: Committed) -> None:
            self._on_move(self.head, self.tip)
            self._on_commit(BatchReport.of(committed, results, due, stall_seconds))

        taken = sum((result.stats for result in results), Stats())
        self._committer.submit(Change(base, manifest, merges, started, on_commit, taken))
        if self._shape.due_by is not None:
            self._wake_for(manifest)
        self._batch_s = time.monotonic() - started
        if self._limits.max_unflushed:
            self._on_move(self.head, self.tip)

    def _falling(self, base: Manifest) -> Falling | None:
        """What falls due with the batch after a version; None where nothing ever does."""
        by = self._shape.due_by
        return due.falling(base.event_time, by, instants.now_ms()) if by is not None else None

    def _wake_for(self, tip: Manifest) -> None:
        """Have a batch start when a row falls due, or at once where one has."""
        times = tip.event_time
        if times is None or times.next_due_ms is None or not (times.by_clock or times.owed):
            self._wake.forget()
        else:
            self._wake.ask(tip.version, times.next_due_ms if times.by_clock else 0)

    def _finished_merges(self) -> tuple[Done, ...]:
        return self._compactor.finished if self._compactor else ()

    def _write_markers(self, snapshot: str, output: Output) -> tuple[int, ...]:
        places = self._places
        return write_markers(places.kafka, output.topic, len(output.ends), snapshot, places.patience_s)

    def _computed(self, rows: DataFrame, batch: Batch) -> Computed:
        """What the batch gives; where it fails and the stage rejects, without the records that are to blame."""
        try:
            return Computed(batch.compute(rows))
        except Exception as error:
            if self._config.rejecter is None or self._stopping:
                raise
            return self._config.rejecter.rescue(batch, error)

    def _batch(
        self,
        base: Manifest,
        after: Mapping[str, Position],
        clock_ms: int,
        bound_ms: int,
        falling: Falling | None,
    ) -> Batch:
        return Batch(
            base,
            after,
            clock_ms,
            compute=lambda rows: self._compute(rows, base, clock_ms, bound_ms, falling),
            check=lambda rows: self._compute(rows, base, clock_ms, bound_ms, None, only_checks=True),
            store=self._store,
            cache=self._cache,
            stopping=lambda: self._stopping,
        )

    def _compute(
        self,
        rows: DataFrame,
        base: Manifest,
        clock_ms: int,
        bound_ms: int,
        falling: Falling | None,
        *,
        only_checks: bool = False,
    ) -> tuple[Result, ...]:
        targets = tuple(target_of(one, base) for one in self.stage.emits_to)
        writer, version = base.writer, base.version + 1
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", self.stage.name)
        times = Times(self._shape.watermarks, bound_ms)
        if self._shape.bound is None or base.table is None:
            return run_write(rows, WriteTask(self._places, writer, version, targets, self._shape.rows, times=times))
        places = dataclasses.replace(self._places, s3=self._access())
        window, late = self._shape.window, self.stage.late
        task = StateTask(
            places,
            writer,
            version,
            targets,
            self._shape.bound,
            base.table,
            base.ssts,
            clock_ms,
            tells_keys=self._config.rejecter is not None,
            only_checks=only_checks,
            lateness=Lateness(window, base.watermark_ms, bound_ms) if window else None,
            late_to=(target_of(late, base), self._shape.late) if late and not only_checks else None,
            times=times,
            falling=falling,
        )
        return run_state(rows, task, self._homes)
