"""Age of a row when it becomes readable in a Delta or Iceberg table, at 10,000 rows a second.

A row becomes readable when its commit is in the table's log, or its metadata in the catalog; a poll sees that every
`_LOOK_S`. The rows of each commit are read from its own files.

`python -m bench.support.table_ages KIND BOOTSTRAP FOLDER TOPIC` runs the app in a fresh process until `FOLDER/stop`
exists, and prints the number of committed rows.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from confluent_kafka import Producer

from . import side
from .events import PARTITIONS
from .row import Row

if TYPE_CHECKING:
    import slackwater as sw

PER_S = 10_000
WARM_UP_S, MEASURED_S = 20, 30
LIMITS_S = {"median": (50, 2.0), "p99": (99, 4.0)}
_TICK_S, _LOOK_S = 0.02, 0.02
_END_S = 60.0


def rows(bootstrap: str, folder: Path, kind: str) -> Iterator[Row]:
    ages = measured(bootstrap, folder / f"ages-{kind}", f"bench-ages-{kind}", kind)
    for what, (percent, limit) in LIMITS_S.items():
        age = float(np.percentile(ages, percent))
        yield Row(
            f"{PER_S:,} rows a second into a {kind} table, from produced to readable, {what} of {len(ages):,}",
            f"{age:.2f} s",
            f"limit: {limit:g} s",
            age / limit,
            "< 1",
            age < limit,
        )


def measured(bootstrap: str, folder: Path, topic: str, kind: str) -> list[float]:
    """Return the seconds from production to readability of each row that was produced after the warm-up."""
    from slackwater.pipeline.kafka.open import open_kafka

    folder.mkdir(parents=True)
    open_kafka(bootstrap).create_topics({topic: PARTITIONS})
    seen: dict[str, float] = {}
    """Time at which each state of the table was first seen, in seconds since 1970."""
    ended = Event()
    watcher = Thread(target=_watch, args=(kind, folder, seen, ended))
    watcher.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(side.run, "support.table_ages", kind, bootstrap, folder, topic)
            try:
                _send(bootstrap, topic, 1)
                while not seen and not running.done():
                    time.sleep(_LOOK_S)
                began = time.time()
                _send(bootstrap, topic, PER_S * (WARM_UP_S + MEASURED_S))
            finally:
                (folder / "stop").touch()
            running.result(timeout=_END_S)
    finally:
        ended.set()
        watcher.join()
    # States that followed each other within a poll were readable at the next one.
    stamps = sorted(seen.items(), key=lambda item: item[1])
    ages, known = [], set[str]()
    for state, seen_s in stamps:
        files = set(_FILES[kind](folder, state))
        for file in files - known:
            sent = pq.read_table(file, columns=["sent"])["sent"].to_numpy()
            ages += (seen_s - sent[sent >= began + WARM_UP_S]).tolist()
        known |= files
    assert len(ages) >= PER_S * MEASURED_S * 0.98, f"only {len(ages):,} rows were seen"
    return ages


def _watch(kind: str, folder: Path, seen: dict[str, float], ended: Event) -> None:
    while not ended.wait(_LOOK_S):
        state = _STATES[kind](folder)
        if state:
            seen.setdefault(state, time.time())


def _delta_state(folder: Path) -> str:
    with suppress(FileNotFoundError):
        log = [path.name for path in (folder / "table" / "_delta_log").iterdir()]
        return max((name for name in log if name.endswith(".json") and name[:20].isdecimal()), default="")
    return ""


def _delta_files(folder: Path, state: str) -> Iterator[Path]:
    for path in (folder / "table" / "_delta_log").glob("*.json"):
        if path.name <= state:
            for line in path.read_text().splitlines():
                added = json.loads(line).get("add")
                if added is not None and added["dataChange"]:
                    yield folder / "table" / added["path"]


def _iceberg_state(folder: Path) -> str:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{folder}/catalog.db?mode=ro", uri=True)) as catalog:
        for (location,) in catalog.execute("SELECT metadata_location FROM iceberg_tables"):
            return str(location)
    return ""


def _iceberg_files(folder: Path, state: str) -> Iterator[Path]:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(state)
    for snapshot in table.metadata.snapshots:
        if snapshot.summary is not None and "slackwater.version" in snapshot.summary.additional_properties:
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    for entry in manifest.fetch_manifest_entry(table.io):
                        yield Path(entry.data_file.file_path.removeprefix("file://"))


_STATES: dict[str, Any] = {"delta": _delta_state, "iceberg": _iceberg_state}
_FILES: dict[str, Any] = {"delta": _delta_files, "iceberg": _iceberg_files}


def _send(bootstrap: str, topic: str, records: int) -> None:
    """Send records at `PER_S`; each has the time at which it was produced."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    began, sent = time.monotonic(), 0
    while sent < records:
        due = min(records, int((time.monotonic() - began) * PER_S) + 1)
        for number in range(sent, due):
            value = b'{"leg":"leg-%07d","delay":%d,"sent":%.6f}' % (number, number % 90, time.time())
            producer.produce(topic, value, partition=number % PARTITIONS)
        sent = due
        producer.poll(0)
        time.sleep(_TICK_S)
    assert producer.flush(60) == 0


def sink_of(kind: str, topic: str, folder: Path) -> Any:
    """Return the sink of a side: a topic, or a table in the folder; None for any other side."""
    import slackwater as sw

    if kind == "topic":
        return sw.sink(topic, key="leg")
    if kind == "delta":
        return sw.delta(str(folder / "table"))
    if kind != "iceberg":
        return None
    from pyiceberg.catalog import load_catalog

    options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    load_catalog("bench", **options).create_namespace_if_not_exists("tables")
    return sw.iceberg("bench.tables.ages", options=options)


def app_of(topic: str, sink: Any) -> sw.App:
    """Return an app that parses records into rows of the sink."""
    import slackwater as sw

    app = sw.App("bench")
    columns = "leg string, delay double, sent double"
    parsed = f"from_json(CAST(value AS string), '{columns}') AS row"
    app.stage(name="rows", reads=sw.topic(topic), writes=sink)(lambda raw: raw.selectExpr(parsed).select("row.*"))
    return app


def _run(kind: str, bootstrap: str, folder: Path, topic: str) -> int:
    from slackwater.pipeline.listener import Callbacks
    from slackwater.pipeline.run.options import Options
    from slackwater.pipeline.run.runner import run
    from slackwater.pipeline.run.stopping import StopEvent, StopRequested

    stop, committed = StopEvent(), list[int]()

    def end() -> None:
        while not (folder / "stop").exists():
            time.sleep(0.1)
        time.sleep(5.0)  # for the rows that were produced last
        stop.set()

    options = Options(
        store=str(folder / "store"),
        kafka={"bootstrap.servers": bootstrap},
        cache_folder=folder / "cache",
        master="local[2]",
    )
    Thread(target=end, daemon=True).start()
    with suppress(StopRequested):
        listener = Callbacks(committed=lambda report: committed.append(report.rows_in))
        run(app_of(topic, sink_of(kind, "", folder)), options, listener, stop=stop)
    return sum(committed)


if __name__ == "__main__":
    name, bootstrap, folder, topic = sys.argv[1:]
    print(json.dumps(_run(name, bootstrap, Path(folder), topic)))
