"""SSTs fetched beside a running stage, so that its look-ups find them on this machine.

After a restart on another machine the first batch starts at once and reads byte ranges of the SSTs that it needs. These
are fetched whole meanwhile, the newest first, and the batches after it find them here. The same for what a compaction
in another process put in the place of SSTs that were here.

For a driver whose tasks run on its own machine. One SST at a time, in a thread of the lowest priority that is useful:
a batch never waits for it, and finds each SST either here or not.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from ...errors import SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.read_stats import Reads
from ...store.versions.manifest import Manifest, Sst

_log = logging.getLogger("slackwater")

_NICE = 10
"""Below everything that a batch does."""
_FULL = 0.9
"""Of the cache's bytes; beyond, eviction begins."""
_EXPANSION = 4
"""An SST takes about so many times its bytes once it is decoded; known better when it is here."""


class Prefetcher:
    """Fetches for the table of one stage.

    Attributes:
        reads: What was asked of the store so far.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, head: Manifest) -> None:
        self.reads = Reads()
        self._store = store
        self._cache = cache
        self._head = head
        self._missing: set[str] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"prefetch-{head.stage}", initializer=_lower_priority)
        self._running: Future[None] | None = None
        self._stopping = threading.Event()

    def consider(self, head: Manifest, ranged: Iterable[str]) -> None:
        """Fetch what the head's look-ups miss on this machine; returns at once.

        Args:
            head: The version just committed.
            ranged: Objects of which its tasks read byte ranges.
        """
        replaced = _replacements(self._head.ssts, head.ssts, self._cache)
        self._missing = (self._missing | set(ranged) | replaced) & {sst.object for sst in head.ssts}
        self._head = head
        idle = self._running is None or self._running.done()
        if self._missing and idle and not self._stopping.is_set():
            self._running = self._executor.submit(self._run, head, frozenset(self._missing))

    def close(self) -> None:
        """Wait for the SST under way; fetch no more."""
        self._stopping.set()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, head: Manifest, wanted: frozenset[str]) -> None:
        assert head.table is not None  # noqa: S101  only a stage with a table has a prefetcher
        for sst in _within(head.ssts, wanted, self._cache):
            if self._stopping.is_set():
                return
            try:
                self._cache.prefetch(self._store, sst, head.table, self.reads)
            except SlackwaterError as error:
                # Whoever needs it gets the error.
                _log.warning("prefetch of %s/%s put off: %s", head.app, head.stage, error)
                return


def _within(ssts: Iterable[Sst], wanted: frozenset[str], cache: SstCache) -> Iterator[Sst]:
    """The wanted SSTs that are not here, newest first, as many as the cache can hold beside the others of the head."""
    sizes = {sst: cache.size_of(sst) for sst in ssts}
    held = sum(sizes.values())
    for sst in sorted(sizes, key=lambda sst: -sst.seq_max):
        if sst.object in wanted and not sizes[sst]:
            held += sst.bytes * _EXPANSION
            if held > cache.max_bytes * _FULL:
                return
            yield sst


def _replacements(before: tuple[Sst, ...], after: tuple[Sst, ...], cache: SstCache) -> set[str]:
    """The objects of compactions' outputs that took the place of SSTs that are here."""
    gone = set(before) - set(after)
    new = [sst for sst in set(after) - set(before) if sst.level]
    here = [sst for sst in gone if cache.has(sst)] if new else []
    return {
        sst.object
        for sst in new
        if not cache.has(sst) and any(old.hash_min <= sst.hash_max and old.hash_max >= sst.hash_min for old in here)
    }


def _lower_priority() -> None:
    # On Linux each thread has a priority of its own.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
