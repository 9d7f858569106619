"""Commits a stage's versions in order, each on top of the newest committed version.

By default a batch ends with its commit. With `max_unflushed` a batch ends when its SSTs are durable on this machine: a
thread uploads them and commits, version after version, while the next batches run, as RocksDB flushes memtables in the
background. Each runner has one folder in which its SSTs wait. If a runner dies, the next runner removes that folder,
and computes the uncommitted versions again.

At commit time, the version on which a batch was built may no longer be the newest. For example, a compaction by another
process may have committed a version. A compaction changes no row, so the batch is rebased on the compaction's version
and gets the next number (`store.compaction.plan.rebase`). After a forget or a promotion, a batch that had an effect is
outdated, and is computed again. After any other kind of version, this writer stops.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from ...common import runtime
from ...errors import CommitConflict, Refused
from ...state.next_version import TaskReport
from ...state.records import format_windows
from ...store.compaction.plan import Compaction, Finished, rebase
from ...store.objects.counting import CountingStore, Stats, sum_shared_counts
from ...store.objects.local import SpooledStore
from ...store.objects.many import for_each_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.sst.sorted_runs import max_l0_files
from ...store.versions import commit, history
from ...store.versions.amend import Amendment, amend, read_base
from ...store.versions.manifest import EventTime, Manifest
from ...store.versions.side_tables import added_ssts, rejected_counts
from ..listener import BatchReport, StateSizes


class StageMeter:
    """Adds up one stage's requests to the store, from the driver's `stores` and from its planners.

    Each planner of a channel keeps a file of counts in `folder`. Only one thread at a time may call the methods, except
    `add`.
    """

    def __init__(self, folder: Path, *stores: CountingStore, clock: Callable[[], float] = runtime.monotonic) -> None:
        self.folder, self._stores, self._clock = folder, stores, clock
        self._since, self._planned, self._puts = clock(), Stats(), Stats()
        self._reported = deque[Stats]()

    def add(self, stats: Stats) -> None:
        """Count the requests of a task that belongs to no batch. Thread-safe."""
        self._reported.append(stats)

    def record_put(self, seconds: float) -> None:
        self._puts += Stats(commits=1, commit_ms=round(seconds * 1000))

    def take(self) -> Stats:
        """Return the requests counted since the last call. Tasks of batches report their own requests elsewhere."""
        now, planned = self._clock(), sum_shared_counts(self.folder)
        reported = [self._reported.popleft() for _ in range(len(self._reported))]
        total = sum(
            (*(store.take_stats() for store in self._stores), *reported, planned - self._planned),
            self._puts + Stats(ms=round((now - self._since) * 1000)),
        )
        self._since, self._planned, self._puts = now, planned, Stats()
        return total


_UPLOADS = 4


class OutdatedBatch(CommitConflict):
    """A batch was computed on outdated state. Compute it again."""


class PromotedMeanwhile(OutdatedBatch):
    """A batch was computed without the sinks that a promotion has added to the app in the meantime."""


class ForgottenMeanwhile(OutdatedBatch):
    """A batch may have been computed on rows of keys that were forgotten in the meantime."""


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """A committed version, the previous version, and the durations of the batch and of the commit."""

    previous: Manifest
    manifest: Manifest
    seconds: float
    """Seconds from the batch's start to the moment when the next batch could start."""
    commit_seconds: float
    unflushed: int


@dataclass(frozen=True, slots=True)
class PendingVersion:
    """A version that waits for its commit, and the version `base` on which its batch was built."""

    base: Manifest
    manifest: Manifest
    merges: tuple[Finished, ...]
    started: float
    on_commit: Callable[[CommittedVersion], None]
    stats: Stats = field(default_factory=Stats)

    @property
    def added_objects(self) -> frozenset[str]:
        return frozenset(sst.object for sst in added_ssts(self.base, self.manifest))


