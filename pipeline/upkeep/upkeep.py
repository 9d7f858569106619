"""All that goes on beside the batches of one stage with a table: merges off the critical path, fetches, write stalls.

A few merges at a time for each stage, in threads of the driver (Arrow works without Python's lock). A result waits
until the next version names it instead of its inputs; a result that no version ever names is an orphan.
"""

from __future__ import annotations

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
from .prefetcher import Delivery, Prefetcher
from .write_stall import Compacting, Stall, Triggers

_log = logging.getLogger("slackwater")


class Compactor:
    """Compacts the table of one stage: so many `threads` merge at once, 0 when another process merges.

    `deliver` brings the results of a merge to other machines, before any batch looks into them; it raises nothing.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        head: Manifest,
        *,
        threads: int = 1,
        deliver: Callable[[tuple[Sst, ...], Table], None] | None = None,
    ) -> None:
        self._store, self._cache, self._deliver = store, cache, deliver
        self._head = head
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

    def consider(self, head: Manifest, merges: Collection[Done] = ()) -> tuple[Compaction, ...]:
        """Start what a version calls for that is about to be committed, and say what that is.

        What was called for by a version before it and nobody has begun is forgotten. What shares an input with a merge
        that is under way, or waits to be committed, waits too. `merges` are those of `finished` that were to be in the
        version: they are, or did not fit. The others wait for the next.
        """
        due = pick_for(head)
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
        return due

    @property
    def doing(self) -> Compacting:
        """What it is at."""
        with self._lock:
            if len(self._busy) > len(self.finished):
                return "under way"
            return "finished" if self.finished else "nothing"

    def close(self) -> None:
        """Stop the merges under way, and drop those not begun."""
        self._closing.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def _work(self) -> None:
        """Carry out one compaction after the other, until none is left to begin."""
        while (begun := self._begin()) is not None:
            self._run(*begun)

    def _begin(self) -> tuple[Manifest, Compaction] | None:
        with self._lock:
            taken = {sst for one in self._busy for sst in one.inputs}
            for one in self._wanted:
                if taken.isdisjoint(one.inputs) and not self._closing.is_set():
                    self._busy.add(one)
                    self._wanted.remove(one)
                    return self._head, one
            self._working -= 1
            return None

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


class Upkeep:
    """Merges a table's SSTs, fetches what batches will need, and holds batches back when merges fall behind.

    `threads` and `deliver` are those of `Compactor`; from so many SSTs of level 0 as the `triggers` say batches wait.
    `prefetch` is for tasks that run on this machine. `tip` gives the newest acknowledged version.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        claimed: Manifest,
        *,
        threads: int,
        triggers: Triggers,
        prefetch: bool,
        deliver: Delivery | None,
        tip: Callable[[], Manifest],
    ) -> None:
        self._tip = tip
        self._compactor = compactor = Compactor(store, cache, claimed, threads=threads, deliver=deliver)
        self._prefetcher = Prefetcher(store, cache, claimed) if prefetch else None
        name = f"stage {claimed.app}/{claimed.stage}"
        self._stall = Stall(name, triggers, self._l0_files, lambda: compactor.doing, self._begin)

    @property
    def finished(self) -> tuple[Done, ...]:
        """Merges that the next version may adopt."""
        return self._compactor.finished

    def wait(self, batch_s: float, stopping: Callable[[], bool]) -> float:
        """Hold a batch back while merges are behind; seconds. `batch_s` is what the one before took."""
        return self._stall.wait(batch_s, stopping)

    def consider(self, tip: Manifest, adopted: tuple[Done, ...], missed: Iterable[str]) -> tuple[Compaction, ...]:
        """Merge and fetch what a new version makes due: it `adopted` merges, and its batch `missed` SSTs. Those due."""
        due = self._compactor.consider(tip, adopted)
        if self._prefetcher is not None:
            self._prefetcher.consider(tip, missed)
        return due

    def close(self) -> None:
        """Stop merges and fetches under way."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._compactor.close()

    def _l0_files(self) -> int:
        tip = self._tip()
        assert tip.table is not None  # noqa: S101  only a stage with a table has upkeep
        return sorted_runs.l0_files(plan.apply(tip.ssts, self._compactor.finished), tip.table.partitions)

    def _begin(self) -> None:
        if self._compactor.doing == "nothing":
            self._compactor.consider(self._tip())
