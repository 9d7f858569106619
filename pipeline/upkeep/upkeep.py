"""Background work of a stage with a table: merges of SSTs, prefetching, and write stalls.

Runs a few merges of a stage at a time, in threads of the driver (Arrow releases the GIL). Merges that would wait too
long for a thread run on executors, if there are any. The next version names a merge's result instead of its inputs; a
result that no version names is an orphan.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ...common import runtime
from ...common.runtime import Future
from ...errors import SlackwaterError
from ...store.compaction import merge, plan
from ...store.compaction.picker import Picker
from ...store.compaction.plan import Compaction, CompactionResult, Finished
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs
from ...store.versions.leaves.fold import Fold, fold_ssts, needs_fold
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import all_ssts, has_parts, part_tables, side_manifests
from ..api.table import L0_SLOWDOWN, L0_STOP
from .executors import MAX_MERGES, Executors

MergeProgress = Literal["nothing", "under way", "finished"]
"""Progress of a runner's merges of L0 SSTs; `finished` if results wait to be named by the next version."""

_POLL_S = 0.1
_GIVE_UP_S = 60.0

DRIVER_BYTES = 30 * (20 << 20)
"""Bytes of input that a thread of the driver merges within 30 seconds while batches run.

An otherwise idle core merges 30 MiB/s from a local disk, or 50 MiB/s if inputs are cached.
"""

_log = logging.getLogger("slackwater")


@dataclass(frozen=True, slots=True)
class StallTriggers:
    """Numbers of L0 SSTs in one hash range that delay or stop batches."""

    slowdown: int = L0_SLOWDOWN
    stop: int = L0_STOP

    def delay_s(self, l0: int, batch_s: float) -> float:
        """Return the delay of a batch in seconds: from 0 to `batch_s`, or infinity to stop batches."""
        if l0 < self.slowdown:
            return 0.0
        if l0 >= self.stop:
            return inf
        return batch_s * (l0 - self.slowdown + 1) / (self.stop - self.slowdown)


@dataclass(slots=True)
class WriteStall:
    """Delays the batches of one stage. Logs once whenever compaction begins to fall behind."""

    stage: str
    triggers: StallTriggers
    count_l0: Callable[[], int]
    """Function that returns the largest number of L0 SSTs in one hash range."""
    merge_progress: Callable[[], MergeProgress]
    start_merges: Callable[[], None]
    clock: Callable[[], float] = field(default=runtime.monotonic, kw_only=True)
    sleep: Callable[[float], None] = field(default=runtime.sleep, kw_only=True)
    _logged: set[str] = field(default_factory=set)
    _held_s: float = 0.0

    def wait(self, batch_s: float, stopping: Callable[[], bool]) -> float:
        """Delay a batch as long as needed, or until `stopping`; return the delay in seconds.

        `batch_s` is the last batch's duration.
        """
        began = self.clock()
        waited_s = 0.0
        while not stopping():
            l0 = self.count_l0()
            delay_s = self.triggers.delay_s(l0, batch_s)
            self._log_state(l0, delay_s)
            if delay_s and not waited_s:
                self.start_merges()
            if delay_s == inf:
                delay_s = self._stopped_s(batch_s, waited_s)
            if waited_s >= delay_s:
                break
            self.sleep(min(_POLL_S, delay_s - waited_s))
            waited_s = self.clock() - began
        self._held_s += waited_s
        return waited_s

    def _stopped_s(self, batch_s: float, waited_s: float) -> float:
        if (compacting := self.merge_progress()) != "nothing":
            return inf if compacting == "under way" else 0.0
        if "gave up" in self._logged:
            return batch_s
        if waited_s >= _GIVE_UP_S:
            self._log_once("gave up", f"no compaction for {waited_s:.0f} s; batches continue, slowed down")
        return _GIVE_UP_S

    def _log_state(self, l0: int, delay_s: float) -> None:
        ssts, slowdown, stop = f"{l0} L0 SSTs in one hash range", self.triggers.slowdown, self.triggers.stop
        if delay_s == inf:
            self._log_once("stopped", f"{ssts} (l0_stop is {stop}): no batch starts before compaction has merged them")
        elif delay_s:
            rule = f"(l0_slowdown is {slowdown}): batches are delayed until compaction has caught up"
            self._log_once("slowed down", f"{ssts} {rule}")
        elif self._logged and l0 < slowdown:
            self._log_once("", f"{ssts}; batches were delayed for {self._held_s:.0f} s")
            self._logged.clear()
            self._held_s = 0.0

    def _log_once(self, state: str, message: str) -> None:
        if state not in self._logged:
            self._logged.add(state)
            _log.warning("%s: %s", self.stage, message)


