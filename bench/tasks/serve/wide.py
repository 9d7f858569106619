"""A store of 1,000 apps; an app with 100,000 versions and 1,000 snapshots; and one large row. Requests take 20 ms.

`python -m bench.tasks.serve.wide [--quick]` prints its rows alone; `--quick` uses a tenth of each.

The objects are in memory, and each request takes 20 ms. The page's first paint is measured without a browser: its
requests are sent six at a time, as a browser sends them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import urllib3
from msgspec.structs import replace
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StringType
from slackwater import processor
from slackwater.client import Client
from slackwater.client.status import status
from slackwater.serve.service import ServeOptions
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.state.kinds.kind import with_input_metadata
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, codec
from slackwater.store.versions.manifest import AppInfo

from tests.serve.conftest import serving_client
from tests.snapshot.wide import client_over, many_apps, pin_versions, repeat_version
from tests.state.event_time.falling import Stage as TestedStage
from tests.state.kinds.spark_model import OUTPUT, struct
from tests.state.kinds.test_processor import ROWS
from tests.store.compaction.test_large_rows import WORD_BYTES, measure_merge, measure_merge_of

from ...multi_get import TABLE
from ...support.row import Row
from ...support.served import APP, TALL, born, tall_rows
from ...support.written import Stage

APPS, VERSIONS, SNAPSHOTS = 1_000, 100_000, 1_000
CHANGES = 60
"""Number of newest versions, each of which changes all keys of the table. All earlier versions have equal rows."""
KEYS = 1_000
LIST_BYTES, MERGE_BYTES, LISTED_BYTES = 100_000_000, 400_000_000, 15_000_000
APPENDS = 20
"""Number of batches that fill the list. The batch after them is measured."""
DELAY_S, REST_S, SETTLED_S = 0.02, 10.0, 11.0
_BROWSER_REQUESTS = 6


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """Measure many apps, then an app with many versions.

    Takes two minutes at full scale, mostly to write the stores.
    """
    part = 10 if quick else 1
    memory = MemoryStore()
    many_apps(memory, APPS // part)
    yield from _many(memory, folder, APPS // part)
    _long_app(memory := MemoryStore(), folder, VERSIONS // part, SNAPSHOTS // part)
    yield from _long(memory, folder, SNAPSHOTS // part)
    yield from _collection(memory, VERSIONS // part)
    yield _large_row(folder, LIST_BYTES // part)
    yield from _large_list(folder, LIST_BYTES // part)


def far(memory: MemoryStore) -> CountingStore:
    """Return a view of the store with latency, new counters, and an empty cache."""
    return CountingStore(memory, on_request=lambda *_request: time.sleep(DELAY_S))


def _many(memory: MemoryStore, folder: Path, count: int) -> Iterator[Row]:
    store = far(memory)
    with client_over(store, folder / "cache") as client:
        took_s = _seconds(lambda: status(client, None))
        requests = f"{store.requests / count:.1f} requests an app"
        yield Row.at_most(f"status of {count:,} apps", f"{took_s:.2f} s", f"limit: 10 s; {requests}", took_s / 10, 1)
    store = far(memory)
    with (
        client_over(store, folder / "cache") as client,
        serving_client(client, options=ServeOptions(prestart_sql=False)) as url,
        urllib3.PoolManager(maxsize=_BROWSER_REQUESTS) as pool,
    ):
        names: list[str] = pool.request("GET", f"{url}/apps").json()["apps"]
        listed_s = _seconds(lambda: _ask_all(pool, [f"{url}/apps/{name}/at/now/stages" for name in names]))
        store.reset()
        time.sleep(REST_S)
        rate = store.requests / REST_S
        note = f"limit: 20; the list itself, {_BROWSER_REQUESTS} requests at a time: {listed_s:.1f} s"
        yield Row.at_most(f"serve at rest, {count:,} apps listed: requests/s", f"{rate:.1f}", note, rate / 20, 1)


def _long_app(memory: MemoryStore, folder: Path, versions: int, snapshots: int) -> None:
    apps.create_app(memory, AppInfo(APP, 1))
    cache = SstCache(folder / "written", 1 << 40)
    head = repeat_version(memory, born(memory, cache, TALL, TABLE, tall_rows(np.arange(KEYS), 1)), versions - CHANGES)
    stage = Stage(memory, cache, head)
    for number in range(CHANGES):
        stage.put(tall_rows(np.arange(KEYS), number + 2))
    pin_versions(memory, stage.head, snapshots)


def _long(memory: MemoryStore, folder: Path, count: int) -> Iterator[Row]:
    store = far(memory)
    with client_over(store, folder / "cache-of-list") as client:
        took_s = _seconds(lambda: client.app(APP).snapshot_listing())
        note = f"limit: 1.5 s; {store.requests:,} requests"
        yield Row.at_most(f"snapshot list of {count:,}", f"{took_s:.2f} s", note, took_s / 1.5, 1)
    store = far(memory)
    with client_over(store, folder / "cache-of-history") as client:
        took_s = _seconds(lambda: _history(client))
        note = f"limit: 2.5 s; {store.requests:,} requests, {store.counts.get('list', 0)} of them listings"
        yield Row.at_most("history of a key, 20 changes", f"{took_s:.2f} s", note, took_s / 2.5, 1)
    store = far(memory)
    with (
        client_over(store, folder / "cache-of-page") as client,
        serving_client(client, options=ServeOptions(prestart_sql=False)) as url,
        urllib3.PoolManager(maxsize=_BROWSER_REQUESTS) as pool,
    ):
        paths = ("at/now/stages", "timeline", "snapshots")
        took_s = _seconds(lambda: _ask_all(pool, [f"{url}/apps/{APP}/{path}" for path in paths]))
        note = f"limit: 2 s; {store.requests:,} requests"
        what = f"page: the answers of an app's first paint, {count:,} snapshots"
        yield Row.at_most(what, f"{took_s:.2f} s", note, took_s / 2, 1)


def _collection(memory: MemoryStore, versions: int) -> Iterator[Row]:
    """Count the GETs of a dry run of garbage collection, after a real run has written pages and a pack of snapshots.

    Only snapshots older than ten seconds are packed.
    """
    time.sleep(SETTLED_S)
    retention = Retention(all_ms=versions * 1_000)
    collect(memory, APP, retention, by="bench")
    store = far(memory)
    took_s = _seconds(lambda: collect(store, APP, retention, by="bench", dry_run=True))
    gets, note = store.take_stats().gets, f"limit: 500; {took_s:.1f} s, {store.bytes_read / 1e6:.1f} MB"
    yield Row.at_most(f"gc --dry-run of {versions:,} versions: GETs", f"{gets:,}", note, gets / 500, 1)


def _large_row(folder: Path, row_bytes: int) -> Row:
    grown, bytes_read, sst = measure_merge(folder, 1, row_bytes)
    note = f"limit: {MERGE_BYTES:,}; it read {bytes_read:,} of {8 * sst.bytes:,} bytes"
    what = f"a merge of eight versions of a row of {row_bytes:,} bytes: memory"
    return Row.at_most(what, f"{grown:,} bytes", note, grown / MERGE_BYTES, 1)


class Words(StatefulProcessor):
    """A StatefulProcessor that appends many words to the list of its only key in each batch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def init(self, handle: Any) -> None:
        self._words = handle.getListState("words", struct(text=StringType()))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        (seed,) = [row.n for row in rows]
        text = np.random.default_rng(seed).bytes(self._count * WORD_BYTES // 2).hex()
        starts = range(0, len(text), WORD_BYTES)
        self._words.appendList([(text[start : start + WORD_BYTES],) for start in starts])
        yield from ()

    def close(self) -> None: ...


def _large_list(folder: Path, list_bytes: int) -> Iterator[Row]:
    state = processor(Words(list_bytes // APPENDS // WORD_BYTES), OUTPUT)
    bound = state.bind([with_input_metadata(ROWS, "t", None)], ("k",))
    stage = TestedStage(bound, ("k",), ROWS, state.stored)
    local = LocalStore(folder / "store")
    for number in range(APPENDS + 1):
        stage.batch([{"k": "a", "n": number}])
    (side,) = stage.head.side_tables.values()
    added = [sst for sst in (*stage.head.ssts, *side.ssts) if sst.seq_max == stage.head.row_seq]
    written = sum(sst.bytes for sst in added) + len(codec.encode(stage.head))
    what, note = f"a batch that appends {list_bytes // APPENDS:,} bytes to a list of {list_bytes:,}: bytes", "limit: "
    limit = LISTED_BYTES * list_bytes // LIST_BYTES
    yield Row.at_most(what, f"{written:,}", f"{note}{limit:,}", written / limit, 1)
    for sst in side.ssts:
        local.put(sst.object, stage.store.get(sst.object))
    grown, _, _ = measure_merge_of(folder, replace(side.table, partitions=1, tasks=0), tuple(side.ssts))
    what = f"a merge of a list of {list_bytes:,} bytes: memory"
    yield Row.at_most(what, f"{grown:,} bytes", f"{note}{MERGE_BYTES:,}", grown / MERGE_BYTES, 1)


def _history(client: Client) -> None:
    (key,) = tall_rows(np.arange(1), 1).column("leg").to_pylist()
    assert len(client.app(APP).history(TALL, key, limit=20)) == 20


def _ask_all(pool: urllib3.PoolManager, urls: list[str]) -> None:
    with ThreadPoolExecutor(_BROWSER_REQUESTS) as threads:
        for answer in threads.map(lambda url: pool.request("GET", url, timeout=300), urls):
            assert answer.status == 200, answer.data


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def main(words: list[str]) -> None:
    """Print the rows."""
    with tempfile.TemporaryDirectory() as name:
        for row in rows(Path(name), "--quick" in words):
            print(f"{row.what}: {row.ours}; {row.peer}; {row.asked}: {'reached' if row.reached else 'MISSED'}")


if __name__ == "__main__":
    main(sys.argv[1:])
