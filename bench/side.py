"""One side of a comparison in a fresh process, and what the peers are set to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["PEER", "SPARK_STATE", "ends_ms", "run"]

PEER = "SLACKWATER_BENCH_PEER"
"""Set in the environment of a peer's processes, so that their memory is not taken for ours."""

SPARK_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Spark's own state as it is set for large state: RocksDB, a changelog each batch, snapshots in the background."""


def run(module: str, *words: object, peer: bool = False) -> Any:
    """What `python -m bench.<module> <words>` prints, which is JSON.

    Raises:
        subprocess.CalledProcessError: It failed; why, it has said on stderr.
    """
    command = [sys.executable, "-m", f"bench.{module}", *map(str, words)]
    env = os.environ | ({PEER: "1"} if peer else {})
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env).stdout)


def ends_ms(query: StreamingQuery) -> list[int]:
    """When each batch of a Spark query that read rows had committed, milliseconds since 1970."""
    return [
        round(datetime.fromisoformat(one["timestamp"]).timestamp() * 1000) + one["durationMs"]["triggerExecution"]
        for one in query.recentProgress
        if one["numInputRows"] > 0
    ]