def exceeding(waiting: Iterable[Compaction], running_bytes: int, driver_bytes: int) -> Iterator[Compaction]:
    """Yield the merges that should not wait for a thread of the driver, most urgent first.

    The driver keeps merges without input to read. It also keeps the first merges, up to `driver_bytes` bytes of input;
    the `running_bytes` of its running merges count towards this limit.
    """
    debt_bytes = running_bytes
    for compaction in waiting:
        debt_bytes += compaction.input_bytes
        if debt_bytes > driver_bytes and compaction.input_bytes:
            yield compaction


class Upkeep:
    """Merges a table's SSTs, prefetches SSTs, and delays batches when merges fall behind.

    Args:
        threads: Number of concurrent merges on the driver; 0 if another process merges.
        executors: Runs merges that the driver would finish too late, and sends results to the executors that read them;
            None if all tasks run on this machine.
        driver_bytes: Input bytes of merges for each thread above which executors get further merges.
        prefetch: True to prefetch SSTs, for tasks on this machine.
        triggers: Numbers of level 0 SSTs at which batches wait.
        tip: Returns the newest acknowledged version; None for an upkeep whose batches never wait.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        head: Manifest,
        *,
        threads: int = 1,
        executors: Executors | None = None,
        driver_bytes: int = DRIVER_BYTES,
        prefetch: bool = False,
        triggers: StallTriggers | None = None,
        tip: Callable[[], Manifest] | None = None,
    ) -> None:
        self._store, self._cache, self._executors = store, cache, executors
        self._prefetcher = Prefetcher(store, cache, head) if prefetch else None
        self._head = head
        self._tip = tip or (lambda: self._head)
        name = f"stage {head.app}/{head.stage}"
        self.stall = WriteStall(
            name, triggers or StallTriggers(), self._l0_files, lambda: self.merge_progress, self._start_if_idle
        )
        self._pickers: defaultdict[str, Picker] = defaultdict(Picker)
        """Pickers of the stage's table (empty name) and of its tables of parts."""
        self._lock = runtime.lock()
        self._closing = runtime.event()
        self._waiting_merges: list[Compaction] = []
        """Merges that the newest version needs and that have not started, most urgent first."""
        self._tables: dict[Compaction, Table] = {}
        """Table of each waiting merge."""
        self._running_merges: set[Compaction] = set()
        """Merges started and not yet committed."""
        self._finished_merges: tuple[CompactionResult, ...] = ()
        self._folding = False
        self._fold: Fold | None = None
        """Fold whose leaves no version names yet; `_folding` is True from its start until a version names its leaves.
        """
        self._driver_merges: set[Compaction] = set()
        """Running merges that have a thread of the driver."""
        self._threads, self._driver_bytes = threads, threads * driver_bytes
        # A merge on an executor has a thread that waits for it.
        most = threads + (MAX_MERGES if executors is not None else 0)
        self._pool = runtime.executor(most, name=f"compact-{head.stage}") if threads else None

    @property
    def finished(self) -> tuple[Finished, ...]:
        """Merges and a fold whose results no version names yet (`plan.apply_results` adds them to a version)."""
        with self._lock:
            return (*self._finished_merges, *((self._fold,) if self._fold is not None else ()))

    def start_merges(
        self, head: Manifest, offered: Collection[Finished] = (), missed: Iterable[str] | None = None
    ) -> tuple[Compaction, ...]:
        """Start the merges that a version needs, shortly before its commit, and return them.

        Drops unstarted merges of earlier versions. A merge that shares an input with a running or uncommitted merge
        waits. `offered` are the finished merges and folds that were offered to the version; the version names their
        results, unless a result did not fit and was dropped. `missed` are the objects from which the version's batch
        read byte ranges; these objects will be prefetched. `missed` is None without a batch.
        """
        tables = {
            compaction: at.table
            for name, at in (("", head), *((side.name, side) for side in side_manifests(head)))
            if at.table is not None and (at is head or has_parts(at.table))
            for compaction in self._pickers[name].pick(at)
        }
        due = tuple(tables)
        if head.forgotten != self._head.forgotten:
            # The rewritten SSTs contained forgotten keys, which must not remain in the cache.
            self._cache.drop({sst.object for sst in all_ssts(self._head)} - {sst.object for sst in all_ssts(head)})
        with self._lock:
            merges = {done.compaction for done in offered if isinstance(done, CompactionResult)}
            self._running_merges -= merges
            self._finished_merges = tuple(done for done in self._finished_merges if done.compaction not in merges)
            if self._fold is not None and self._fold in offered:
                self._folding, self._fold = False, None
            self._head, self._tables = head, tables
            # Low levels first: merging new SSTs speeds up look-ups, and needs room in the next level.
            self._waiting_merges = sorted(due, key=lambda compaction: compaction.output_level)
            self._start_waiting()
        if self._prefetcher is not None and missed is not None:
            self._prefetcher.prefetch_missing(head, missed)
        return due

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
        with self._lock:
            self._closing.set()
        if self._executors is not None:
            self._executors.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def merge_progress(self) -> MergeProgress:
        with self._lock:
            if len(self._running_merges) > len(self._finished_merges):
                return "under way"
            return "finished" if self._finished_merges else "nothing"

    def _l0_files(self) -> int:
        tip = self._tip()
        assert tip.table is not None  # noqa: S101  only a stage with a table has upkeep
        merged = plan.apply_to_manifest(tip, self.finished)
        ssts_by_table = [merged.ssts, *(side.ssts for side in part_tables(merged).values())]
        return max(sorted_runs.max_l0_files(ssts, tip.table.ranges) for ssts in ssts_by_table)

    def _start_if_idle(self) -> None:
        if self.merge_progress == "nothing":
            self.start_merges(self._tip())

    def _start_waiting(self) -> None:
        """Start waiting merges, as long as threads and slots are free, and a fold. The caller holds the lock."""
        if self._pool is None or self._closing.is_set():
            return
        if not self._folding and needs_fold(self._head):
            self._folding = True
            self._pool.submit(self._run_fold, self._head)
        busy_inputs = {sst for compaction in self._running_merges for sst in compaction.inputs}
        free = [compaction for compaction in self._waiting_merges if busy_inputs.isdisjoint(compaction.inputs)]
        threads = self._threads - len(self._driver_merges)
        for compaction in free[:threads]:
            self._driver_merges.add(compaction)
            self._start(compaction)
        if self._executors is None:
            return
        running_bytes = sum(compaction.input_bytes for compaction in self._driver_merges)
        for compaction in exceeding(free[threads:], running_bytes, self._driver_bytes):
            if not self._executors.slots.take():
                return
            self._start(compaction, self._executors)

    def _start(self, compaction: Compaction, executors: Executors | None = None) -> None:
        assert self._pool is not None  # noqa: S101  the caller has checked it
        self._running_merges.add(compaction)
        self._waiting_merges.remove(compaction)
        self._pool.submit(self._run, self._head, self._tables[compaction], compaction, executors)

    def _run(self, head: Manifest, table: Table, compaction: Compaction, executors: Executors | None = None) -> None:
        """Run a merge, on executors if given. The caller has taken the slot that the merge uses."""
        stop = self._closing.is_set
        done = None
        try:
            if executors is not None:
                done = executors.run_compaction(table, compaction, should_stop=stop)
            else:
                done = merge.run_compaction(
                    self._store, self._cache, head.app, head.stage, table, compaction, should_stop=stop
                )
            if self._executors is not None:
                self._executors.deliver(done.outputs, table)
        except merge.MergeStopped:
            pass
        except SlackwaterError as error:
            # The runs stay and are picked again later: until then, look-ups are slower but correct.
            _log.warning("compaction of %s/%s postponed: %s", head.app, head.stage, error)
        except Exception:
            # A bug of slackwater: log it, because nothing reads the error of this future. Later merges still start.
            _log.exception("compaction of %s/%s failed", head.app, head.stage)
        finally:
            # In all cases: a merge that stayed in `_busy` would never be picked again, and batches would wait for it.
            if executors is not None:
                executors.slots.give_back()
            with self._lock:
                self._driver_merges.discard(compaction)
                if done is None:
                    self._running_merges.discard(compaction)
                else:
                    self._finished_merges += (done,)
                self._start_waiting()

    def _run_fold(self, head: Manifest) -> None:
        fold = None
        try:
            fold = fold_ssts(self._store, head)
        except SlackwaterError as error:
            # The manifest stays large until a later version is folded.
            _log.warning("the manifest of %s/%s was not folded: %s", head.app, head.stage, error)
        except Exception:
            _log.exception("folding the manifest of %s/%s failed", head.app, head.stage)
        finally:
            with self._lock:
                self._folding, self._fold = fold is not None, fold


