"""Cost of the input archive: the same app with and without `[retention] input`, in turn, and the archive's size.

`python -m bench.tasks.storage.input_archive BOOTSTRAP TOPIC FOLDER ROUNDS` runs both in a fresh process and prints
JSON: for each, the seconds from commit to commit and the CPU seconds; and the size of the archive, beside that of the
same records as one plain Parquet file with zstd.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from ...support import side
from ...support.events import cycles, fill
from ...support.row import Row
from ...throughput import app_of

TOPIC = "bench-input-archive"
BATCH = 400_000
BATCHES = 6
WARM_UP = 2
LIMIT = 1.1


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Return three rows: CPU time and the median batch, each with and without the archive, and the archive's size."""
    fill(bootstrap, BATCH * BATCHES, topic=TOPIC)
    found = side.run("tasks.storage.input_archive", bootstrap, TOPIC, folder, 2 if quick else 4)
    on, off = median(found["on"]), median(found["off"])
    busy, without = found["busy on"][-1], found["busy off"][-1]
    return [
        Row.at_most(
            f"processor for {BATCHES} such batches, all processes, with what is left at the end",
            f"{busy:.1f} s",
            f"without: {without:.1f} s",
            busy / without,
            LIMIT,
        ),
        Row.at_most(
            f"batch of {BATCH:,} records with the input archive, median",
            f"{on:.2f} s",
            f"without: {off:.2f} s",
            on / off,
            LIMIT,
        ),
        Row.at_most(
            "bytes of the input archive",
            f"{found['bytes'] / 1e6:.1f} MB",
            f"plain Parquet, zstd: {found['plain'] / 1e6:.1f} MB",
            found["bytes"] / found["plain"],
            LIMIT,
        ),
    ]


def _run(bootstrap: str, topic: str, folder: Path, rounds: int) -> dict[str, Any]:
    from slackwater.pipeline.spark.session import spark_session
    from slackwater.snapshot.gc.reachable import Retention

    rules = {"off": Retention(), "on": Retention(input_ms=86_400_000)}
    seconds: dict[str, list[float]] = {"on": [], "off": [], "busy on": [], "busy off": []}
    store = folder / "store"
    with spark_session("bench", master="local[2]"):
        for number in range(rounds):
            # The side that runs first is at a disadvantage, because its caches are cold.
            for how in ("off", "on") if number % 2 else ("on", "off"):
                app = replace(app_of(topic), name=f"{how}-{number}")
                cache, rule = folder / "cache" / f"{how}-{number}", rules[how]
                began = _processor_s()
                stamps = side.commits_ms(app, bootstrap, str(store), cache, BATCH, retention=lambda _app, r=rule: r)
                seconds[how] += cycles(stamps, WARM_UP)
                seconds[f"busy {how}"].append(_processor_s() - began)
    return {**seconds, **_bytes(str(store), topic)}


def _processor_s() -> float:
    """Return the CPU seconds of this process and its children, which are Spark's JVM and Python workers."""
    here = psutil.Process()
    times = [each.cpu_times() for each in (here, *here.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def _bytes(root: str, topic: str) -> dict[str, int]:
    """Return the size of an archive, and the size of its records in one Parquet file with default settings and zstd."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from slackwater.store.archive import index
    from slackwater.store.archive.reading import Archive
    from slackwater.store.objects.open import open_store

    store = open_store(root)
    head = index.newest(store, "on-0", topic)
    assert head is not None
    assert head.rows == BATCH * BATCHES
    archive, sink = Archive(store, head), pa.BufferOutputStream()
    records = [rows for each in head.covered for rows in archive.rows(each.partition, each.first, each.end)]
    pq.write_table(pa.concat_tables(records), sink, compression="zstd")
    return {"bytes": head.bytes, "plain": int(sink.tell())}


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))), flush=True)
