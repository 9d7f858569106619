"""A driver process with two executors. It merges SSTs as the lines of its standard input command.

The commands are: `below` and `above`, for merges below and above the driver's limit of debt; `killed`, for an executor
that is killed during a merge; `damaged`, for an executor that cannot read an input; `stopped`, for a merge during which
upkeep is closed. Each line is answered by one line of JSON (`Outcome`).
"""

import json
import logging
import os
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from slackwater.pipeline.dev.jvm_server import HOST
from slackwater.pipeline.spark.placement import MERGE_POOL, Homes
from slackwater.pipeline.spark.session import spark_session
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.pipeline.upkeep.executors import Executors, MergeSlots, count_slots
from slackwater.pipeline.upkeep.upkeep import DRIVER_BYTES, Upkeep
from slackwater.store.compaction import plan
from slackwater.store.compaction.merge import iter_visible_rows
from slackwater.store.objects.counting import Stats
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import by_partition
from slackwater.store.versions.manifest import Manifest, Policy

from tests.support.running import eventually
from tests.support.state_rows import ROUTES, Key, manifest_of, write_version

TABLE = replace(ROUTES, partitions=2, compaction=Policy(l0_trigger=3))
BATCHES = 3


@dataclass
class Outcome:
    """The result of one command."""

    executors: list[str] = field(default_factory=list)
    """Executors on which merges began, in this order."""
    puts: int = 0
    """Number of SSTs that tasks reported."""
    cached: int = 0
    """Number of SSTs of the next version that are in the executors' cache."""
    named: int = 0
    """Number of SSTs of the next version that result from merges."""
    rows: dict[str, int] = field(default_factory=dict)
    """Flights by origin, in the next version."""
    stop_s: float = 0.0
    """Seconds that it took to close upkeep, after which Spark has no job."""
    progress: str = ""
    homes: list[str] = field(default_factory=list)
    """Home executor of each hash range."""
    ran_at: list[str] = field(default_factory=list)
    """Executors on which tasks for these homes ran."""
    weights: list[int] = field(default_factory=list)
    """Weights of the scheduler pools: that of batches and that of merges."""
    warnings: list[str] = field(default_factory=list)


class Held(WorkerResources):
    """Worker resources that open only after the worker has recorded its task, and the driver has released it."""

    def open(self) -> Any:
        folder, task = Path(self.store), sys._getframe(1).f_code.co_name
        with (folder / "began").open("a") as began:
            began.write(f"{task} {os.getpid()} {Path.cwd().name}\n")
        deadline = time.monotonic() + 60
        while not (folder / "may-go-on").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().open()


class Stage:
    """A stage whose batches are written by the driver. Merges of more than `driver_bytes` go to executors."""

    def __init__(self, spark: SparkSession, folder: Path, driver_bytes: int) -> None:
        self.folder, self.stats, self.spark = folder, list[Stats](), spark
        folder.mkdir()
        self.store, self.cache = open_store(str(folder)), SstCache(folder / "cache-driver", 1 << 30)
        self.there = SstCache(folder / "cache-executors", 1 << 30)
        self.homes = Homes(2)
        rows = spark.range(100)
        assert self.homes.place(rows, (F.col("id") % 2).cast("int"), 2).count() == 100
        resources = Held(
            "app", "stage", str(folder), {}, (folder / "cache-executors", 1 << 30), 30, has_remote_tasks=True
        )
        slots = MergeSlots(lambda: count_slots(spark.sparkContext))
        executors = Executors(self.homes, resources, lambda: None, slots, self.stats.append)
        self.head = manifest_of(TABLE, ())
        self.upkeep = Upkeep(self.store, self.cache, self.head, executors=executors, driver_bytes=driver_bytes)
        for _ in range(BATCHES):
            self.batch()

    def batch(self) -> None:
        """Commit a version that changes both hash ranges, and that also adopts finished merges."""
        version = self.head.version + 1
        changes: dict[Key, Any] = {(f"o{n}", "x"): (version * 100 + n, None, None) for n in range(version * 10)}
        ssts = (*write_version(self.store, self.cache, TABLE, changes, version), *self.head.ssts)
        self.head = manifest_of(TABLE, plan.apply_results(ssts, self.upkeep.finished), version)

    def began(self) -> list[tuple[int, str]]:
        """Return, for each started merge, its process and its executor's working folder."""
        file = self.folder / "began"
        tasks = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(int(process), executor) for task, process, executor in tasks if task == "work"]

    def go_on(self) -> None:
        (self.folder / "may-go-on").touch()

    def adopt(self) -> Outcome:
        """Wait for the merges of both hash ranges, and commit their results with the next version."""
        eventually(lambda: len(self.upkeep.finished) == 2, "both merges")
        before: Manifest = self.head
        self.batch()
        rows = {
            row["origin"]: row["flights"]
            for partition in range(TABLE.partitions)
            for part in iter_visible_rows(self.store, None, self.head.ssts, TABLE, partition, 0)
            for row in part.to_pylist()
        }
        merged = [sst for sst in self.head.ssts if sst.level]
        assert not set(merged) & set(before.ssts)
        return Outcome(
            [executor for _, executor in self.began()],
            sum(stats.puts for stats in self.stats),
            sum(self.there.has(sst) for sst in merged),
            len(merged),
            rows,
        )

    def home_of(self, partition: int) -> str:
        assert self.homes._homes is not None
        rdd, spark = self.homes._homes._jdf.queryExecution().toRdd(), self.spark.sparkContext._jsc.sc()
        return str(spark.getPreferredLocs(rdd, partition).head().toString()).rpartition("_")[2]

    def close(self) -> None:
        self.go_on()
        self.upkeep.close()
        self.homes.close()


