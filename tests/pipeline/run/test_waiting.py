"""A runner's report why a stage waits: only known facts, with the names of stages."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread, SparkStageInfo
from pyspark.sql import SparkSession
from slackwater.pipeline.run.waiting import LongWaits, find_wait, input_behind, queued_job_groups
from slackwater.snapshot.status.overview import InputLag, StageLag
from slackwater.store.versions.manifest import EventTime, Input, Manifest

from tests.support.running import PATIENCE_S, eventually


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
        (stage(5), {"slow_readers": ("bills", "stock")}, "bills, stock to catch up"),
        (stage(0), {"queued": True}, "new records of orders"),
        (
            stage(5),
            {"busy": True, "ahead": {"bills": 2.4, "stock": 71.0}},
            "a free core, after stock (71 s), bills (2 s)",
        ),
        (stage(0, upstream="parse"), {"not_run": ["parse"]}, "new records of parse; no runner has parse"),
        (stage(5, upstream="parse"), {"not_run": ["parse"]}, ""),
        (stage(0, 0), {"behind": "returns"}, "the watermark of returns"),
    ],
)
def test_the_reason_of_a_wait_is_reported_if_known(at: StageLag, state: dict[str, Any], said: str) -> None:
    wait = find_wait(at, **state)
    assert (wait.reason if wait is not None else "") == said


def joined(orders_ms: int | None, returns_ms: int | None, **times: Any) -> Manifest:
    inputs = {
        "orders": Input("orders", (0,), watermark_ms=orders_ms),
        "sent-back": Input("shop-sent-back", (0,), "returns", watermark_ms=returns_ms),
    }
    return Manifest("shop", "totals", 1, 1, "w", 1, "batch", inputs=inputs, event_time=EventTime(**times))


@pytest.mark.parametrize(
    ("head", "source"),
    [
        (joined(9_000, 5_000, watermark_ms=5_000, next_due_ms=7_000), "returns"),
        (joined(9_000, None, next_due_ms=7_000), "returns"),
        (joined(None, 5_000, next_due_ms=7_000), "orders"),
        (joined(9_000, 9_000, watermark_ms=9_000, next_due_ms=9_500), ""),
        (joined(9_000, 5_000, watermark_ms=5_000), ""),
        (joined(9_000, 5_000, watermark_ms=5_000, next_due_ms=4_000), ""),
        (joined(9_000, 5_000, watermark_ms=5_000, next_due_ms=7_000, by_clock=True), ""),
    ],
)
def test_rows_that_are_not_due_wait_for_the_input_with_the_lowest_watermark(head: Manifest, source: str) -> None:
    assert input_behind(head, head.inputs) == source
    assert input_behind(head, ["orders"]) == ""


def test_a_long_wait_for_another_stage_is_logged_once_per_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [0.0]
    waits = LongWaits(lambda: now_s[0])
    blocked = {"totals": find_wait(stage(0, upstream="parse"), not_run=["parse"]), "bills": find_wait(stage(0))}
    blocked = {name: wait for name, wait in blocked.items() if wait is not None}
    with caplog.at_level(logging.WARNING, "slackwater"):
        for now_s[0] in range(0, 400, 5):
            waits.record({} if now_s[0] == 200 else blocked)
    said = "stage totals has waited 60 s for new records of parse; no runner has parse"
    assert caplog.messages == [said, said]


@pytest.mark.spark
def test_jobs_are_reported_as_queued_while_others_occupy_the_cores(spark: SparkSession, tmp_path: Path) -> None:
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
        eventually(lambda: set(queued_job_groups(spark)) == expected, f"queued: {expected}")

    assert queued_job_groups(spark) == ()
    one, other = (InheritableThread(target=run, args=(group,)) for group in ("one", "other"))
    try:
        one.start()
        eventually(lambda: any(info.numActiveTasks for info in active(spark)), "it has the cores")
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
