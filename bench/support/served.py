"""An app with a table of millions of keys and one of 200 columns, written without Spark; servers and load for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from slackwater.pipeline.dev.jvm_server import choose_port
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, commit
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Table

from tests.programs.go import path_of

from ..multi_get import L0_ROWS, RUNS_L0, TABLE, _names
from .written import Stage, ssts

APP, TALL, WIDE = "bench", "legs", "wide"
WIDE_COLUMNS, WIDE_KEYS = 200, 50_000
WIDE_TABLE = Table(
    (Column("leg", "string"),), tuple(Column(f"c{at}", "int64") for at in range(WIDE_COLUMNS)), partitions=4
)
TOPIC = "orders"
_GIVES_WAY = ("sh", "-c", '2>/dev/null echo 19 >/proc/self/autogroup; exec chrt --idle 0 "$@"', "sh")
"""A command prefix that gives a process the lowest CPU priority.

Where Linux schedules sessions as groups (autogroup), `nice` has an effect only within a session, and a job's JVM is in
another session.
"""


def make(store: ObjectStore, cache: SstCache, keys: int) -> None:
    """Write an app with a table of this many keys, stored as in a running app, and a table of 200 columns."""
    apps.create_app(store, AppInfo(APP, 1))
    random = np.random.default_rng(8)
    numbers = np.arange(WIDE_KEYS)
    wide_rows = pa.table({"leg": _names(numbers)} | {f"c{at}": numbers + at for at in range(WIDE_COLUMNS)})
    born(store, cache, WIDE, WIDE_TABLE, wide_rows)
    stage = Stage(store, cache, born(store, cache, TALL, TABLE, tall_rows(np.arange(keys), 1)))
    for seq in range(2, 2 + RUNS_L0):
        some = random.choice(keys, min(L0_ROWS, keys // 10), replace=False)
        stage.put(tall_rows(some, seq))


def born(store: ObjectStore, cache: SstCache, name: str, table: Table, rows: pa.Table) -> Manifest:
    """Commit the first version of a stage, with these rows."""
    made = ssts(store, cache, APP, name, table, rows, 1, 1)
    inputs, now_ms = {TOPIC: Input(TOPIC, (0,))}, time.time_ns() // 1_000_000
    head = Manifest(APP, name, 1, 1, "w", now_ms, "batch", table=table, ssts=made, inputs=inputs)
    commit.commit(store, head)
    return head


def tall_rows(numbers: np.ndarray, seq: int) -> pa.Table:
    """Return rows of the table that has many keys."""
    return pa.table({"leg": _names(numbers), "flights": numbers + seq, "delay": numbers / 4})


def names(numbers: np.ndarray) -> list[str]:
    """Return the names of the keys with these numbers."""
    return list(_names(numbers).to_pylist())


@contextmanager
def serving(
    store: str, cache: Path, *words: str, is_one_of_several: bool = False, gives_way: bool = False
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `slackwater serve`, and yield its URL and its process. With `gives_way`, it has a lower CPU priority."""
    port = choose_port()
    words = (*words, *(["--advertise", f"http://127.0.0.1:{port}"] if is_one_of_several else []))
    command = [sys.executable, "-m", "slackwater.cli.main", "serve", "--store", store, "--port", str(port), *words]
    command = [*(_GIVES_WAY if gives_way else ()), *command]
    # A separate session, because the lower priority applies to a session.
    process = subprocess.Popen(command, env={**os.environ, "SLACKWATER_CACHE": str(cache)}, start_new_session=gives_way)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        yield url, process
    finally:
        process.terminate()
        process.wait(20)


def targets(folder: Path, urls: Sequence[str], paths: Sequence[str]) -> Path:
    """Write GET requests to a file for vegeta. They go to the instances in turn."""
    file = folder / "targets"
    file.write_text("".join(f"GET {urls[number % len(urls)]}{path}\n" for number, path in enumerate(paths)))
    return file


def attack(
    targets: Path,
    rate: int,
    seconds: float,
    process: subprocess.Popen[bytes] | None = None,
    *,
    gives_way: bool = False,
) -> dict[str, float]:
    """Send requests at a constant rate with vegeta. Returns latency quantiles in ms, and the share of answers 200.

    Also returns the server's CPU time per request in µs, which does not depend on other load on the machine.
    """
    words = ["-targets", str(targets), "-rate", str(rate), "-duration", f"{seconds}s", "-timeout", "5s"]
    words += ["-workers", "16", "-max-workers", "256"]
    before_s = processor_s(process)
    vegeta = str(path_of("vegeta"))
    command = [*(_GIVES_WAY if gives_way else ()), vegeta, "attack", *words]
    done = subprocess.run(command, capture_output=True, check=True, start_new_session=gives_way)
    took_s = processor_s(process) - before_s
    report = subprocess.run([vegeta, "report", "-type=json"], input=done.stdout, capture_output=True, check=True)
    found = json.loads(report.stdout)
    latencies = {name: value / 1e6 for name, value in found["latencies"].items()}
    return {
        "p50": latencies["50th"],
        "p99": latencies["99th"],
        "max": latencies["max"],
        "ok": found["success"],
        "cpu_us": took_s / found["requests"] * 1e6,
    }


def processor_s(process: subprocess.Popen[bytes] | None) -> float:
    """Return the CPU seconds that a process has used; 0 for None."""
    if process is None:
        return 0.0
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180  # a server with a low priority may have to wait for a core
    while True:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=1).read()  # noqa: S310
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start") from None
            time.sleep(0.05)
        else:
            return
