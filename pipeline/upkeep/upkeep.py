"""Background work of a stage with a table: merges, prefetching, write stalls.

A few merges at a time for each stage, in threads of the driver (Arrow releases Python's lock). A result waits until the
next version names it instead of its inputs; a result that no version names is an orphan.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from ...errors import SlackwaterError
from ...store.compaction import merge, plan
from ...store.compaction.picker import pick_for
from ...store.compaction.plan import Compaction, Done
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs
from ...store.versions.manifest import Manifest, Sst, Table
from ...store.versions.side_tables import all_ssts
from .prefetcher import Prefetcher
from .write_stall import Compacting, Stall, Triggers

_log = logging.getLogger("slackwater")


class Upkeep:
    """Merges a table's SSTs, prefetches SSTs, and delays batches when merges fall behind.

    Args:
        threads: Number of concurrent merges; 0 if another process merges.
        deliver: Sends the results of a merge to other machines, before a batch reads them; never raises.
        prefetch: True to prefetch, for tasks on this machine.
        triggers: Numbers of level 0 SSTs at which batches wait.
        tip: Returns the newest acknowledged version; None if no batch waits.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        head: Manifest,
        *,
        threads: int = 1,
        deliver: Callable[[tuple[Sst, ...], Table], None] | None = None,
        prefetch: bool = False,
        triggers: Triggers | None = None,
        tip: Callable[[], Manifest] | None = None,
    ) -> None:
        self._store, self._cache, self._deliver = store, cache, deliver
        self._prefetcher = Prefetcher(store, cache, head) if prefetch else None
        self._head = head
        self._tip = tip or (lambda: self._head)
        name = f"stage {head.app}/{head.stage}"
        self.stall = Stall(name, triggers or Triggers(), self._l0_files, lambda: self.doing, self._begin_if_idle)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._wanted: list[Compaction] = []
        """Merges that the newest version needs and that have not started, most urgent first."""
        self._busy: set[Compaction] = set()
        """Merges started and not yet committed."""
        self.finished: tuple[Done, ...] = ()
        """Merges whose results no version names yet (`plan.apply` adds them to a version)."""
        self._threads, self._working = threads, 0
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"compact-{head.stage}") if threads else None

    def consider(
        self, head: Manifest, merges: Collection[Done] = (), missed: Iterable[str] | None = None
    ) -> tuple[Compaction, ...]:
        """Start the merges that a version about to be committed needs, and return them.

        Drops unstarted merges of earlier versions. A merge that shares an input with a running or uncommitted merge
        waits. `merges` are the `finished` ones offered to the version: included, or dropped because they did not fit.
        `missed` are the objects of which the version's batch read byte ranges, to prefetch; None without a batch.
        """
        due = pick_for(head)
        if head.forgotten != self._head.forgotten:
            # Rewritten SSTs held forgotten keys, which must not remain in the cache.
            self._cache.drop({sst.object for sst in all_ssts(self._head)} - {sst.object for sst in all_ssts(head)})
        with self._lock:
            self._busy.difference_update(merge.compaction for merge in merges)
            self.finished = tuple(done for done in self.finished if done not in merges)
            self._head = head
            # Low levels first: merging new SSTs speeds up look-ups, and needs room in the next level.
            self._wanted = sorted(due, key=lambda compaction: compaction.output_level)
            if self._executor is not None:
                for _ in range(min(len(due), self._threads - self._working)):
                    self._working += 1
                    self._executor.submit(self._work)
        if self._prefetcher is not None and missed is not None:
            self._prefetcher.consider(head, missed)
        return due

    def close(self) -> None:
        """Stop running merges and fetches, and drop unstarted ones."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._closing.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    @property
    def doing(self) -> Compacting:
        """State of the merges."""
        with self._lock:
            if len(self._busy) > len(self.finished):
                return "under way"
            return "finished" if self.finished else "nothing"

    def _l0_files(self) -> int:
        tip = self._tip()
        assert tip.table is not None  # noqa: S101  only a stage with a table has upkeep
        return sorted_runs.l0_files(plan.apply(tip.ssts, self.finished), tip.table.partitions)

    def _begin_if_idle(self) -> None:
        if self.doing == "nothing":
            self.consider(self._tip())

    def _work(self) -> None:
        """Carry out compactions until no unstarted one is left."""
        while True:
            with self._lock:
                busy_inputs = {sst for compaction in self._busy for sst in compaction.inputs}
                free = [compaction for compaction in self._wanted if busy_inputs.isdisjoint(compaction.inputs)]
                if not free or self._closing.is_set():
                    self._working -= 1
                    return
                self._busy.add(free[0])
                self._wanted.remove(free[0])
                head = self._head
            self._run(head, free[0])

    def _run(self, head: Manifest, compaction: Compaction) -> None:
        assert head.table is not None  # noqa: S101  only a stage with a table has a compactor
        stop = self._closing.is_set
        done = None
        try:
            done = merge.run(self._store, self._cache, head.app, head.stage, head.table, compaction, stop=stop)
            if self._deliver is not None:
                self._deliver(done.outputs, head.table)
        except merge.Stopped:
            pass
        except SlackwaterError as error:
            # The runs stay and are picked again later: look-ups are slower but correct.
            _log.warning("compaction of %s/%s put off: %s", head.app, head.stage, error)
        except Exception:
            # A bug of ours: log it, because nothing reads this future's error. Later merges still start.
            _log.exception("compaction of %s/%s failed", head.app, head.stage)
        finally:
            # In all cases: a merge left in `_busy` would never be picked again, and batches would wait for it.
            with self._lock:
                if done is None:
                    self._busy.discard(compaction)
                else:
                    self.finished += (done,)