_MAX_CACHE_FILL = 0.9
_EXPANSION = 4
"""Approximate ratio of an SST's decoded bytes to its stored bytes, for SSTs that are not cached."""


class Prefetcher:
    """Prefetches SSTs for a driver whose tasks run on its own machine, one SST at a time, at low priority.

    Batches never wait for it.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, head: Manifest) -> None:
        self._store, self._cache, self._head = store, cache, head
        self._missing: set[str] = set()
        self._executor = runtime.executor(1, name=f"prefetch-{head.stage}", initializer=runtime.lower_priority)
        self._running: Future[None] | None = None
        self._stopping = runtime.event()

    def prefetch_missing(self, head: Manifest, ranged: Iterable[str]) -> None:
        """Start fetching the SSTs of `head` that look-ups on this machine need and its cache lacks. Returns at once.

        `ranged` are the objects from which the version's tasks read byte ranges.
        """
        # Outputs of compactions are fetched as well, if they replace cached SSTs.
        new, gone = head.ssts.changes_since(self._head.ssts)
        merged = [sst for sst in new if sst.level and not self._cache.has(sst)]
        cached = [sst for sst in gone if self._cache.has(sst)] if merged else []
        replaced = {
            sst.object
            for sst in merged
            if any(old.hash_min <= sst.hash_max and old.hash_max >= sst.hash_min for old in cached)
        }
        if missing := self._missing | set(ranged) | replaced:
            self._missing = missing & {sst.object for sst in head.ssts}
        self._head = head
        idle = self._running is None or self._running.done()
        if self._missing and idle and not self._stopping.is_set():
            self._running = self._executor.submit(self._run, head, frozenset(self._missing))

    def close(self) -> None:
        self._stopping.set()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, head: Manifest, missing: frozenset[str]) -> None:
        assert head.table is not None  # noqa: S101  only a stage with a table has a prefetcher
        sizes = {sst: self._cache.size_of(sst) for sst in head.ssts}
        total_bytes = sum(sizes.values())
        for sst in sorted(sizes, key=lambda sst: -sst.seq_max):
            if sst.object not in missing or sizes[sst]:
                continue
            total_bytes += sst.bytes * _EXPANSION
            if total_bytes > self._cache.max_bytes * _MAX_CACHE_FILL or self._stopping.is_set():
                return
            try:
                self._cache.prefetch(self._store, sst, head.table)
            except SlackwaterError as error:
                # Look-ups that need the SST will raise the error.
                _log.warning("prefetch of %s/%s postponed: %s", head.app, head.stage, error)
                return
