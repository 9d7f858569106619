"""A table of 100 million keys: `init`, a batch, a restart and a look-up with an empty cache.

This benchmark runs only if it is named, since it takes most of an hour and 20 GB of disk. `init`, `state_size` and
`restart` measure the same parts with up to 10 million keys.

`python -m bench.tasks.large cold STORE KEYS` prints median requests and bytes of a look-up with an empty cache.

`python -m bench.tasks.large restart STORE KEYS BOOTSTRAP BEGAN` prints seconds from BEGAN (a Unix time) until Spark was
up, and until the first commit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import duckdb

from .. import state_size
from ..support import side
from ..support.events import PARTITIONS, fill_ranges
from ..support.large_state import APP, STAGE, app_of
from ..support.row import Row

if TYPE_CHECKING:
    from slackwater.store.objects.protocol import ObjectStore

SECONDS = 5400
KEYS = (1_000_000, 100_000_000)
TRIES = 20


def rows(bootstrap: str, folder: Path, quick: bool) -> Iterator[Row]:
    """Measure a table of 100 million keys, beside a table of one million."""
    few, many = (10_000, 1_000_000) if quick else KEYS
    yield _init(folder, many)
    found = side.run("state_size", bootstrap, folder, state_size.ROUNDS, few, many)
    seconds = {keys: median(found[str(keys)]) for keys in (few, many)}
    yield Row.at_most(
        f"batch of {state_size.BATCH:,} rows, as many keys, state of {many:,} keys",
        f"{seconds[many]:.2f} s",
        f"state of {few:,} keys: {seconds[few]:.2f} s",
        seconds[many] / seconds[few],
        1.1,
    )
    cold = side.run("tasks.large", "cold", folder / str(many), many)
    yield Row.at_most(
        f"one key of {many:,}, cold: bytes, median of {TRIES}; {cold['gets']:.0f} GETs",
        f"{cold['bytes'] / 1000:,.0f} kB",
        "limit: 100 kB",
        cold["bytes"] / 100_000,
        1,
    )
    fill_ranges(bootstrap, state_size.TOPIC, [(0, 99)])
    up, committed = side.run("tasks.large", "restart", folder / str(many), many, bootstrap, time.time())
    yield Row.at_most(
        f"Spark up to first commit on another machine, {many:,} keys",
        f"{committed - up:.1f} s",
        "10 s",
        (committed - up) / 10,
        1,
    )


def _init(folder: Path, keys: int) -> Row:
    source = folder / "rows.parquet"
    with duckdb.connect() as con:
        con.execute(
            f"COPY (SELECT lpad((hash(n) % 1000000000)::VARCHAR, 9, '0') || n AS leg, n % 97 AS flights, "
            f"n * 0.37 AS delay FROM range({keys}) AS r(n)) TO '{source}'"
        )
    done = side.run("init", "ours", source, folder / "init")
    source.unlink()
    return Row.at_most(
        f"init of {keys:,} rows from Parquet (peak memory {done['memory'] >> 20:,} MiB)",
        f"{done['seconds']:.0f} s",
        "600 s",
        done["seconds"] / 600,
        1,
    )


def _cold(store: ObjectStore, keys: int) -> dict[str, float]:
    """Return the median requests and bytes of a look-up of one key without a cache."""
    import numpy as np
    import pyarrow as pa
    from slackwater.store.objects.counting import CountingStore
    from slackwater.store.read.multi_get import multi_get
    from slackwater.store.sst.hashing import hash_keys
    from slackwater.store.versions import history

    from ..support.events import names

    spent = []
    for number in np.random.default_rng(7).integers(keys, size=TRIES):
        counted = CountingStore(store)
        head = history.head(counted, APP, STAGE)
        assert head is not None
        assert head.table is not None
        key = pa.table({"leg": names(np.array([number])).cast(pa.string())})
        _, present = multi_get(counted, None, head.ssts, head.table, hash_keys(key, ["leg"]), key)
        assert present.all()
        spent.append(counted.take_stats())
    return {"bytes": median(one.bytes_read for one in spent), "gets": median(one.gets for one in spent)}


def _restart(store: str, keys: int, bootstrap: str, began: float) -> tuple[float, float]:
    """Restart with an empty cache. Returns the seconds until Spark was up, and until the first commit."""
    from slackwater.pipeline.spark.session import spark_session

    with spark_session("bench", master="local[2]"):
        up = time.time() - began
        app = app_of(state_size.TOPIC, keys, PARTITIONS)
        stamps = side.commits_ms(app, bootstrap, store, Path(f"{store}-other-machine"), PARTITIONS)
    return up, stamps[0] / 1000 - began


if __name__ == "__main__":
    verb, root, number, *more = sys.argv[1:]
    if verb == "cold":
        from slackwater.store.objects.open import open_store

        print(json.dumps(_cold(open_store(root), int(number))))
    else:
        print(json.dumps(_restart(root, int(number), more[0], float(more[1]))))
