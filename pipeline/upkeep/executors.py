"""Upkeep on Spark's executors: merges that the driver would finish too late, and copies of merged SSTs.

Spark gives batches precedence, because merges are in a pool of low weight. If an executor is lost, Spark runs its task
on a different executor.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from ...common import runtime
from ...errors import SlackwaterError, Unavailable
from ...store.compaction import merge
from ...store.compaction.pieces import split
from ...store.compaction.plan import Compaction, CompactionResult
from ...store.objects.counting import Stats
from ...store.objects.s3_settings import S3Access
from ...store.sst import sorted_runs
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Table
from ..source.worker import configure_worker
from ..spark.placement import Homes
from ..spark.worker_resources import WorkerResources

PIECE_BYTES = 64 << 20
"""Maximum input bytes of one task of a merge: about three seconds of work, during which its slot is taken."""

MAX_MERGES = 64
"""Maximum number of merges on executors. One thread of the driver waits for each merge."""

_SHARE = 4

T = TypeVar("T")

_log = logging.getLogger("slackwater")


@dataclass(slots=True)
class MergeSlots:
    """Task slots of a Spark application for merges of all its stages: a fourth of the slots, at least one.

    Thread-safe.
    """

    count: Callable[[], int]
    """Function that returns the number of tasks that all executors can run at the same time."""
    _taken: int = 0
    _lock: runtime.Lock = field(default_factory=runtime.lock)

    def take(self) -> bool:
        """Take a slot; return False if none is free."""
        with self._lock:
            if self._taken >= min(MAX_MERGES, max(1, self.count() // _SHARE)):
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._taken -= 1


def count_slots(context: SparkContext) -> int:
    """Return the number of tasks that the executors can run at the same time; 0 if Spark has ended."""
    spark: Any = context._jsc.sc()
    try:
        return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
    except (Py4JError, ConnectionError):
        return 0


@dataclass(frozen=True, slots=True)
class Executors:
    """Runs upkeep of one stage on executors, each part on the home of its hash range (`Homes`).

    All methods are thread-safe.
    """

    homes: Homes
    resources: WorkerResources
    access: Callable[[], S3Access | None]
    slots: MergeSlots
    count_requests: Callable[[Stats], None]
    """Called with the store requests of each task."""

    def run_compaction(
        self, table: Table, compaction: Compaction, *, should_stop: Callable[[], bool] = lambda: False
    ) -> CompactionResult:
        """Merge the input SSTs, like `merge.run_compaction`, in consecutive jobs of one task each.

        Each task merges one piece of about 64 MiB, or everything if `pieces.split` cannot split the merge.
        `should_stop` is called before each piece; to end a running task, call `cancel`.

        Raises `MergeStopped` if `should_stop` returned True, `Refused` if the merge takes over half an hour,
        `Unavailable` if Spark did not run a task, and `Corruption`.
        """
        began_s, outputs = runtime.monotonic(), list[Sst]()
        for piece in split(compaction, PIECE_BYTES):
            if should_stop():
                raise merge.MergeStopped
            try:
                outputs += self._merge_in_task(table, piece)
            except Unavailable:
                if should_stop():
                    raise merge.MergeStopped from None
                raise
            merge.check_time(compaction, began_s)
        return CompactionResult(compaction, tuple(outputs))

    def _merge_in_task(self, table: Table, piece: Compaction) -> tuple[Sst, ...]:
        resources = dataclasses.replace(self.resources, s3=self.access())

        def work(_partitions: Iterable[int]) -> Iterator[tuple[tuple[Sst, ...] | SlackwaterError, Stats]]:
            configure_worker()
            counted, store, cache = resources.open()
            result: tuple[Sst, ...] | SlackwaterError
            try:
                result = merge.run_compaction(store, cache, resources.app, resources.stage, table, piece).outputs
            except SlackwaterError as error:
                # Spark would repeat the task.
                result = error
            yield result, counted.take_stats()

        ((result, stats),) = self._run(work, [piece.partition])
        self.count_requests(stats)
        if isinstance(result, SlackwaterError):
            raise result
        return result

    def deliver(self, ssts: tuple[Sst, ...], table: Table) -> None:
        """Fetch SSTs into the caches of their homes, and return when all have arrived.

        Does nothing before the first batch.

        After a failure, batches fetch the SSTs that they need.
        """
        ranges = sorted({number for sst in ssts for number in sorted_runs.overlapped_partitions(sst, table.ranges)})
        if not ranges or not self.homes.are_known:
            return
        resources = dataclasses.replace(self.resources, s3=self.access())

        def fetch(partitions: Iterable[int]) -> Iterator[Stats]:
            configure_worker()
            counted, store, cache = resources.open()
            for partition in partitions:
                for sst in sorted_runs.ssts_of_partition(ssts, partition, table.ranges):
                    cache.prefetch(store, sst, table)
            yield counted.take_stats()

        try:
            for stats in self._run(fetch, ranges):
                self.count_requests(stats)
        except Unavailable as error:
            _log.debug("SSTs of %s/%s were not delivered: %s", resources.app, resources.stage, error)

    def _run(self, work: Callable[[Iterable[int]], Iterator[T]], ranges: Sequence[int]) -> list[T]:
        try:
            return self.homes.run_at_homes(work, ranges)
        except (Py4JError, PySparkException, ConnectionError) as error:
            # The text of Py4J's error is a Java stack trace.
            cause = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
            raise Unavailable("Spark did not run a task beside the batches", quoted=str(cause)) from error

    def cancel(self) -> None:
        """Cancel all jobs of this stage's upkeep."""
        self.homes.cancel()
