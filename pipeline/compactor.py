"""Compaction beside a running stage: merged off the critical path, committed with the next batch.

One merge at a time for each stage, in a thread of the driver (Arrow works without Python's lock). A result waits
until the next version names it instead of its inputs; a result that no version ever names is litter.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from ..store import compaction
from ..store.cache import SstCache
from ..store.errors import SlackwaterError
from ..store.manifest import Manifest, Sst
from ..store.objects import ObjectStore

__all__ = ["Compactor"]

_log = logging.getLogger("slackwater")


class Compactor:
    """Compacts the table of one stage."""

    def __init__(self, store: ObjectStore, cache: SstCache, head: Manifest) -> None:
        self._store = store
        self._cache = cache
        self._lock = threading.Lock()
        self._done: list[compaction.Done] = []
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"compact-{head.stage}")
        self._running: Future[None] | None = None

    def consider(self, head: Manifest) -> None:
        """Start what the head's runs call for, unless a merge is under way or waits to be committed."""
        with self._lock:
            if self._done or (self._running is not None and not self._running.done()):
                return
        picked = compaction.pick(head.ssts, head.table.partitions, clock_ms=head.clock_ms) if head.table else ()
        if picked:
            self._running = self._executor.submit(self._run, head, picked)

    def fold(self, ssts: tuple[Sst, ...]) -> tuple[Sst, ...]:
        """The runs of the version about to be committed, finished merges in the place of their inputs."""
        with self._lock:
            done, self._done = tuple(self._done), []
        return compaction.apply(ssts, done)

    def close(self) -> None:
        """Wait for the merge under way; drop those not begun."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, head: Manifest, picked: tuple[compaction.Compaction, ...]) -> None:
        assert head.table is not None  # noqa: S101  only a stage with a table has a compactor
        for one in picked:
            try:
                made = compaction.run(self._store, self._cache, head.app, head.stage, head.table, one)
            except SlackwaterError as error:
                # The runs stay as they are and are picked again: slower, never wrong.
                _log.warning("compaction of %s/%s put off: %s", head.app, head.stage, error)
                return
            with self._lock:
                self._done.append(made)
