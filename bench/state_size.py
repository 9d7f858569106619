"""Batch time by size of state.

`python -m bench.state_size BOOTSTRAP FOLDER ROUNDS SIZE …` runs the same batch on all sizes in turn, in a fresh
process, and prints a JSON object: by size, the seconds from batch to batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

from .support import side
from .support.events import PARTITIONS, cycles, fill_ranges
from .support.large_state import app_of, fill_cache, write
from .support.row import Row

SIZES = (100_000, 1_000_000, 10_000_000)
BATCH = 100_000
"""Number of rows in a batch, each with its own key. The smallest state has the same number of keys."""
WARM_UP = 2
MEASURED = 6
ROUNDS = 2
TOPIC = "bench-state-size"


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Run the same batch on tables of 100,000, 1,000,000 and 10,000,000 keys."""
    sizes = (10_000, 100_000, 1_000_000) if quick else SIZES
    found = side.run("state_size", bootstrap, folder, 1 if quick else ROUNDS, *sizes)
    seconds = {size: median(found[str(size)]) for size in sizes}
    return [
        Row.at_most(
            f"batch of {BATCH:,} rows, as many keys, state of {size:,} keys, median of {len(found[str(size)])}",
            f"{seconds[size]:.2f} s",
            f"state of {sizes[0]:,} keys: {seconds[sizes[0]]:.2f} s",
            seconds[size] / seconds[sizes[0]],
            1.5,
        )
        for size in sizes[1:]
    ]


def _run(bootstrap: str, folder: Path, rounds: int, sizes: list[int]) -> dict[int, list[float]]:
    from slackwater.pipeline.spark.session import spark_session

    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    batches = 1 + WARM_UP + MEASURED
    with spark_session("bench", master="local[2]") as spark:
        apps = {}
        fill_ranges(bootstrap, TOPIC, [])
        for size in sizes:
            apps[size] = app_of(TOPIC, size, PARTITIONS)
            write(folder / str(size), apps[size], spark, bootstrap, size)
            # The app's own fetches beside the batches take a minute for 100 million keys.
            fill_cache(folder / str(size), folder / f"cache-{size}")
        # One additional round, in which the JVM compiles.
        for number in range(1 + rounds):
            # One range in each partition of a batch, and therefore one record.
            step = BATCH // PARTITIONS
            first = number * batches * BATCH
            fill_ranges(bootstrap, TOPIC, [(at, at + step - 1) for at in range(first, first + batches * BATCH, step)])
            for size in sizes if number % 2 == 0 else reversed(sizes):
                stamps = side.commits_ms(
                    apps[size], bootstrap, str(folder / str(size)), folder / f"cache-{size}", PARTITIONS
                )
                if number:
                    seconds[size] += cycles(stamps, WARM_UP)
    return seconds


if __name__ == "__main__":
    bootstrap, folder, rounds, *sizes = sys.argv[1:]
    print(json.dumps(_run(bootstrap, Path(folder), int(rounds), [int(size) for size in sizes])))
