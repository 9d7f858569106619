"""Reasons for which stages wait, as their runner knows them. `status` reads them from the runner's signs of life."""

from collections.abc import Collection
from typing import Any

from pyspark.sql import SparkSession

from ...snapshot.status.lag import StageLag


def waits_for(stage: StageLag, *, busy: bool, queued: bool, held: bool, behind: bool) -> str:
    """Return what a stage waits for; empty where it works, or where nobody knows.

    `busy`: its batch is under way; `queued`: and none of its tasks runs, while those of others do. `held`: a promotion
    holds the app. `behind`: those that read its channels are, and it starts no batch until they have caught up.
    """
    if busy:
        return "its turn on the cores" if queued else ""
    if held:
        return "the end of a promotion"
    if behind:
        return "its readers, which are behind"
    if stage.records == 0:
        return f"new records of {', '.join(dict.fromkeys(each.upstream or each.topic for each in stage.inputs))}"
    return ""


def queued_groups(spark: SparkSession) -> Collection[str]:
    """Return the groups of Spark's jobs none of whose tasks runs while tasks of others do: their turn will come.

    A streaming query's jobs are in the group of its run id. A few calls of the JVM for each job under way.
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
