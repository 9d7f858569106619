"""Runs one stage: a streaming query in which every batch ends in one commit."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...common import instants, runtime
from ...errors import SlackwaterError, Unavailable
from ...snapshot.change.edit import change_of, newest_active_cut
from ...snapshot.change.edited import compute_edit
from ...snapshot.under_way.runners import EDITS, EditRequest, Outdated, check_base, find_edit_version
from ...state.event_time import BatchTimes
from ...state.next_version import BatchResult, ProtocolOutcome, TaskReport, has_rows, next_version
from ...state.records import Position
from ...store.compaction import plan
from ...store.compaction.plan import Finished
from ...store.objects.counting import Stats
from ...store.objects.local import SpooledStore
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3_settings import S3Access
from ...store.read.cache import SstCache
from ...store.versions import commit
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import rejected_counts
from ..kafka.messages import write_markers
from ..kafka.open import open_kafka
from ..listener import BatchReport
from ..messages.outbox import send_for_repair
from ..spark.placement import Homes
from ..telemetry.logs import committing_version
from ..telemetry.spans import BatchSpan
from ..upkeep.executors import Executors, MergeSlots
from ..upkeep.pages import PageWriter
from ..upkeep.upkeep import Upkeep
from .committer import CommittedVersion, Committer, OutdatedBatch, PendingVersion, StageMeter, batch_report
from .job import Batch, Engine, Query, StageConfig, StageJob
from .snapshot_events import compute_outcome


class StageRunner:
    """Runs one claimed stage. Batches run on one of Spark's threads. All public methods are thread-safe.

    Args:
        claimed: Manifest of the claim, which is the stage's head.
        access: Returns S3 credentials for the workers; called for each batch because credentials may be temporary.
        merge_slots: Task slots of the Spark session that merges may use; None if all tasks run on this machine.
        on_commit: Called with the report of each committed batch.
        on_move: Called with the newest committed and the newest acknowledged version when either changes.
    """

    def __init__(
        self,
        config: StageConfig,
        claimed: Manifest,
        *,
        engine: Engine,
        store: ObjectStore,
        meter: StageMeter,
        access: Callable[[], S3Access | None] = lambda: None,
        merge_slots: MergeSlots | None = None,
        on_commit: Callable[[BatchReport], None],
        on_move: Callable[[Manifest, Manifest], None] = lambda _head, _newest: None,
    ) -> None:
        self.stage = config.stage
        self._config, self._engine, self._meter = config, engine, meter
        self._on_commit, self._on_move = on_commit, on_move
        self._batch_lock = runtime.lock()
        self._stopping = self._drained = False
        self._query = runtime.future()
        self.error: BaseException | None = None
        """Error that ended the stage; None while it runs or after a stop."""
        self._closed_snapshots: frozenset[str] = frozenset()
        self.job_group = ""
        """Spark job group of the stage's query; empty before the query starts."""
        self._batch_s = 0.0
        self._span: BatchSpan | None = None
        has_table, resources, limits = config.schemas.table is not None, config.resources, config.limits
        # Local tasks share one cache, so they need no placement.
        self._homes = Homes(claimed.table.ranges) if claimed.table and resources.has_remote_tasks else None
        spool = SpooledStore(store, Path(resources.spool)) if resources.spool else None
        cache = SstCache(*resources.cache)
        local: ObjectStore = spool or store
        self._committer = Committer(
            store,
            claimed,
            meter=meter,
            spool=spool,
            max_unflushed=limits.max_unflushed,
            on_failure=self._fail,
        )
        self._job = StageJob(
            config, engine, local, cache, self._homes, access, stopping=lambda: self._stopping, query=self._query
        )
        self._pages = PageWriter(store, claimed.version)
        self._upkeep: Upkeep | None = None
        if has_table:
            executors = None
            if self._homes is not None and merge_slots is not None:
                executors = Executors(self._homes, resources, access, merge_slots, meter.add)
            self._upkeep = Upkeep(
                local,
                cache,
                claimed,
                threads=config.compaction_threads,
                executors=executors,
                prefetch=config.prefetch,
                triggers=limits.stall_triggers,
                tip=lambda: self.tip,
            )

    @property
    def head(self) -> Manifest:
        return self._committer.head

    @property
    def tip(self) -> Manifest:
        return self._committer.tip

    def drop_snapshots(self, snapshots: frozenset[str]) -> None:
        """Drop these recorded snapshots, whose requests were deleted, in the next version."""
        self._closed_snapshots = snapshots

    def commit_synchronously(self, enabled: bool) -> None:
        """While `enabled`, commit each batch before the next batch starts, even with `max_unflushed`."""
        self._committer.is_synchronous = enabled

    def stop(self) -> None:
        self._stopping = True

    @property
    def is_busy(self) -> bool:
        return self._batch_lock.locked()

    def start(self) -> Query:
        self._schedule_wake_up(self.head)
        started = self._engine.start_query(self._config, self.head, self._on_batch, self._meter.folder)
        self._query.set_result(started)
        self.job_group = str(started.runId)
        return started

    def drain(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the current batch and for all commits, then drop uncommitted versions.

        Failures after this call are not recorded in `error`.
        """
        deadline = runtime.monotonic() + timeout_s
        if self._batch_lock.acquire(timeout=timeout_s):
            self._batch_lock.release()
            self._committer.drain(max(0.0, deadline - runtime.monotonic()))
        self._drained = True
        self._committer.close()

    def check_epoch(self) -> None:
        """Adopt versions that other processes committed, such as compactions. Raises `Fenced` after a take-over."""
        self._committer.adopt_newest()

    def close(self) -> None:
        self._committer.close()
        if self._upkeep is not None:
            self._upkeep.close()
        self._pages.close()
        if self._homes is not None:
            self._homes.close()

    def _on_batch(self, rows: Any, batch: int) -> None:
        with self._batch_lock:
            if self._stopping:
                return
            try:
                with self._batch_context():
                    self._run(rows, batch)
            except BaseException as error:
                # Spark reports a query's failure as text; the runner needs the error itself.
                self._fail(error)
                # Stopping a query may make it fail. pyspark matches the text of the failure with a regular expression,
                # which overflows the thread's stack and prints a thousand lines.
                if not self._stopping:
                    raise

    @contextmanager
    def _batch_context(self) -> Iterator[None]:
        app, tracing = self.head.app, self._config.tracing
        with (
            committing_version(app, self.stage.name, self.tip.version + 1),
            tracing.batch(app, self.stage.name) if tracing is not None else nullcontext() as self._span,
        ):
            yield

    def _fail(self, error: BaseException) -> None:
        if not self._drained:
            self.error = self.error or error

    def _run(self, rows: Any, batch: int) -> None:
        checkpoint = self._config.checkpoint
        starts, ends = checkpoint.read_positions(batch - 1), checkpoint.read_positions(batch)
        tip = self.tip
        with_rows = any(has_rows(tip.inputs[name], end) for name, end in ends.items())
        stall_seconds = 0.0
        if self._upkeep is not None and (with_rows or self._job.batch_times(tip).pending):
            stall_seconds = self._upkeep.stall.wait(self._batch_s, lambda: self._stopping)
        turns = self._config.turns
        with turns.turn(self.stage.name) if turns is not None else nullcontext():
            if self._stopping:
                return
            self._retry_if_outdated(lambda: self._compute(rows, starts, ends, stall_seconds, with_rows=with_rows))

    def _retry_if_outdated(self, make: Callable[[], None]) -> None:
        """Call `make` to commit a version. Call it again if a promotion or a forget has made the batch outdated.

        After a promotion, the added sinks also need the rows of the batch. After a forget, the batch may have read rows
        and objects that no longer exist.
        """
        previous = self.tip
        try:
            make()
        except Exception as error:
            self.check_epoch()
            if not isinstance(error, OutdatedBatch) and self.tip.forgotten == previous.forgotten:
                raise
            make()

    def _compute(
        self,
        rows: Any,
        starts: Mapping[str, Position],
        ends: Mapping[str, Position],
        stall_seconds: float,
        *,
        with_rows: bool,
    ) -> None:
        started = runtime.monotonic()
        # The whole batch uses the same base, even if a compaction is adopted meanwhile.
        base = self.tip
        outcome, times = compute_outcome(base, starts, ends, self._closed_snapshots), self._job.batch_times(base)
        at = base.inputs
        moved = any((end.offsets, end.version) != (at[name].offsets, at[name].version) for name, end in ends.items())
        if not moved and not outcome.changed and not times.pending:
            return
        written = BatchResult()
        if with_rows or times.pending:
            merged = plan.apply_to_manifest(base, self._finished)
            written = self._job.compute_batch(rows, merged, ends, times)
        self._submit(base, ends, outcome, written, times, started, stall_seconds, with_rows=with_rows)

    def retry_rejected(self) -> None:
        """Retry the waiting rejected records in a separate batch, between two batches of the query.

        The version of this batch changes the table, the channels and the table of rejected records atomically. Raises
        the errors of a batch; an error ends the stage.
        """
        with self._batch_lock:
            base, retry = self.tip, self._config.retry_rejected
            if self._stopping or retry is None or not rejected_counts(base).waiting:
                return
            try:
                with self._batch_context():
                    self._retry_if_outdated(lambda: self._retry(retry))
            except BaseException as error:
                self._fail(error)
                raise

    def _retry(self, retry: Callable[[Batch], BatchResult]) -> None:
        base, started = self.tip, runtime.monotonic()
        times = self._job.batch_times(base)
        merged = plan.apply_to_manifest(base, self._finished)
        written = retry(Batch(self._job, merged, {}, times))
        self._submit(base, {}, compute_outcome(base, {}, {}, ()), written, times, started)

    def apply_edit(self, store: ObjectStore, request: EditRequest) -> None:
        """Apply a requested edit of rows between two batches, as a separate version, unless it is applied already.

        If an edit cannot be applied, the reason is written to its request. Raises the errors of a commit; an error ends
        the stage.
        """
        with self._batch_lock:
            if self._stopping or find_edit_version(store, request, self.tip) is not None:
                return
            try:
                with self._batch_context():
                    self._retry_if_outdated(lambda: self._edit(store, request))
            except BaseException as error:
                self._fail(error)
                raise

    def _edit(self, store: ObjectStore, request: EditRequest) -> None:
        base, job, resources, started = self.tip, self._job, self._config.resources, runtime.monotonic()
        try:
            cut = newest_active_cut(store, base.app, base.stage, base)
            check_base(store, request, base)
            change = change_of(store, base.app, request)
            effect = compute_edit(job.store, job.cache, cut, base.stage, change, request.edit)
            if effect is not None and change.records:
                kafka, patience_s = open_kafka(resources.kafka), resources.patience_s
                effect = dataclasses.replace(
                    effect, sinks=send_for_repair(kafka, base, change.records, patience_s=patience_s)
                )
        except SlackwaterError as error:
            if isinstance(error, Unavailable):
                raise
            outdated = isinstance(error, Outdated)
            EDITS.put(store, replace(request, error=error.message, outdated=outdated), base.app)
            return
        if effect is None:
            EDITS.put(store, replace(request, error="no row would change any more"), base.app)
            return
        draft = commit.successor(
            base, kind=request.kind, epoch=base.epoch, writer=base.writer, by=base.by, now_ms=instants.now_ms()
        )
        self._commit(base, effect.apply_to(draft), (), started)

    def _submit(
        self,
        base: Manifest,
        after: Mapping[str, Position],
        outcome: ProtocolOutcome,
        written: BatchResult,
        times: BatchTimes,
        started: float,
        stall_seconds: float = 0.0,
        *,
        with_rows: bool = True,
    ) -> None:
        results, merges, resources = tuple(written.results), self._finished, self._config.resources
        markers = {}
        for snapshot, channel in outcome.markers:
            topic, partitions = base.outputs[channel].topic, len(base.outputs[channel].ends)
            sent = write_markers(open_kafka(resources.kafka), topic, partitions, snapshot, resources.patience_s)
            markers[snapshot, channel] = sent
        manifest = next_version(
            base,
            after,
            outcome,
            dataclasses.replace(written, markers=markers),
            merges,
            self._config.schemas.time_rules,
            times,
            with_rows=with_rows,
            now_ms=instants.now_ms(),
            duration_ms=round((runtime.monotonic() - started) * 1000),
        )
        self._commit(base, manifest, merges, started, results, stall_seconds, written.traceparents)
        self._batch_s = runtime.monotonic() - started

    def _commit(
        self,
        base: Manifest,
        manifest: Manifest,
        merges: tuple[Finished, ...],
        started: float,
        results: tuple[TaskReport, ...] = (),
        stall_seconds: float = 0.0,
        rejected: tuple[str, ...] = (),
    ) -> None:
        """Submit the version after `base` for commit. `results` are the reports of the batch's tasks.

        `rejected` has the trace contexts of the records that the batch left out.
        """
        # Merges are planned now, because the SSTs exist, and no later version can be committed without this version.
        missed = (name for result in results for name in result.ranged)
        due = self._upkeep.start_merges(manifest, merges, missed) if self._upkeep else ()
        span = self._span

        def on_commit(committed: CommittedVersion) -> None:
            self._on_move(self.head, self.tip)
            self._pages.record(committed.manifest)
            report = batch_report(committed, results, due, stall_seconds)
            versions = (committed.previous, committed.manifest)
            with (
                span.end_committed(*versions, committed.commit_seconds, report.windows, rejected)
                if span is not None
                else nullcontext()
            ):
                self._on_commit(report)

        stats = sum((result.stats for result in results), Stats())
        self._committer.submit(PendingVersion(base, manifest, merges, started, on_commit, stats))
        self._schedule_wake_up(manifest)
        if self._config.limits.max_unflushed:
            self._on_move(self.head, self.tip)

    def _schedule_wake_up(self, manifest: Manifest) -> None:
        if self._config.schemas.due_by is None:
            return
        times, at_ms = manifest.event_time, None
        if times is not None and times.next_due_ms is not None and (times.by_clock or times.has_unemitted_due_rows):
            at_ms = times.next_due_ms if times.by_clock else 0
        self._config.planners.schedule_wake_up(manifest.stage, manifest.version, at_ms)

    @property
    def _finished(self) -> tuple[Finished, ...]:
        return self._upkeep.finished if self._upkeep is not None else ()
