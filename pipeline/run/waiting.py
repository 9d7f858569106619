"""Reasons why stages wait, as their runner knows them. `status` reads them from the runner's heartbeats."""

from collections.abc import Collection
from typing import Any

from pyspark.sql import SparkSession

from ...snapshot.status.overview import StageLag


def waits_for(stage: StageLag, *, busy: bool, queued: bool, on_hold: bool, readers_lag: bool) -> str:
    """Return what a stage waits for; empty while it works, or if unknown.

    `busy`: a batch is under way; `queued`: none of its tasks runs, while tasks of other stages do. `on_hold`: a
    promotion holds the app. `readers_lag`: the stage starts no batch until the readers of its channels have caught up.
    """
    if busy:
        return "a free core" if queued else ""
    if on_hold:
        return "the end of a promotion"
    if readers_lag:
        return "its readers to catch up"
    if stage.records == 0:
        return f"new records of {', '.join(dict.fromkeys(source.upstream or source.topic for source in stage.inputs))}"
    return ""


def queued_groups(spark: SparkSession) -> Collection[str]:
    """Return the job groups in Spark without a running task, if other groups have running tasks.

    A streaming query's jobs are in the group of its run id. Costs a few JVM calls for each active job.
    """
    jvm: Any = spark.sparkContext._jvm
    statuses = jvm.java.util.ArrayList()
    statuses.add(jvm.org.apache.spark.JobExecutionStatus.RUNNING)
    jobs: Any = spark.sparkContext._jsc.sc().statusStore().jobsList(statuses)
    active: dict[str, int] = {}
    for number in range(jobs.size()):
        job = jobs.apply(number)
        if (group := job.jobGroup()).isDefined():
            active[group.get()] = active.get(group.get(), 0) + job.numActiveTasks()
    return {group for group, tasks in active.items() if not tasks} if any(active.values()) else ()
