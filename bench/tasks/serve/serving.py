"""`slackwater serve` under load, beside Redis; with one of two instances killed; and for reads right after a write.

`python -m bench.tasks.serve.serving [FOLDER] [--quick]` prints its rows alone; `--quick` uses 1 M keys and less time.

vegeta generates the load at a constant rate, so that a slow answer does not delay later requests, and all waiting
requests count. Without vegeta, nothing is measured. If a redis-server is installed, `redis-benchmark` sends it as many
requests; Redis keeps everything in memory, with one value per key. Server, load generator and store share the machine's
cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import numpy as np
import urllib3
from slackwater.client.remote import Server
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import AppInfo, Input

from tests.programs.go import is_built

from ...multi_get import TABLE
from ...support.row import Row
from ...support.served import (
    APP,
    TALL,
    TOPIC,
    WIDE,
    WIDE_COLUMNS,
    WIDE_KEYS,
    attack,
    born,
    make,
    names,
    serving,
    tall_rows,
    targets,
)
from ...support.written import Stage

KEYS, QUICK_KEYS = 10_000_000, 1_000_000
RATE = 1_000
WIDE_RATE = 10
TRIES = 10_000
MS = 1_000


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """Write the app to the folder, and measure. Takes about five minutes at full scale, and 1 GB of disk.

    Args:
        folder: an empty folder.
        quick: 1 M keys instead of 10 M, and a fifth of the time.
    """
    if not is_built("vegeta"):
        raise RuntimeError("vegeta is not built: `make bench` does it, with Go on PATH")
    count, seconds = (QUICK_KEYS, 5) if quick else (KEYS, 30)
    root, cache = str(folder / "store"), folder / "cache"
    make(open_store(root), SstCache(cache, 1 << 40), count)
    with serving(root, cache) as (url, process):
        yield from _warm(url, process, count, seconds)
        yield _wide(url, process, seconds)
    if redis := _redis(folder, count, seconds):
        yield redis
    yield _two(root, folder, count, max(seconds, 15))
    yield _own_writes(folder / "own", TRIES // 20 if quick else TRIES)


def _paths(count: int, keys: int, seed: int = 3) -> list[str]:
    numbers = np.random.default_rng(seed).integers(keys, size=count)
    return [f"/apps/{APP}/at/now/tables/{TALL}?key={name}" for name in names(numbers)]


def _warm(url: str, process: subprocess.Popen[bytes], keys: int, seconds: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        wanted = targets(Path(name), [url], _paths(RATE * seconds, keys))
        attack(wanted, RATE // 4, 3)
        found = attack(wanted, RATE, seconds, process)
    what = f"get of one key of {keys:,}, warm, {RATE:,} requests/s offered, over HTTP"
    note = f"{found['ok']:.2%} answered; max {found['max']:.0f} ms; {found['cpu_us']:.0f} µs of processor a request"
    yield Row.at_most(f"{what}: p50", f"{found['p50']:.2f} ms", note, found["p50"], 2)
    yield Row.at_most(f"{what}: p99", f"{found['p99']:.2f} ms", note, found["p99"], 10)


def _wide(url: str, process: subprocess.Popen[bytes], seconds: int) -> Row:
    random = np.random.default_rng(4)
    asked = [
        "&".join(f"key={name}" for name in names(random.integers(WIDE_KEYS, size=50))) for _ in range(WIDE_RATE * 30)
    ]
    with tempfile.TemporaryDirectory() as name:
        wanted = targets(Path(name), [url], [f"/apps/{APP}/at/now/tables/{WIDE}?{each}" for each in asked])
        attack(wanted, WIDE_RATE, 3)
        found = attack(wanted, WIDE_RATE, seconds, process)
    what = f"50 keys of {WIDE_COLUMNS} columns in one request, warm, {WIDE_RATE} requests/s: p99"
    note = f"p50 {found['p50']:.1f} ms; {found['cpu_us'] / MS:.1f} ms of processor a request"
    return Row.at_most(what, f"{found['p99']:.1f} ms", note, found["p99"], 60)


def _redis(folder: Path, keys: int, seconds: int) -> Row | None:
    """Measure GET of random keys with redis-benchmark; None if Redis is not installed."""
    if which("redis-server") is None or which("redis-benchmark") is None:
        return None
    port = "6399"
    server = subprocess.Popen(
        ["redis-server", "--port", port, "--save", "", "--dir", str(folder)], stdout=subprocess.DEVNULL
    )
    try:
        time.sleep(1)
        several = min(keys, 1_000_000)
        load = ["redis-benchmark", "-p", port, "-r", str(several), "--csv", "-q"]
        subprocess.run([*load, "-t", "set", "-n", str(several * 2), "-P", "50"], capture_output=True, check=True)
        done = subprocess.run(
            [*load, "-t", "get", "-n", str(RATE * seconds), "-c", "8"], capture_output=True, check=True
        )
        heading, values = [line.replace('"', "").split(",") for line in done.stdout.decode().splitlines()[:2]]
        found = dict(zip(heading, values, strict=True))
    finally:
        server.terminate()
        server.wait()
    p50, p99 = float(found["p50_latency_ms"]), float(found["p99_latency_ms"])
    what = f"the peer: GET of one of {several:,} keys in Redis, 8 connections as fast as they can"
    return Row(what, "-", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, {float(found['rps']):,.0f}/s", 1, "shown", True)


def _two(root: str, folder: Path, keys: int, seconds: int) -> Row:
    """Kill one of two instances under load. Every answer of the other instance must be right."""
    http = urllib3.PoolManager(retries=False, timeout=5)
    wrong = failed = answered = 0
    random = np.random.default_rng(5)
    one, two = (serving(root, folder / name, is_one_of_several=True) for name in ("one", "two"))
    with one as (first, process), two as (second, _):
        time.sleep(3)  # until they know of each other
        deadline, killed_s, moved_s = time.monotonic() + seconds, 0.0, 0.0
        began_s = time.monotonic()
        while time.monotonic() < deadline:
            numbers = random.integers(keys, size=2)
            some = names(numbers)
            for url in (first, second) if not killed_s else (second,):
                path = f"{url}/apps/{APP}/at/now/tables/{TALL}?key={some[0]}&key={some[1]}&column=delay"
                answer = http.request("GET", path)
                answered += 1
                failed += answer.status != 200
                if answer.status == 200:
                    wrong += [row["delay"] for row in answer.json()["rows"]] != (numbers / 4).tolist()
            if not killed_s and time.monotonic() - began_s > seconds / 3:
                process.kill()
                killed_s = time.monotonic()
            if killed_s and not moved_s and _is_alone(second):
                moved_s = time.monotonic() - killed_s
    what = f"two instances, one killed: wrong or failed answers of {answered:,}; ranges move in {moved_s:.1f} s"
    ratio = float(wrong + failed) if moved_s and moved_s <= 5 else 9.0
    return Row(what, f"{wrong} wrong, {failed} failed", "none may", ratio, "<= 0", ratio == 0)


def _is_alone(url: str) -> bool:
    """Return True if an instance knows of no other instance."""
    return int(urllib3.request("GET", f"{url}/healthz").json()["others"]) == 0


def _own_writes(folder: Path, tries: int) -> Row:
    """Commit a record, request its effect at once with `min_offsets`, and check the answer."""
    root, cache = str(folder / "store"), folder / "cache"
    store, opened = open_store(root), SstCache(cache, 1 << 40)
    apps.create_app(store, AppInfo(APP, 1))
    stage = Stage(store, opened, born(store, opened, TALL, TABLE, tall_rows(np.arange(1_000), 1)))
    wrong, waits = 0, list[float]()
    asked = threading.Semaphore(0)
    done = threading.Semaphore(0)

    def write() -> None:
        for number in range(tries):
            asked.acquire()
            stage.put(tall_rows(np.array([7]), number + 100), {TOPIC: Input(TOPIC, (number + 1,))})
            if number % 20 == 19:
                stage.compact()
            done.release()

    writer = threading.Thread(target=write)
    with serving(root, cache, "--every", "10ms") as (url, _), Server(url) as server:
        writer.start()
        path = ("apps", APP, "at", "now", "tables", TALL)
        for number in range(tries):
            asked.release()  # the record is produced, and its producer sends the request at once
            began_s = time.perf_counter()
            found = server.http.json(path, key="leg-00000007", min_offsets=f"{TOPIC}:0:{number}", wait_ms=20_000)
            waits.append(time.perf_counter() - began_s)
            wrong += found["rows"][0]["flights"] < 7 + number + 100
            done.acquire()
        writer.join()
    what = f"read your writes: answers without the record's effect, of {tries:,}"
    p50, p99 = np.quantile(waits, (0.5, 0.99)) * MS
    wait = f"committed and answered in {p50:.0f} ms (median), {p99:.0f} ms (p99)"
    return Row(what, str(wrong), wait, float(wrong), "<= 0", wrong == 0)


if __name__ == "__main__":
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=named[0] if named else None) as work:
        for row in rows(Path(work), "--quick" in sys.argv):
            print(row)
