"""What a stage waits for, as its runner says: only what it knows."""

import time
from pathlib import Path

import pytest
from pyspark import InheritableThread, SparkStageInfo
from pyspark.sql import SparkSession
from slackwater.pipeline.run.housekeeping import queued_job_groups, wait_reason
from slackwater.snapshot.status.overview import InputLag, StageLag

PATIENCE_S = 60.0


def stage(*records: int | None, upstream: str = "") -> StageLag:
    inputs = tuple(
        InputLag("orders", "orders", upstream, (0,), None, count, count, None if count is None else 0)
        for count in records
    )
    return StageLag("shop", "totals", inputs, running=True)


@pytest.mark.parametrize(
    ("at", "state", "said"),
    [
        (stage(5), {"busy": True}, ""),
        (stage(5), {"busy": True, "queued": True}, "a free core"),
        (stage(5), {}, ""),
        (stage(None), {}, ""),
        (stage(5, None), {}, ""),
        (stage(0), {}, "new records of orders"),
        (stage(0, upstream="parse"), {}, "new records of parse"),
        (stage(0), {"on_hold": True}, "the end of a promotion"),
        (stage(5), {"readers_lag": True}, "its readers to catch up"),
        (stage(0), {"queued": True}, "new records of orders"),
    ],
)
def test_a_stage_says_what_it_waits_for_where_its_runner_knows(at: StageLag, state: dict[str, bool], said: str) -> None:
    flags = dict.fromkeys(("busy", "queued", "on_hold", "readers_lag"), False) | state
    assert wait_reason(at, **flags) == said


@pytest.mark.spark
def test_a_group_of_jobs_is_queued_while_those_of_others_have_the_cores(spark: SparkSession, tmp_path: Path) -> None:
    context, end = spark.sparkContext, tmp_path / "end"

    def work(number: int) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while not end.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return number

    def run(group: str) -> None:
        context.setJobGroup(group, group)
        context.parallelize(range(4), 4).map(work).count()

    def await_queued(expected: set[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while set(queued_job_groups(spark)) != expected:
            assert time.monotonic() < deadline, queued_job_groups(spark)
            time.sleep(0.05)

    assert queued_job_groups(spark) == ()
    one, other = (InheritableThread(target=run, args=(group,)) for group in ("one", "other"))
    try:
        one.start()
        deadline = time.monotonic() + PATIENCE_S
        while not any(info.numActiveTasks for info in active(spark)):
            assert time.monotonic() < deadline
        other.start()
        await_queued({"other"})
    finally:
        end.touch()
        one.join()
        other.join()
    await_queued(set())


def active(spark: SparkSession) -> list[SparkStageInfo]:
    tracker = spark.sparkContext.statusTracker()
    return [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each)) is not None]
