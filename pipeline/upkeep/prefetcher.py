"""Background prefetching of SSTs to the machine of a stage's tasks, for look-ups.

After a restart on another machine, the first batch starts at once and reads byte ranges of the SSTs that it needs.
Meanwhile these SSTs are fetched whole, for the next batches. Outputs of a compaction in another process are fetched
too, if they replace SSTs that are in the cache.
"""

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
from ...store.objects.s3_settings import S3Access
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs
from ...store.versions.manifest import Manifest, Sst, Table
from ..source.worker import configure_worker
from ..spark.places import Places
from ..spark.task_placement import Homes

_log = logging.getLogger("slackwater")

_NICE = 10
"""Priority below everything that a batch does."""
_FULL = 0.9
"""Fraction of the cache that may be filled without eviction."""
_EXPANSION = 4
"""Approximate ratio of an SST's decoded to its stored bytes, until it is cached."""


class Prefetcher:
    """Prefetches SSTs for a driver whose tasks run on its own machine.

    One SST at a time, in a low-priority thread: batches never wait for it.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, head: Manifest) -> None:
        self._store, self._cache, self._head = store, cache, head
        self._missing: set[str] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"prefetch-{head.stage}", initializer=lower_priority)
        self._running: Future[None] | None = None
        self._stopping = threading.Event()

    def consider(self, head: Manifest, ranged: Iterable[str]) -> None:
        """Start fetching the SSTs that look-ups of the committed version miss on this machine; returns at once.

        `ranged` are the objects of which its tasks read byte ranges.
        """
        # Outputs of compactions are fetched too, if they replace cached SSTs.
        gone, new = set(self._head.ssts) - set(head.ssts), set(head.ssts) - set(self._head.ssts)
        merged = [sst for sst in new if sst.level and not self._cache.has(sst)]
        cached = [sst for sst in gone if self._cache.has(sst)] if merged else []
        replaced = {
            sst.object
            for sst in merged
            if any(old.hash_min <= sst.hash_max and old.hash_max >= sst.hash_min for old in cached)
        }
        self._missing = (self._missing | set(ranged) | replaced) & {sst.object for sst in head.ssts}
        self._head = head
        idle = self._running is None or self._running.done()
        if self._missing and idle and not self._stopping.is_set():
            self._running = self._executor.submit(self._run, head, frozenset(self._missing))

    def close(self) -> None:
        """Wait for the current SST, and fetch no more."""
        self._stopping.set()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, head: Manifest, missing: frozenset[str]) -> None:
        """Fetch missing SSTs, newest first, as far as they fit into the cache with the others of the head."""
        assert head.table is not None  # noqa: S101  only a stage with a table has a prefetcher
        sizes = {sst: self._cache.size_of(sst) for sst in head.ssts}
        total_bytes = sum(sizes.values())
        for sst in sorted(sizes, key=lambda sst: -sst.seq_max):
            if sst.object not in missing or sizes[sst]:
                continue
            total_bytes += sst.bytes * _EXPANSION
            if total_bytes > self._cache.max_bytes * _FULL or self._stopping.is_set():
                return
            try:
                self._cache.prefetch(self._store, sst, head.table)
            except SlackwaterError as error:
                # Look-ups that need the SST will raise the error.
                _log.warning("prefetch of %s/%s put off: %s", head.app, head.stage, error)
                return


def lower_priority() -> None:
    """Lower the priority of the calling thread below all work of batches."""
    # On Linux, each thread has its own priority.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Sends outputs of merges to the machines of their state partitions, by a small Spark job."""

    homes: Homes
    places: Places
    access: Callable[[], S3Access | None]
    """Returns the workers' store credentials; called before each delivery."""

    def __call__(self, ssts: tuple[Sst, ...], table: Table) -> None:
        """Send the SSTs, and return when they have arrived. If that fails, batches fetch what they need."""
        local_places = dataclasses.replace(self.places, s3=self.access())

        def fetch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """Fetch the SSTs of the given state partitions into the machine's cache. Runs in a task."""
            configure_worker()
            _, store, cache = local_places.open()
            for batch in batches:
                for partition in batch.column(0).to_pylist():
                    for sst in sorted_runs.touching(ssts, partition, table.partitions):
                        cache.prefetch(store, sst, table)
                yield batch

        try:
            self.homes.visit(fetch)
        except (Py4JError, PySparkException) as error:
            _log.debug("SSTs of %s/%s were not delivered: %s", local_places.app, local_places.stage, error)