class Committer:
    """Commits versions of one claimed stage. All methods are thread-safe, except `submit`.

    Args:
        claimed: Manifest of the claim, which is the stage's head.
        meter: Counts the stage's store requests, which are recorded in the versions; None to count nothing.
        spool: Folder where SSTs wait for their upload; None if they are written to the store directly.
        max_unflushed: Maximum number of versions that are acknowledged and not committed; 0 for none.
        on_failure: Called with the error that stops all further commits, on a thread of this class.
    """

    def __init__(
        self,
        store: ObjectStore,
        claimed: Manifest,
        *,
        meter: StageMeter | None = None,
        spool: SpooledStore | None = None,
        max_unflushed: int = 0,
        on_failure: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        self.head = self._claimed = claimed
        self.is_synchronous = False
        """True while each batch must be committed before the next batch starts."""
        self._store, self._meter, self._spool = store, meter, spool
        self._max_unflushed, self._failed = max_unflushed, on_failure
        self._commit_lock = runtime.lock()
        self._uploaded: set[str] = set()
        self._changed = runtime.condition()
        """Guards the attributes below."""
        self._unflushed: deque[tuple[PendingVersion, float]] = deque()
        """Versions to commit, each with the seconds from its batch's start to its acknowledgement."""
        self._failure: BaseException | None = None
        self._closed = False
        if max_unflushed:
            runtime.thread(self._flush, name=f"flush-{claimed.stage}").start()

    @property
    def tip(self) -> Manifest:
        with self._changed:
            return self._unflushed[-1][0].manifest if self._unflushed else self.head

    def submit(self, change: PendingVersion) -> None:
        """Commit a version, or queue it. A commit makes one request, or more if the version's number is already in use.

        With `max_unflushed`, returns once at most that many versions wait for their commit. While `is_synchronous` is
        set, returns once this version is committed.

        Raises `Fenced` if a writer with a newer epoch took the stage over, `CommitConflict` if another writer committed
        a version on which the batch cannot be rebased, `OutdatedBatch` if the batch must be computed again, and
        `Refused` after `close`.
        """
        if not self._max_unflushed:
            self._commit(change)
            return
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or len(self._unflushed) < self._capacity)
            if self._failure is not None:
                raise self._failure
            if self._closed:
                name = f"{change.manifest.app}/{change.manifest.stage}"
                raise Refused(
                    f"stage {name} was stopped before its last batch was committed; the next run repeats the batch"
                )
            # `is_synchronous` may be set during the wait, so versions that were submitted earlier are committed first.
            if self._unflushed or not self.is_synchronous:
                self._unflushed.append((change, runtime.monotonic() - change.started))
                self._changed.notify_all()
                return
        self._commit(change)

    def drain(self, timeout_s: float) -> bool:
        """Wait until every submitted version is committed. Returns False after the timeout or a failure."""
        with self._changed:
            return (
                self._changed.wait_for(lambda: not self._unflushed or self._is_over, timeout_s) and not self._unflushed
            )

    def close(self) -> None:
        """Stop committing, and drop versions that are not committed yet."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def adopt_newest(self) -> None:
        """Adopt versions that other processes committed, such as compactions. Raises `Fenced` after a take-over."""
        # A commit in progress checks this itself, and may wait for storage.
        if not self._commit_lock.acquire(blocking=False):
            return
        try:
            head = read_base(self._store, self._claimed.app, self._claimed.stage, self.head) or self.head
            commit.check_epoch(head, self._claimed.epoch)
            if self._find_conflict(head) is None:
                self.head = head
        finally:
            self._commit_lock.release()

    @property
    def _capacity(self) -> int:
        return 1 if self.is_synchronous else self._max_unflushed

    @property
    def _is_over(self) -> bool:
        return self._closed or self._failure is not None

    def _flush(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unflushed or self._closed)
                if self._closed:
                    return
                change, seconds = self._unflushed[0]
            try:
                self._commit(change, seconds)
            except BaseException as error:
                # Report first: a caller that waits for the last version checks for errors as soon as `_failure` is set.
                self._failed(error)
                # The next `submit` raises it, too.
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._unflushed.popleft()
                self._changed.notify_all()

    def _commit(self, change: PendingVersion, acknowledged_s: float | None = None) -> None:
        claimed, rebased, started = self._claimed, change, 0.0

        def follows(head: Manifest) -> bool:
            nonlocal rebased
            commit.check_epoch(head, claimed.epoch)
            if (other := self._find_conflict(head)) is not None:
                raise commit.conflict_error(other, claimed.epoch)
            rebased = self._rebase(rebased, head)
            self._upload(rebased)
            return True

        def update(draft: Manifest) -> Manifest:
            nonlocal started
            started = runtime.monotonic()
            # The batch may be built on another process's version, such as a compaction.
            return structs.replace(rebased.manifest, writer=draft.writer, by=draft.by)

        with self._commit_lock:
            committed = amend(
                self._store,
                self.head,
                Amendment(change.manifest.kind, update, follows, claimed.epoch, change.stats),
                by=claimed.by,
                now_ms=change.manifest.time_ms,
                writer=claimed.writer,
                take_stats=self._meter.take if self._meter is not None else None,
            ).manifest
            ended = runtime.monotonic()
            if self._meter is not None:
                self._meter.record_put(ended - started)
            self.head = committed
        # The store has these SSTs now. Files of a dropped merge stay until the end, because a running batch may read
        # them.
        while self._spool is not None and self._uploaded:
            self._spool.drop_spooled(self._uploaded.pop())
        seconds = runtime.monotonic() - change.started if acknowledged_s is None else acknowledged_s
        change.on_commit(
            CommittedVersion(rebased.base, committed, seconds, ended - started, max(0, len(self._unflushed) - 1))
        )

    def _find_conflict(self, head: Manifest) -> Manifest | None:
        since = (
            history.read(self._store, head.app, head.stage, version)
            for version in range(self.head.version + 1, head.version + 1)
        )
        return next(
            (manifest for manifest in since if not manifest.traits.beside_batches or manifest.epoch != head.epoch), None
        )

    def _rebase(self, change: PendingVersion, head: Manifest) -> PendingVersion:
        """Rebase a version on the head. Raises `OutdatedBatch` if the batch has to be computed again."""
        if head.sinks.keys() != change.base.sinks.keys() or head.promotion != change.base.promotion:
            change = self._add_promoted_sinks(change, head)
        if head.forgotten != change.base.forgotten and change.added_objects:
            raise ForgottenMeanwhile(
                f"keys of {head.app}/{head.stage} were forgotten at v{head.version}, during a batch of this run",
                version=head.version,
                hint="run it again: the batch is computed again",
            )
        moved = replace(change, base=head)
        # It is the same version: at most its stats were updated since.
        if head.version != change.base.version:
            moved = replace(moved, manifest=rebase(change.base, change.manifest, head, change.merges))
        return moved

    def _add_promoted_sinks(self, change: PendingVersion, head: Manifest) -> PendingVersion:
        """Add the sinks of a promotion that was committed after the batch was computed.

        Raises `PromotedMeanwhile` if the batch had an effect, because the new sinks need its rows, too.
        """
        manifest = change.manifest
        rows_in = (source.rows for source in manifest.inputs.values())
        rows_out = (output.rows for output in manifest.outputs.values())
        has_sent = any(sink.rows for sink in manifest.sinks.values())
        if has_sent or (
            (change.added_objects or any(rows_in) or any(rows_out)) and manifest.traits.reads_records
        ):  # of the other kinds, only a repair sends rows, and only to sinks
            raise PromotedMeanwhile(
                f"stage {head.app}/{head.stage} was promoted at v{head.version}, during a batch of this run",
                version=head.version,
                hint="run it again: the batch is computed again",
            )
        promoted = {"sinks": head.sinks, "silent": head.silent, "promotion": head.promotion}
        return replace(change, manifest=structs.replace(manifest, **promoted))

    def _upload(self, change: PendingVersion) -> None:
        if self._spool is None or not (waiting := sorted(change.added_objects - self._uploaded)):
            return
        for_each_concurrently(self._spool.upload, waiting, min(_UPLOADS, len(waiting)))
        self._uploaded.update(waiting)


def spool_root(cache_folder: Path) -> Path:
    """Return the folder for the spools of all runners that share a cache: next to the cache, on the same disk."""
    return cache_folder.with_name(f"{cache_folder.name}-spool")


def batch_report(
    committed: CommittedVersion,
    results: tuple[TaskReport, ...],
    due: tuple[Compaction, ...] = (),
    stall_s: float = 0.0,
) -> BatchReport:
    previous, manifest = committed.previous, committed.manifest
    rejects, times = rejected_counts(manifest), manifest.event_time or EventTime()
    flushed = {sst.object: sst.bytes for result in results for sst in result.ssts}
    added, _ = manifest.ssts.changes_since(previous.ssts)
    state = StateSizes(
        files=len(manifest.ssts),
        bytes=sum(sst.bytes for sst in manifest.ssts),
        l0_files=max_l0_files(manifest.ssts, manifest.table.ranges if manifest.table else 1),
        debt_bytes=sum(compaction.input_bytes for compaction in due),
        flushed_bytes=sum(flushed.values()),
        compacted_bytes=sum(sst.bytes for sst in added if sst.object not in flushed),
        snapshots_under_way=len(manifest.recorded),
    )
    return BatchReport(
        app=manifest.app,
        stage=manifest.stage,
        version=manifest.version,
        rows_in=sum(read.rows for read in manifest.inputs.values()),
        keys=sum(sst.rows for result in results for sst in result.ssts),
        rows_out=sum(output.rows for output in manifest.outputs.values())
        + sum(sink.rows for sink in manifest.sinks.values()),
        windows=tuple(
            window
            for name, read in manifest.inputs.items()
            for window in format_windows(read.topic, previous.inputs[name].offsets, read.offsets)
        ),
        snapshots=tuple(name for name, at in manifest.recorded.items() if at == manifest.version),
        seconds=committed.seconds,
        commit_seconds=committed.commit_seconds,
        time_ms=manifest.time_ms,
        epoch=manifest.epoch,
        state=state,
        stats=manifest.stats or Stats(),
        stall_seconds=stall_s,
        unflushed=committed.unflushed,
        rejected=rejects.rows,
        rejected_waiting=rejects.waiting,
        watermark_ms=manifest.watermark_ms,
        ahead=times.ahead,
        late=times.late,
    )
