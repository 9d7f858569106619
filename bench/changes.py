"""Cost of queries for changes: the diff of two versions of a large table, and the history of a key.

Each query runs in a fresh process with an empty cache, so that it reads everything from the store.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, commit
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table

from .support.row import Row
from .support.written import Stage, ssts

ROWS = 5_000_000
CHANGED = 10
KEYS = 200_000
VERSIONS = 1_000
BATCH = 4_000
EVERY = {"often": 3, "now and then": 20, "seldom": 150}
"""Interval, in batches, between two writes of each key whose history is read. Compactions are additional versions."""
TABLE = Table((Column("leg", "string"),), (Column("flights", "int64"), Column("delay", "double")), 4)


def rows(folder: Path, quick: bool) -> list[Row]:
    """Measure a diff of two versions of a large table, and the history of a key over many versions."""
    scale = 20 if quick else 1
    return [*_diffs(folder / "diff", ROWS // scale), *_histories(folder / "history", KEYS // scale, VERSIONS // scale)]


def _diffs(folder: Path, num_rows: int) -> list[Row]:
    stage = _stage(folder, num_rows)
    _put(stage, np.random.default_rng(1).choice(num_rows, CHANGED, replace=False))
    changed = stage.head.version
    stage.compact(full=True)
    found = []
    for how, version in (("", changed), (", all rewritten by a compaction", stage.head.version)):
        seconds, read = _alone(_diff, folder, 1, version)
        what = f"diff of two versions, {CHANGED} changed rows of {num_rows:,}{how}"
        stored = sum(sst.bytes for sst in stage.head.ssts)
        found += [
            Row(what, f"{seconds:.2f} s", "limit: 2 s", seconds / 2, "< 1", seconds < 2),
            Row.at_most(
                f"{what}: bytes read", f"{read / 1e6:.1f} MB", f"the table: {stored / 1e6:.0f} MB", read / stored, 0.1
            ),
        ]
    return found


def _histories(folder: Path, num_keys: int, num_versions: int) -> list[Row]:
    stage, random = _stage(folder, num_keys), np.random.default_rng(2)
    for batch in count():
        if stage.head.version >= num_versions:
            break
        followed = [number for number, every in enumerate(EVERY.values()) if batch % every == 0]
        drawn = random.choice(np.arange(len(EVERY), num_keys), min(BATCH, num_keys // 10), replace=False)
        _put(stage, np.concatenate((np.array(followed, np.int64), drawn)))
        stage.compact()
    found = []
    for number, how in enumerate(EVERY):
        seconds, requests, changes = _alone(_history, folder, number)
        what = f"history of a key that {how} changes, {num_versions:,} versions"
        found += [
            Row(f"{what} ({changes} changes)", f"{seconds:.2f} s", "limit: 2 s", seconds / 2, "< 1", seconds < 2),
            Row.at_most(
                f"{what}: requests a change, manifests aside",
                f"{requests / changes:.1f}",
                "limit: 3",
                requests / changes / 3,
                1,
            ),
        ]
    return found


def _alone(measure, *arguments):  # type: ignore[no-untyped-def]
    """Call a function in a fresh process, because this process caches footers and manifests."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(measure, *arguments).result()


def _diff(folder: Path, before: int, after: int) -> tuple[float, int]:
    """Return the seconds that the diff took and the bytes that it read."""
    with tempfile.TemporaryDirectory() as cache:
        store = CountingStore(open_store(str(folder)))
        began = time.perf_counter()
        cuts = (resolve(store, f"bench/legs@v{version}", now_ms=1 << 41) for version in (before, after))
        (found,) = diff(SstCache(Path(cache), 1 << 30), *(StoredCut(store, cut) for cut in cuts))
        seconds = time.perf_counter() - began
    assert found.changed == len(found.changes) == CHANGED
    return seconds, store.bytes_read


def _history(folder: Path, number: int) -> tuple[float, int, int]:
    """Return the seconds, the number of requests (without those for manifests), and the number of changes."""
    with tempfile.TemporaryDirectory() as cache:
        store = open_store(str(folder))
        (key,) = _legs(np.array([number])).to_pylist()
        began = time.perf_counter()
        found = key_history(store, SstCache(Path(cache), 1 << 30), "bench", "legs", [key], now_ms=1 << 41)
        seconds = time.perf_counter() - began
    return seconds, found.reads.requests, len(found.changes)


def _stage(folder: Path, num_rows: int) -> Stage:
    """Create a stage whose first version has this many rows, sorted as after a compaction."""
    store, cache = open_store(str(folder)), SstCache(folder.with_name(f"{folder.name}-cache"), 1 << 34)
    apps.create_app(store, AppInfo("bench", 1))
    first = Manifest("bench", "legs", 1, 1, "bench", 1, "batch", table=TABLE)
    first = replace(first, ssts=ssts(store, cache, "bench", "legs", TABLE, _rows(np.arange(num_rows), 1), 1, level=1))
    commit.commit(store, first)
    return Stage(store, cache, first)


def _put(stage: Stage, numbers: npt.NDArray[np.int64]) -> None:
    """Commit a batch that changes these keys."""
    stage.put(_rows(numbers, stage.head.version + 1))


def _rows(numbers: npt.NDArray[np.int64], seq: int) -> pa.Table:
    return pa.table({"leg": _legs(numbers), "flights": numbers + seq, "delay": numbers / 4})


def _legs(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pc.binary_join_element_wise("leg-", pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 7, "0"), "")
