"""One stage at work: a streaming query whose every batch ends in one commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ... import instants
from ...fold.event_time import BatchTimes
from ...fold.next_version import Outcome, Written, has_rows, next_version
from ...fold.records import Position
from ...keep.backfill.fill import fill_changes
from ...store.compaction import plan
from ...store.objects.local import SpooledStore
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.settings import S3Access
from ...store.objects.stats import Stats
from ...store.read.cache import SstCache
from ...store.versions.aside import rejected_of
from ...store.versions.manifest import Input, Manifest, Output
from ..kafka.messages import write_markers
from ..kafka.open import open_kafka
from ..spark.homes import Homes
from ..upkeep.meter import StageMeter
from ..upkeep.prefetcher import Delivery
from ..upkeep.upkeep import Upkeep
from . import query
from .batch_report import BatchReport
from .committer import Committer
from .head import Change, Committed
from .job import Computed
from .snapshot_events import arrive, unchanged
from .stage_job import StageConfig, StageJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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
        self._shape = config.shape
        self._limits = config.limits
        self._meter = meter
        self._on_commit = on_commit
        self._on_move = on_move
        self._busy = threading.Lock()
        self._stopping = self._settled = False
        self.error: BaseException | None = None
        """What ended the stage, unless it was stopped."""
        self._closed_snapshots: frozenset[str] = frozenset()
        self._batch_s = 0.0
        """What the batch before took."""
        has_table, places = self._shape.table is not None, config.places
        # On this machine all tasks have one cache.
        self._homes = Homes() if places.elsewhere else None
        spool = SpooledStore(store, Path(places.spool)) if places.spool else None
        cache = SstCache(*places.cache)
        near: ObjectStore = spool or store
        self._committer = Committer(
            store,
            claimed,
            meter=meter,
            spool=spool,
            max_unflushed=self._limits.max_unflushed,
            failed=self._fail,
            fill=partial(fill_changes, near, cache) if has_table else None,
        )
        self._job = StageJob(config, near, cache, homes=self._homes, access=access, stopping=lambda: self._stopping)
        self._upkeep = (
            Upkeep(
                near,
                cache,
                claimed,
                threads=config.compaction_threads,
                triggers=self._limits.stall,
                prefetch=config.prefetch,
                deliver=Delivery(self._homes, places, access) if self._homes else None,
                tip=lambda: self.tip,
            )
            if has_table
            else None
        )

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
        self._wake_for(self.head)
        return query.start(spark, self._config, self.head, self._on_batch, counts=self._meter.folder)

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
        if self._upkeep is not None:
            self._upkeep.close()

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        with self._busy:
            if self._stopping:
                return
            try:
                self._run(rows, batch)
            except BaseException as error:
                # Spark shows a query's failure as text; the runner wants the error itself.
                self._fail(error)
                # A query that is stopped may fail of that. Spark matches the text of what it fails of with a regular
                # expression that overflows the thread's stack, and prints a thousand lines.
                if not self._stopping:
                    raise

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
            stall_seconds = self._upkeep.wait(self._batch_s, lambda: self._stopping)
        if self._stopping:
            return
        started = time.monotonic()
        # One head for all of the batch: a compaction may be adopted meanwhile.
        base = self.tip
        outcome, times = arrive(base, before, after, self._closed_snapshots), self._job.times(base)
        at = base.inputs
        moved = any((end.offsets, end.version) != (at[name].offsets, at[name].version) for name, end in after.items())
        if not moved and not outcome.changed and not times.pending:
            return
        computed = Computed()
        if with_rows or times.pending:
            computed = self._job.computed(rows, self._job.batch(self._merged(base), after, times))
        markers = {mark: self._write_markers(mark[0], base.outputs[mark[1]]) for mark in outcome.markers}
        self._submit(base, after, outcome, computed, markers, times, started, stall_seconds, with_rows=with_rows)

    def retry(self) -> None:
        """Put the rejected records that wait through the program: a batch of its own, between two others.

        Its version says in one commit what became of the table, of the channels and of each record. Raises what a batch
        raises, which ends the stage.
        """
        with self._busy:
            base, rejecter = self.tip, self._config.rejecter
            if self._stopping or rejecter is None or not rejected_of(base).waiting:
                return
            started, times = time.monotonic(), self._job.times(base)
            try:
                computed = rejecter.retry(self._job.batch(self._merged(base), {}, times))
                self._submit(base, {}, unchanged(base), computed, {}, times, started)
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
        times: BatchTimes,
        started: float,
        stall_seconds: float = 0.0,
        *,
        with_rows: bool = True,
    ) -> None:
        """Hand a computed batch over to be committed."""
        results, merges = computed.results, self._upkeep.finished if self._upkeep else ()
        manifest = next_version(
            base,
            after,
            outcome,
            Written(results, markers, computed.aside),
            merges,
            self._shape.time_rules,
            times,
            with_rows=with_rows,
            now_ms=instants.now_ms(),
            duration_ms=round((time.monotonic() - started) * 1000),
        )
        # Its SSTs are there, and when it is not committed nothing will be.
        missed = (name for result in results for name in result.ranged)
        due = self._upkeep.consider(manifest, merges, missed) if self._upkeep else ()

        def on_commit(committed: Committed) -> None:
            self._on_move(self.head, self.tip)
            self._on_commit(BatchReport.of(committed, results, due, stall_seconds))

        taken = sum((result.stats for result in results), Stats())
        self._committer.submit(Change(base, manifest, merges, started, on_commit, taken))
        self._wake_for(manifest)
        self._batch_s = time.monotonic() - started
        if self._limits.max_unflushed:
            self._on_move(self.head, self.tip)

    def _wake_for(self, tip: Manifest) -> None:
        """Have a batch start when a row falls due, or at once where one has."""
        if self._shape.due_by is None:
            return
        times, at_ms = tip.event_time, None
        if times is not None and times.next_due_ms is not None and (times.by_clock or times.owed):
            at_ms = times.next_due_ms if times.by_clock else 0
        self._config.told.wake(tip.stage, tip.version, at_ms)

    def _merged(self, base: Manifest) -> Manifest:
        """A version as it is once finished merges are adopted."""
        return replace(base, ssts=plan.apply(base.ssts, self._upkeep.finished if self._upkeep else ()))

    def _write_markers(self, snapshot: str, output: Output) -> tuple[int, ...]:
        places = self._config.places
        return write_markers(open_kafka(places.kafka), output.topic, len(output.ends), snapshot, places.patience_s)
