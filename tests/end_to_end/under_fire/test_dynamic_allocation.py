"""Dynamic allocation: Spark removes executors when an app is idle, and starts others for a backlog."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from slackwater.pipeline.dev.jvm_server import HOST

from tests.end_to_end.under_fire.spark_cluster import packed_rules, standalone
from tests.support.running import PAIR, Ledger, eventually

_BACKLOG = 1_200


@pytest.mark.ci
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kept", [0, 1])
def test_idle_executors_leave_and_others_come_for_a_backlog(
    ledger: Ledger, tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The Python for local masters is in a folder that workers cannot see.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    pair = replace(ledger, program=PAIR)
    allocation = {
        "enabled": "true",
        "shuffleTracking.enabled": "true",
        "minExecutors": kept,
        "maxExecutors": 2,
        "executorIdleTimeout": "2s",
    }
    conf = {f"spark.dynamicAllocation.{name}": value for name, value in allocation.items()}
    conf |= {"spark.executor.cores": 1, "spark.executor.memory": "512m", "spark.driver.host": HOST}
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    with standalone(tmp_path / "cluster", workers=2) as cluster:
        words += ["--master", cluster.url, "--py-files", str(packed_rules(tmp_path)), "--max-records", "300"]
        with pair.running(*words) as app:
            # The second wave changes keys whose homes are lost.
            for wave in range(2):
                pair.send(_BACKLOG)
                eventually(lambda: len(cluster.executors()) == 2, f"two executors for wave {wave}")
                app.await_commit("branches")
                eventually(pair.has_caught_up, f"all of wave {wave} is read")
                eventually(lambda: len(cluster.executors()) == kept, f"idle executors leave after wave {wave}")
                pair.check_tables()
            assert app.interrupt()[0] == 0, app.errors.read_text()
        assert "TransportClient" not in app.errors.read_text()
    pair.verify(pair.app)
