"""Batch time with asynchronous commits: the same app with `max_unflushed` 0 and 4, on a slow store.

The store is an S3 server on this machine, behind a proxy that adds 30 ms to every request. Batches are small, as in a
low-latency job, so that they wait for the store and not for Spark.

`python -m bench.async_flush MAX_UNFLUSHED BOOTSTRAP TOPIC STORE FOLDER` runs the app in a fresh process and prints a
JSON list: seconds from commit to commit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

from slackwater.pipeline.dev.s3 import EmbeddedS3

from tests.support.s3_proxy import s3_proxy

from .support import side
from .support.events import TOPIC, cycles, fill
from .support.row import Row
from .throughput import app_of

LATENCY_S = 0.030
MAX_UNFLUSHED = 4
BATCH = 10_000
BATCHES = 30
WARM_UP = 6


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare the median batch with the median batch of the same app with `max_unflushed=0`."""
    seconds = measure(bootstrap, folder, rounds=1 if quick else 2)
    ours, waiting = median(seconds[MAX_UNFLUSHED]), median(seconds[0])
    return [
        Row(
            f"batch of {BATCH:,} rows, {LATENCY_S * 1000:.0f} ms added to each store request, "
            f"max_unflushed={MAX_UNFLUSHED}, median",
            f"{ours:.2f} s",
            f"max_unflushed=0: {waiting:.2f} s",
            waiting / ours,
            ">= 1",
            waiting >= ours,
        )
    ]


def measure(bootstrap: str, folder: Path, *, rounds: int = 2) -> dict[int, list[float]]:
    """Return the seconds from commit to commit, by `max_unflushed`, without the warm-up.

    Runs alternate, since a machine's speed drifts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    topic = f"{TOPIC}-async"
    fill(bootstrap, BATCH * BATCHES, topic=topic)
    seconds: dict[int, list[float]] = {0: [], MAX_UNFLUSHED: []}
    with EmbeddedS3(folder / "s3") as bucket, s3_proxy(bucket.endpoint, delay_s=LATENCY_S) as proxy:
        environment = {**bucket.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint}
        for number in range(rounds):
            for ahead, found in seconds.items():
                name = f"{ahead}-{number}"
                words = (ahead, bootstrap, topic, f"{bucket.store_root}{name}", folder / name)
                found += side.run("async_flush", *words, env=environment)
    return seconds


def _side(max_unflushed: int, bootstrap: str, topic: str, store: str, folder: Path) -> list[float]:
    stamps = side.commits_ms(app_of(topic), bootstrap, store, folder / "cache", BATCH, max_unflushed=max_unflushed)
    return cycles(stamps, WARM_UP)


if __name__ == "__main__":
    ahead, bootstrap, topic, store, folder = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    print(json.dumps(_side(int(ahead), bootstrap, topic, store, work)))
