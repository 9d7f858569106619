"""Look-up of one key by `slackwater serve` with an empty cache, from S3, with 30 ms added to each request.

The instance is up and knows the app. It gets one request for each of several tables, one after the other; then the next
instance, with an empty cache, gets the same. Each table has a single state partition, so that less is prefetched after
an answer; the benchmark waits for this before the next request.

`python -m bench.tasks.serve.serving_cold [FOLDER] [--quick]` prints its rows alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
from msgspec.structs import replace
from slackwater.client.remote import Server
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import AppInfo

from tests.programs.go import is_built
from tests.support.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, versitygw

from ...multi_get import TABLE
from ...support.far_away import FarAway, far_away, in_sequence
from ...support.row import Row
from ...support.served import APP, born, names, processor_s, serving, tall_rows
from ...support.written import Stage

TABLES, INSTANCES = 20, 10
SIZES = ((50_000, 0), (250_000, 0), (250_000, 4))
"""Numbers of keys in the oldest SST and of newer SSTs: an SST that is fetched completely, one that is read by pages,
and the latter with newer SSTs.
"""
DELAY_S = 0.03
MS = 1_000


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """Measure look-ups with an empty cache: latency, and round trips to the store. Takes about ten minutes.

    Args:
        folder: an empty folder.
        quick: make 1/40 of the look-ups.
    """
    if not is_built("versitygw"):
        raise RuntimeError("the S3 server is not built: `make programs` does it, with Go on PATH")
    tables, instances = (5, 1) if quick else (TABLES, INSTANCES)
    (folder / "gw").mkdir()
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    # The proxy's thread is also in this process, and neither thread should wait long for the interpreter.
    sys.setswitchinterval(0.0005)
    with versitygw(folder / "gw") as endpoint, far_away(endpoint, DELAY_S) as proxy:
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        for keys, runs in SIZES:
            os.environ["AWS_ENDPOINT_URL"] = endpoint
            root = f"s3://{BUCKET}/cold-{keys}-{runs}"
            size = _make_cold(root, folder / f"made-{keys}-{runs}", keys, runs, tables)
            os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
            found = list[tuple[float, int, int, float]]()
            for instance in range(instances):
                empty = folder / f"none-{keys}-{runs}-{instance}"
                # A real app has few stages, and no new stage appears during the measurement; this app has many.
                with serving(root, empty, "--every", "5s") as (url, process), Server(url) as server:
                    found += _ask_cold(server, proxy, process, keys, tables)
                shutil.rmtree(empty)
            took, requests, sequence, cpu_s = (np.array(each) for each in zip(*found, strict=True))
            p99, tries = float(np.quantile(took, 0.99)) * MS, f"{len(found)} tries, {instances} instances"
            note = f"p50 {np.median(took) * MS:.0f} ms, max {took.max() * MS:.0f} ms; "
            note += f"{np.median(requests):.0f} requests, {np.median(cpu_s) * MS:.0f} ms of processor meanwhile"
            over = f" and {runs} smaller ones over it" if runs else ""
            what = f"get of one key, cold, of an SST of {size / 1e6:.1f} MB{over}, {DELAY_S * MS:.0f} ms added to each"
            yield Row.at_most(f"{what} store request: p99 of {tries}", f"{p99:.0f} ms", note, p99, 150)
            usual = float(np.median(sequence))
            yield Row.at_most(f"{what}: requests in sequence", f"{usual:g}", "the median", usual, 3)


def _make_cold(root: str, cache: Path, keys: int, runs: int, tables: int) -> int:
    """Write an app with this many tables. Returns the bytes of the largest SST of the last table."""
    store, opened = open_store(root), SstCache(cache, 1 << 40)
    apps.create_app(store, AppInfo(APP, 1))
    random, table = np.random.default_rng(7), replace(TABLE, partitions=1)
    for number in range(tables):
        stage = Stage(store, opened, born(store, opened, f"legs{number}", table, tall_rows(np.arange(keys), 1)))
        for seq in range(2, 2 + runs):
            stage.put(tall_rows(random.choice(keys, keys // 16, replace=False), seq))
    shutil.rmtree(cache)
    return max(sst.bytes for sst in stage.head.ssts)


def _ask_cold(
    server: Server, proxy: FarAway, process: subprocess.Popen[bytes], keys: int, tables: int
) -> Iterator[tuple[float, int, int, float]]:
    """Look up one key in each table, and yield the figures of each look-up.

    The figures are: seconds, requests for the table's SSTs, round trips among them, and CPU seconds of the server.
    """
    random = np.random.default_rng(6)
    server.app(APP)
    for number in range(tables):
        (key,) = names(random.integers(keys, size=1))
        _until_quiet(process, proxy)  # everything that was fetched beside an answer has arrived
        seen, before_s, began_s = len(proxy.seen), processor_s(process), time.perf_counter()
        server.http.json(("apps", APP, "at", "now", "tables", f"legs{number}"), key=key)
        end_s = time.perf_counter()
        # The answer did not wait for requests that came later.
        came = [at_s for at_s, line in proxy.seen[seen:] if f"/legs{number}/sst/" in line and at_s < end_s - DELAY_S]
        yield end_s - began_s, len(came), in_sequence(came, DELAY_S), processor_s(process) - before_s


def _until_quiet(process: subprocess.Popen[bytes], proxy: FarAway) -> None:
    """Wait until the server has sent no request and used little CPU for 0.4 s."""
    before, now = (-1, 0.0), (len(proxy.seen), processor_s(process))
    while before[0] != now[0] or now[1] - before[1] > 0.05:
        time.sleep(0.4)
        before, now = now, (len(proxy.seen), processor_s(process))


if __name__ == "__main__":
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=named[0] if named else None) as work:
        for row in rows(Path(work), "--quick" in sys.argv):
            print(row)
