"""SSTs fetched beside a running stage, so that its look-ups find them on this machine.

After a restart on another machine the first batch starts at once and reads byte ranges of the SSTs that it needs. These
are fetched whole meanwhile, the newest first, and the batches after it find them here. The same for what a compaction
in another process put in the place of SSTs that were here.

The `Prefetcher` is for a driver whose tasks run on its own machine. One SST at a time, in a thread of the lowest
priority that is useful: a batch never waits for it, and finds each SST either here or not.

`Delivery` is for tasks on other machines. The driver merges, and what it has merged is brought to the homes of its
state partitions before a batch looks into it, by a Spark job with one small task at each.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from ...errors import SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.settings import S3Access
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs
from ...store.versions.manifest import Manifest, Sst, Table
from ..source.worker import configure_worker
from ..spark.homes import Homes
from ..spark.places import Places

_log = logging.getLogger("slackwater")

_NICE = 10
"""Below everything that a batch does."""
_FULL = 0.9
"""Of the cache's bytes; beyond, eviction begins."""
_EXPANSION = 4
"""An SST takes about so many times its bytes once it is decoded; known better when it is here."""


class Prefetcher:
    """Fetches for the table of one stage."""

    def __init__(self, store: ObjectStore, cache: SstCache, head: Manifest) -> None:
        self._store = store
        self._cache = cache
        self._head = head
        self._missing: set[str] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"prefetch-{head.stage}", initializer=_lower_priority)
        self._running: Future[None] | None = None
        self._stopping = threading.Event()

    def consider(self, head: Manifest, ranged: Iterable[str]) -> None:
        """Fetch what look-ups of the version just committed miss on this machine; returns at once.

        `ranged` are objects of which its tasks read byte ranges.
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
                self._cache.prefetch(self._store, sst, head.table)
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


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivers for one stage."""

    homes: Homes
    places: Places
    access: Callable[[], S3Access | None]
    """How workers get to the store, asked before each delivery."""

    def __call__(self, ssts: tuple[Sst, ...], table: Table) -> None:
        """Have these SSTs at home; returns when they are. Where that fails, batches fetch what they need."""
        places = dataclasses.replace(self.places, s3=self.access())
        try:
            self.homes.visit(_Fetch(places, ssts, table))
        except (Py4JError, PySparkException) as error:
            _log.debug("SSTs of %s/%s were not delivered: %s", places.app, places.stage, error)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """What a task does at the homes of its partitions, whose numbers it gets."""

    places: Places
    ssts: tuple[Sst, ...]
    table: Table

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        configure_worker()
        _, store, cache = self.places.open()
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for sst in sorted_runs.touching(self.ssts, partition, self.table.partitions):
                    cache.prefetch(store, sst, self.table)
            yield batch
