"""SSTs fetched beside a running stage, so that its look-ups find them on the machine of its tasks.

After a restart on another machine the first batch starts at once and reads byte ranges of the SSTs that it needs. These
are fetched whole meanwhile, and the batches after it find them here. The same for what a compaction in another process
put in the place of SSTs that were here.
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
from ...store.objects.s3.settings import S3Access
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs
from ...store.versions.manifest import Manifest, Sst, Table
from ..source.worker import configure_worker
from ..spark.places import Places
from ..spark.task_placement import Homes

_log = logging.getLogger("slackwater")

_NICE = 10
"""Below everything that a batch does."""
_FULL = 0.9
"""Of the cache's bytes; beyond, eviction begins."""
_EXPANSION = 4
"""An SST takes about so many times its bytes once it is decoded; known better when it is here."""


class Prefetcher:
    """Fetches for a driver whose tasks run on its own machine.

    One SST at a time, in a thread of the lowest priority that is useful: a batch never waits for it.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, head: Manifest) -> None:
        self._store, self._cache, self._head = store, cache, head
        self._missing: set[str] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"prefetch-{head.stage}", initializer=lower_priority)
        self._running: Future[None] | None = None
        self._stopping = threading.Event()

    def consider(self, head: Manifest, ranged: Iterable[str]) -> None:
        """Fetch what look-ups of the version just committed miss on this machine; returns at once.

        `ranged` are objects of which its tasks read byte ranges.
        """
        # Outputs of compactions that took the place of SSTs that are here are fetched, too.
        gone, new = set(self._head.ssts) - set(head.ssts), set(head.ssts) - set(self._head.ssts)
        merged = [sst for sst in new if sst.level and not self._cache.has(sst)]
        here = [sst for sst in gone if self._cache.has(sst)] if merged else []
        replaced = {
            sst.object
            for sst in merged
            if any(old.hash_min <= sst.hash_max and old.hash_max >= sst.hash_min for old in here)
        }
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
        """Fetch those that are not here, newest first, as many as the cache can hold beside the others of the head."""
        assert head.table is not None  # noqa: S101  only a stage with a table has a prefetcher
        sizes = {sst: self._cache.size_of(sst) for sst in head.ssts}
        held = sum(sizes.values())
        for sst in sorted(sizes, key=lambda sst: -sst.seq_max):
            if sst.object not in wanted or sizes[sst]:
                continue
            held += sst.bytes * _EXPANSION
            if held > self._cache.max_bytes * _FULL or self._stopping.is_set():
                return
            try:
                self._cache.prefetch(self._store, sst, head.table)
            except SlackwaterError as error:
                # Whoever needs it gets the error.
                _log.warning("prefetch of %s/%s put off: %s", head.app, head.stage, error)
                return


def lower_priority() -> None:
    """Have the thread that calls this give way to all that a batch does."""
    # On Linux each thread has a priority of its own.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Brings what the driver has merged to its state partitions' homes on other machines, by a small Spark job."""

    homes: Homes
    places: Places
    access: Callable[[], S3Access | None]
    """How workers get to the store, asked before each delivery."""

    def __call__(self, ssts: tuple[Sst, ...], table: Table) -> None:
        """Have these SSTs at home; returns when they are. Where that fails, batches fetch what they need."""
        places = dataclasses.replace(self.places, s3=self.access())

        def fetch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """What a task does at the homes of its partitions, whose numbers it gets."""
            configure_worker()
            _, store, cache = places.open()
            for batch in batches:
                for partition in batch.column(0).to_pylist():
                    for sst in sorted_runs.touching(ssts, partition, table.partitions):
                        cache.prefetch(store, sst, table)
                yield batch

        try:
            self.homes.visit(fetch)
        except (Py4JError, PySparkException) as error:
            _log.debug("SSTs of %s/%s were not delivered: %s", places.app, places.stage, error)
