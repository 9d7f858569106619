"""Which task of Spark's a batch failed in, how far that had read, and so which record it may have failed for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from ...snapshot.bisect.poison import Ranges
from .places import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_TASKS = 10_000
"""Of a stage of Spark's, looked through for the one that failed."""


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task of Spark's that failed.

    Attributes:
        number: In its stage, from 0.
        of: How many tasks that has.
        read: How many records it had taken from its source; 0 where that is not known.
    """

    number: int
    of: int
    read: int


def failed_task(spark: SparkSession) -> FailedTask | None:
    """The task for which this thread's last job failed; None where Spark does not say."""
    context: Any = spark.sparkContext
    try:
        # What it knows comes from listeners, which hear of a failure after those who wait for the job.
        context._jsc.sc().listenerBus().waitUntilEmpty()
        tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
        job = max(tracker.getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id")), default=-1)
        found = tracker.getJobInfo(job)
        for stage in found.stageIds if found is not None else ():
            listed = store.taskList(stage, 0, _MOST_TASKS)
            failed = [task for place in range(listed.size()) if (task := listed.apply(place)).status() == "FAILED"]
            if failed:
                task = most_failed(failed)
                metrics = task.taskMetrics()
                read = int(metrics.get().inputMetrics().recordsRead()) if metrics.isDefined() else 0
                return FailedTask(int(task.index()), int(tracker.getStageInfo(stage).numTasks), read)
    except Py4JError:
        pass
    return None


def most_failed(attempts: Sequence[Any]) -> Any:
    """The last attempt of the task that failed most often: it is what failed the job.

    A task whose executor was lost has failed as well, and was done by another: no record of its is to blame.
    """
    times = Counter(int(attempt.index()) for attempt in attempts)
    ((index, _),) = times.most_common(1)
    return max((one for one in attempts if one.index() == index), key=lambda one: int(one.attempt()))


def suspects(task: FailedTask, places: Places, *, each: bool) -> tuple[Ranges, ...]:
    """Where the record is for which a task of a batch's job failed: the most likely place first; none where none is.

    Args:
        task: The task.
        places: What the batch's tasks read: a stretch each, in the same order.
        each: Whether there is a record at each place, so that their number is that of places.
    """
    if task.of != len(places.stretches):
        return ()
    ((first, last),) = stretch = places.of(task.number)
    if not each or not 0 < task.read <= last - first:
        return (stretch,)
    # An expression fails for the record that was taken last.
    return (((first + task.read - 1, first + task.read),), stretch)
