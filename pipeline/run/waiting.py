"""Reasons why a stage waits. The command `status` shows them, and a long wait for another stage is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from ...common import runtime
from ...snapshot.status.overview import StageLag
from ...store.versions.manifest import Manifest

_log = logging.getLogger("slackwater")

LONG_S = 60.0
"""Seconds after which a wait for another stage is long."""
_MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class Wait:
    """Reason why a stage waits, as a phrase, and the stages that have to make progress before the wait ends."""

    reason: str
    on: tuple[str, ...] = ()


def find_wait(
    stage: StageLag,
    *,
    busy: bool = False,
    queued: bool = False,
    on_hold: bool = False,
    ahead: Mapping[str, float] | None = None,
    slow_readers: Sequence[str] = (),
    not_run: Collection[str] = (),
    behind: str = "",
) -> Wait | None:
    """Return the reason why a stage waits; None if the stage works or the reason is unknown.

    `busy`: a batch runs. `queued`: tasks of other stages run, but none of this stage. `on_hold`: a promotion holds the
    app. `ahead`: stages for whose batches the stage waits, with the time of each batch in seconds. `slow_readers`:
    stages that must catch up before the stage starts a batch. `not_run`: stages without a runner. `behind`: the input
    whose watermark delays the stage's rows.
    """
    if ahead:
        longest = sorted(ahead, key=lambda name: -ahead[name])
        stages = ", ".join(f"{name} ({ahead[name]:.0f} s)" for name in longest[:_MAX_NAMES])
        return Wait(f"a free core, after {stages}", tuple(name for name in longest if ahead[name] >= LONG_S))
    if busy:
        return Wait("a free core") if queued else None
    if on_hold:
        return Wait("the end of a promotion")
    if slow_readers:
        return Wait(f"{', '.join(slow_readers)} to catch up")
    if stage.records != 0:
        return None
    sources = dict.fromkeys(source.upstream or source.topic for source in stage.inputs)
    missing = tuple(name for name in sources if name in not_run)
    if missing:
        return Wait(f"new records of {', '.join(sources)}; no runner has {', '.join(missing)}", missing)
    if behind:
        return Wait(f"the watermark of {behind}", (behind,))
    return Wait(f"new records of {', '.join(sources)}")


def input_behind(head: Manifest, timed: Collection[str]) -> str:
    """Return the source of the input whose watermark delays due rows; empty if there is none.

    `timed` are the inputs that have a watermark.
    """
    times = head.event_time
    if len(timed) < 2 or times is None or times.by_clock or times.next_due_ms is None or times.has_unemitted_due_rows:
        return ""
    watermarks = {name: head.inputs[name].watermark_ms for name in timed}
    last = min(timed, key=lambda name: (watermarks[name] is not None, watermarks[name] or 0))
    if all(at_ms == watermarks[last] for at_ms in watermarks.values()):
        return ""
    return head.inputs[last].upstream or head.inputs[last].topic


@dataclass(slots=True)
class LongWaits:
    """Log of long waits: one line for each stage that has waited long for the same stages."""

    clock: Callable[[], float] = runtime.monotonic
    _since: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    _logged: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)

    def record(self, waits: Mapping[str, Wait]) -> None:
        """Record the current wait of each waiting stage."""
        now_s, current = self.clock(), {(stage, wait.on): wait for stage, wait in waits.items() if wait.on}
        self._since = {key: self._since.get(key, now_s) for key in current}
        self._logged &= current.keys()
        for (stage, on), wait in current.items():
            if (stage, on) not in self._logged and now_s - self._since[stage, on] >= LONG_S:
                self._logged.add((stage, on))
                _log.warning("stage %s has waited %.0f s for %s", stage, now_s - self._since[stage, on], wait.reason)


def queued_job_groups(spark: SparkSession) -> Collection[str]:
    """Return the Spark job groups without a running task, if any other group has running tasks.

    The jobs of a streaming query are in the group named by its run id. Costs a few JVM calls for each active job.
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
