"""All that goes on beside the batches of one stage with a table: merges off the critical path, fetches, write stalls.

A few merges at a time for each stage, in threads of the driver (Arrow works without Python's lock). A result waits
until the next version names it instead of its inputs; a result that no version ever names is an orphan.
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
    """Merges a table's SSTs, fetches what batches will need, and holds batches back when merges fall behind.

    Args:
        threads: So many merge at once; 0 when another process merges.
        deliver: Brings the results of a merge to other machines, before any batch looks into them; raises nothing.
        prefetch: Whether to fetch, for tasks that run on this machine.
        triggers: From how many SSTs of level 0 on batches wait.
        tip: Gives the newest acknowledged version, at any time; None where no batch waits.
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
        """What the head calls for and nobody has begun, most urgent first."""
        self._busy: set[Compaction] = set()
        """Begun, and not committed yet."""
        self.finished: tuple[Done, ...] = ()
        """The merges whose results no version names yet (`plan.apply` puts them into one)."""
        self._threads, self._working = threads, 0
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"compact-{head.stage}") if threads else None

    def consider(
        self, head: Manifest, merges: Collection[Done] = (), missed: Iterable[str] | None = None
    ) -> tuple[Compaction, ...]:
        """Start the merges that a version calls for that is about to be committed, and say which these are.

        What was called for by a version before it and nobody has begun is forgotten. What shares an input with a merge
        that is under way, or waits to be committed, waits too. `merges` are those of `finished` that were to be in the
        version: they are, or did not fit. The others wait for the next. Of the objects in `missed`, the version's batch
        read byte ranges: they are fetched; None where there was no batch.
        """
        due = pick_for(head)
        if head.forgotten != self._head.forgotten:
            # What was rewritten held keys that are to be nowhere any more.
            self._cache.drop({sst.object for sst in all_ssts(self._head)} - {sst.object for sst in all_ssts(head)})
        with self._lock:
            self._busy.difference_update(one.compaction for one in merges)
            self.finished = tuple(one for one in self.finished if one not in merges)
            self._head = head
            # Look-ups wait for what batches wrote last to be merged, and for that, upper levels to have room.
            self._wanted = sorted(due, key=lambda one: one.output_level)
            if self._executor is not None:
                for _ in range(min(len(due), self._threads - self._working)):
                    self._working += 1
                    self._executor.submit(self._work)
        if self._prefetcher is not None and missed is not None:
            self._prefetcher.consider(head, missed)
        return due

    def close(self) -> None:
        """Stop merges and fetches under way, and drop those not begun."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._closing.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    @property
    def doing(self) -> Compacting:
        """What it is at."""
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
        """Carry out one compaction after the other, until none is left to begin."""
        while True:
            with self._lock:
                taken = {sst for one in self._busy for sst in one.inputs}
                free = [one for one in self._wanted if taken.isdisjoint(one.inputs)]
                if not free or self._closing.is_set():
                    self._working -= 1
                    return
                self._busy.add(free[0])
                self._wanted.remove(free[0])
                head = self._head
            self._run(head, free[0])

    def _run(self, head: Manifest, one: Compaction) -> None:
        assert head.table is not None  # noqa: S101  only a stage with a table has a compactor
        stop = self._closing.is_set
        made = None
        try:
            made = merge.run(self._store, self._cache, head.app, head.stage, head.table, one, stop=stop)
            if self._deliver is not None:
                self._deliver(made.outputs, head.table)
        except merge.Stopped:
            pass
        except SlackwaterError as error:
            # The runs stay as they are and are picked again: slower, never wrong.
            _log.warning("compaction of %s/%s put off: %s", head.app, head.stage, error)
        except Exception:
            # A bug of ours, which would else stay in a future that nobody looks at. The next merges begin all the same.
            _log.exception("compaction of %s/%s failed", head.app, head.stage)
        finally:
            # Whatever ended it: what is taken for busy is picked no more, and batches wait for it.
            with self._lock:
                if made is None:
                    self._busy.discard(one)
                else:
                    self.finished += (made,)
