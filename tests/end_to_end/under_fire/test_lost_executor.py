"""An executor is lost with its machine; its state partitions are spread over the other executors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.under_fire.spark_cluster import standalone
from tests.support.running import eventually

PARTITIONS = 12
PLACING = f"""
import json, sys
from pyspark.sql import functions as F
from slackwater.pipeline.dev.jvm_server import HOST
from slackwater.pipeline.spark import placement
from slackwater.pipeline.spark.session import spark_session

conf = {{"spark.executor.memory": "512m", "spark.driver.host": HOST, "spark.ui.enabled": "false"}}
with spark_session("placing", master=sys.argv[1], conf=conf) as spark:
    placed = placement.Homes({PARTITIONS})
    for _ in sys.stdin:
        rows = placed.place(spark.range(1000), (F.col("id") % {PARTITIONS}).cast("int"), {PARTITIONS})
        assert rows.count() == 1000
        print(json.dumps(placement._count_by_executor(placed._homes)), flush=True)
"""


@pytest.mark.soak
@pytest.mark.spark
def test_the_partitions_of_a_lost_executor_are_spread_over_the_others(tmp_path: Path) -> None:
    with standalone(tmp_path / "cluster", workers=3) as cluster:
        command = [sys.executable, "-c", PLACING, cluster.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:

            def batch() -> dict[str, int]:
                assert driver.stdin is not None
                assert driver.stdout is not None
                driver.stdin.write("\n")
                driver.stdin.flush()
                return dict(json.loads(driver.stdout.readline()))

            eventually(lambda: len(batch()) == 3, "all three have partitions")
            before = batch()
            assert batch() == before
            assert max(before.values()) <= PARTITIONS // 3 + 1
            lost = cluster.executors()[-1]
            server = psutil.Process(lost.pid).parent()
            for process in (server, lost):
                if process is not None:
                    process.kill()
            eventually(lambda: len(cluster.executors()) == 2, "it is gone")
            after = [batch() for _ in range(3)][-1]
            assert sum(after.values()) == PARTITIONS
            assert len(after) == 2
            kept = before.keys() & after.keys()
            # The remaining executors keep their partitions, and each gets some of the lost ones.
            assert len(kept) == 2
            assert all(after[place] > before[place] for place in kept), (before, after)
            assert driver.communicate()[0] is not None
