"""One stage at work: a streaming query whose every batch ends in one commit."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...common import instants
from ...errors import SlackwaterError, Unavailable
from ...snapshot.change.edit import change_of, newest
from ...snapshot.change.edited import edited
from ...snapshot.under_way.edit_request import EDITS, EditRequest, done_by
from ...state.event_time import BatchTimes
from ...state.next_version import Outcome, TaskReport, Written, has_rows, next_version
from ...state.records import Position
from ...store.compaction import plan
from ...store.compaction.plan import Done
from ...store.objects.local import SpooledStore
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.settings import S3Access
from ...store.objects.stats import Stats
from ...store.read.cache import SstCache
from ...store.versions import commit
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import rejected_of
from ..kafka.messages import write_markers
from ..kafka.open import open_kafka
from ..spark.task_placement import Homes
from ..telemetry.spans import BatchSpan
from ..telemetry.under_way import working_on
from ..upkeep.meter import StageMeter
from ..upkeep.prefetcher import Delivery
from ..upkeep.upkeep import Upkeep
from . import query
from .batch_report import BatchReport
from .committer import Committed, Committer, Outdated, PendingVersion
from .job import Batch, StageConfig, StageJob
from .snapshot_events import arrive


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
        self._config, self._meter = config, meter
        self._on_commit, self._on_move = on_commit, on_move
        self._busy = threading.Lock()
        self._stopping = self._settled = False
        self._query = Future[StreamingQuery]()
        self.error: BaseException | None = None
        """What ended the stage, unless it was stopped."""
        self._closed_snapshots: frozenset[str] = frozenset()
        self.job_group = ""
        """That of its jobs in Spark, once its query was started."""
        self._batch_s = 0.0
        """What the batch before took."""
        self._span: BatchSpan | None = None
        """That of the batch under way, where somebody traces."""
        has_table, places, limits = config.shape.table is not None, config.places, config.limits
        # On this machine all tasks have one cache.
        self._homes = Homes() if places.elsewhere else None
        spool = SpooledStore(store, Path(places.spool)) if places.spool else None
        cache = SstCache(*places.cache)
        local: ObjectStore = spool or store
        self._committer = Committer(
            store,
            claimed,
            meter=meter,
            spool=spool,
            max_unflushed=limits.max_unflushed,
            failed=self._fail,
        )
        self._job = StageJob(
            config, local, cache, self._homes, access, stopping=lambda: self._stopping, query=self._query
        )
        self._upkeep: Upkeep | None = None
        if has_table:
            self._upkeep = Upkeep(
                local,
                cache,
                claimed,
                threads=config.compaction_threads,
                deliver=Delivery(self._homes, places, access) if self._homes else None,
                prefetch=config.prefetch,
                triggers=limits.stall,
                tip=lambda: self.tip,
            )

    @property
    def head(self) -> Manifest:
        """The newest committed version."""
        return self._committer.head

    @property
    def tip(self) -> Manifest:
        """The newest acknowledged version: with `max_unflushed`, it may not be committed yet."""
        return self._committer.tip

    def forget(self, snapshots: frozenset[str]) -> None:
        """Have the next version forget these recorded snapshots, as nobody asks for them any more."""
        self._closed_snapshots = snapshots

    def keep_in_order(self, wanted: bool) -> None:
        """Whether each batch is to be committed before the next, whatever `max_unflushed` says."""
        self._committer.in_order = wanted

    def stop(self) -> None:
        """Start no further batch."""
        self._stopping = True

    @property
    def busy(self) -> bool:
        """Whether a batch is under way."""
        return self._busy.locked()

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query at the head's positions."""
        self._wake_for(self.head)
        started = query.start(spark, self._config, self.head, self._on_batch, counts=self._meter.folder)
        self._query.set_result(started)
        self.job_group = str(started.runId)
        return started

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
        """Adopt what others committed beside the batches. Raises `Fenced` where somebody took the stage over."""
        self._committer.refresh()

    def close(self) -> None:
        """Stop compactions and fetches under way, and commit nothing more."""
        self._committer.close()
        if self._homes is not None:
            self._homes.close()
        if self._upkeep is not None:
            self._upkeep.close()

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        with self._busy:
            if self._stopping:
                return
            try:
                with self._under_way():
                    self._run(rows, batch)
            except BaseException as error:
                # Spark shows a query's failure as text; the runner wants the error itself.
                self._fail(error)
                # A query that is stopped may fail of that. Spark matches the text of what it fails of with a regular
                # expression that overflows the thread's stack, and prints a thousand lines.
                if not self._stopping:
                    raise

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Inside, a batch is: its log lines and its span name it."""
        app, tracing = self.head.app, self._config.tracing
        with (
            working_on(app, self.stage.name, self.tip.version + 1),
            tracing.batch(app, self.stage.name) if tracing is not None else nullcontext() as self._span,
        ):
            yield

    def _fail(self, error: BaseException) -> None:
        if not self._settled:
            self.error = self.error or error

    def _run(self, rows: DataFrame, batch: int) -> None:
        checkpoint = self._config.checkpoint
        before, after = checkpoint.planned(batch - 1), checkpoint.planned(batch)
        tip = self.tip
        with_rows = any(has_rows(tip.inputs[name], end) for name, end in after.items())
        stall_seconds = 0.0
        if self._upkeep is not None and (with_rows or self._job.times(tip).pending):
            stall_seconds = self._upkeep.stall.wait(self._batch_s, lambda: self._stopping)
        if self._stopping:
            return
        self._again_if_outdated(lambda: self._make(rows, before, after, stall_seconds, with_rows=with_rows))

    def _again_if_outdated(self, make: Callable[[], None]) -> None:
        """Make a version, and once more where its app was promoted meanwhile, or keys were forgotten.

        Then its rows are for the sinks, too, or it may have read rows that are gone, objects and all.
        """
        tip = self.tip
        try:
            make()
        except Exception as error:
            self.check_epoch()
            if not isinstance(error, Outdated) and self.tip.forgotten == tip.forgotten:
                raise
            make()

    def _make(
        self,
        rows: DataFrame,
        before: Mapping[str, Position],
        after: Mapping[str, Position],
        stall_seconds: float,
        *,
        with_rows: bool,
    ) -> None:
        """Compute a batch, and have its version committed."""
        started = time.monotonic()
        # One head for all of the batch: a compaction may be adopted meanwhile.
        base = self.tip
        outcome, times = arrive(base, before, after, self._closed_snapshots), self._job.times(base)
        at = base.inputs
        moved = any((end.offsets, end.version) != (at[name].offsets, at[name].version) for name, end in after.items())
        if not moved and not outcome.changed and not times.pending:
            return
        written = Written()
        if with_rows or times.pending:
            merged = replace(base, ssts=plan.apply(base.ssts, self._finished))
            written = self._job.computed(rows, merged, after, times)
        self._submit(base, after, outcome, written, times, started, stall_seconds, with_rows=with_rows)

    def retry(self) -> None:
        """Put the rejected records that wait through the program: a batch of its own, between two others.

        Its version says in one commit what became of the table, of the channels and of each record. Raises what a batch
        raises, which ends the stage.
        """
        with self._busy:
            base, retry = self.tip, self._config.retry
            if self._stopping or retry is None or not rejected_of(base).waiting:
                return
            try:
                with self._under_way():
                    self._again_if_outdated(lambda: self._retry(retry))
            except BaseException as error:
                self._fail(error)
                raise

    def _retry(self, retry: Callable[[Batch], Written]) -> None:
        base, started = self.tip, time.monotonic()
        times = self._job.times(base)
        merged = replace(base, ssts=plan.apply(base.ssts, self._finished))
        written = retry(Batch(self._job, merged, {}, times))
        self._submit(base, {}, arrive(base, {}, {}, ()), written, times, started)

    def edit(self, store: ObjectStore, request: EditRequest) -> None:
        """Change rows by hand as asked, between two batches: a version of its own, unless one has it already.

        Where it cannot be done, the request says why. Raises what a commit raises, which ends the stage.
        """
        with self._busy:
            base, job = self.tip, self._job
            if self._stopping or done_by(store, request, base) is not None:
                return
            started = time.monotonic()
            try:
                try:
                    cut = newest(store, base.app, base.stage, base)
                    change = change_of(store, base.app, request)
                    made = edited(job.store, job.cache, cut, base.stage, change, request.edit)
                except SlackwaterError as error:
                    if isinstance(error, Unavailable):
                        raise
                    EDITS.put(store, replace(request, error=error.message), base.app)
                    return
                if made is None:
                    EDITS.put(store, replace(request, error="no row would change any more"), base.app)
                    return
                draft = commit.successor(
                    base, kind="edit", epoch=base.epoch, writer=base.writer, by=base.by, now_ms=instants.now_ms()
                )
                with self._under_way():
                    self._hand_over(base, made.onto(draft), (), started)
            except BaseException as error:
                self._fail(error)
                raise

    def _submit(
        self,
        base: Manifest,
        after: Mapping[str, Position],
        outcome: Outcome,
        written: Written,
        times: BatchTimes,
        started: float,
        stall_seconds: float = 0.0,
        *,
        with_rows: bool = True,
    ) -> None:
        """Write the markers behind a computed batch, and hand it over to be committed."""
        results, merges, places = tuple(written.results), self._finished, self._config.places
        markers = {}
        for snapshot, channel in outcome.markers:
            topic, partitions = base.outputs[channel].topic, len(base.outputs[channel].ends)
            sent = write_markers(open_kafka(places.kafka), topic, partitions, snapshot, places.patience_s)
            markers[snapshot, channel] = sent
        manifest = next_version(
            base,
            after,
            outcome,
            dataclasses.replace(written, markers=markers),
            merges,
            self._config.shape.time_rules,
            times,
            with_rows=with_rows,
            now_ms=instants.now_ms(),
            duration_ms=round((time.monotonic() - started) * 1000),
        )
        self._hand_over(base, manifest, merges, started, results, stall_seconds, written.traceparents)
        self._batch_s = time.monotonic() - started

    def _hand_over(
        self,
        base: Manifest,
        manifest: Manifest,
        merges: tuple[Done, ...],
        started: float,
        results: tuple[TaskReport, ...] = (),
        stall_seconds: float = 0.0,
        rejected: tuple[str, ...] = (),
    ) -> None:
        """Have the version after `base` committed; its tasks have reported `results`.

        `rejected` are the traces of records that it left out.
        """
        # Its SSTs are there, and when it is not committed nothing will be.
        missed = (name for result in results for name in result.ranged)
        due = self._upkeep.consider(manifest, merges, missed) if self._upkeep else ()
        span = self._span

        def on_commit(committed: Committed) -> None:
            self._on_move(self.head, self.tip)
            report = BatchReport.of(committed, results, due, stall_seconds)
            before, after = committed.before, committed.manifest
            with (
                span.committed(before, after, committed.commit_seconds, report.windows, rejected)
                if span is not None
                else nullcontext()
            ):
                self._on_commit(report)

        taken = sum((result.stats for result in results), Stats())
        self._committer.submit(PendingVersion(base, manifest, merges, started, on_commit, taken))
        self._wake_for(manifest)
        if self._config.limits.max_unflushed:
            self._on_move(self.head, self.tip)

    def _wake_for(self, tip: Manifest) -> None:
        """Have a batch start when a row falls due, or at once where one has."""
        if self._config.shape.due_by is None:
            return
        times, at_ms = tip.event_time, None
        if times is not None and times.next_due_ms is not None and (times.by_clock or times.owed):
            at_ms = times.next_due_ms if times.by_clock else 0
        self._config.planners.wake(tip.stage, tip.version, at_ms)

    @property
    def _finished(self) -> tuple[Done, ...]:
        """Merges that the next version may adopt."""
        return self._upkeep.finished if self._upkeep is not None else ()