class Warnings(logging.Handler):
    """Log handler that collects slackwater's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def below(stage: Stage) -> Outcome:
    stage.go_on()
    stage.upkeep.start_merges(stage.head)
    return stage.adopt()


def above(stage: Stage) -> Outcome:
    homes = [stage.home_of(partition) for partition in range(2)]
    ran_at = [stage.homes.run_at_homes(lambda _: iter([Path.cwd().name]), [partition])[0] for partition in range(2)]
    outcome = below(stage)
    spark: Any = stage.spark.sparkContext._jsc
    weights = [int(spark.sc().getPoolForName(pool).get().weight()) for pool in ("default", MERGE_POOL)]
    outcome.homes, outcome.ran_at, outcome.weights = homes, ran_at, weights
    return outcome


def killed(stage: Stage) -> Outcome:
    stage.upkeep.start_merges(stage.head)
    eventually(lambda: len(stage.began()) == 1, "a task to begin")
    parents = psutil.Process(stage.began()[0][0]).parents()
    lost = next(parent for parent in parents if "CoarseGrainedExecutorBackend" in " ".join(parent.cmdline()))
    for process in (*lost.children(recursive=True), lost):
        process.kill()
    stage.go_on()
    return stage.adopt()


def damaged(stage: Stage) -> Outcome:
    stage.go_on()
    told, log = Warnings(), logging.getLogger("slackwater")
    log.addHandler(told)
    lost = by_partition(stage.head.ssts, 2)[1][0].object
    whole = stage.store.get(lost)
    stage.store.put(lost, b"")
    stage.upkeep.start_merges(stage.head)
    eventually(lambda: bool(told.texts) and stage.upkeep.merge_progress == "finished", "the other merge")
    log.removeHandler(told)
    stage.store.put(lost, whole)
    stage.upkeep.start_merges(stage.head)
    outcome = stage.adopt()
    outcome.warnings = told.texts
    return outcome


def stopped(stage: Stage) -> Outcome:
    stage.upkeep.start_merges(stage.head)
    eventually(lambda: len(stage.began()) == 1, "a task to begin")
    started = time.monotonic()
    stage.upkeep.close()
    took = time.monotonic() - started
    # Spark's listeners hear of a job's end a little later.
    eventually(lambda: not stage.spark.sparkContext.statusTracker().getActiveJobsIds(), "no job", seconds=5)
    return Outcome(stop_s=took, progress=stage.upkeep.merge_progress)


CASES = {"below": below, "above": above, "killed": killed, "damaged": damaged, "stopped": stopped}


def main(folder: Path) -> None:
    conf = {"spark.driver.host": HOST, "spark.ui.enabled": "false", "spark.executor.memory": "512m"}
    with spark_session("merging", master="local-cluster[2,1,1024]", conf=conf) as spark:
        for name in map(str.strip, sys.stdin):
            with closing(Stage(spark, folder / name, DRIVER_BYTES if name == "below" else 0)) as stage:
                sys.stdout.write(f"{json.dumps(asdict(CASES[name](stage)))}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
