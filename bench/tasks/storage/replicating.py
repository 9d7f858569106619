"""`slackwater replicate` of an app with millions of keys, beside plain gets and puts of the same objects.

`python -m bench.tasks.storage.replicating [FOLDER] [--quick]` prints its rows alone; `--quick` uses 1 M keys.

Both copy from one root to another with the same number of threads: in S3 (versitygw, on this machine's disk) if that is
built, otherwise between folders. The peer lists the objects, gets each and puts it. `replicate` reads versions,
verifies each SST, puts manifests last, pins the cut, and records up to which version the replica is complete. They
alternate, each into an empty root. Then new keys are committed, and the bytes that the next round copies are compared
with the bytes of the new objects.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import duckdb
from msgspec.structs import replace
from slackwater.operations.disaster_recovery.replicate import Replicator
from slackwater.operations.exchange.initialise import initialise
from slackwater.snapshot.query.row_source import RowSource
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.copier import WORKERS
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Input, Manifest

from ...multi_get import TABLE
from ...support.row import Row
from ...support.stores import s3_or_folder

KEYS, QUICK_KEYS = 10_000_000, 1_000_000
ROUNDS = 3
APP = "bench"


def rows(folder: Path, quick: bool) -> list[Row]:
    """Write the app to the folder, and measure. Takes about three minutes at full scale, and 3 GB of disk.

    Args:
        folder: an empty folder.
        quick: 1 M keys instead of 10 M, and one round.
    """
    count = QUICK_KEYS if quick else KEYS
    with s3_or_folder(folder) as (where, root):
        store = open_store(f"{root}/primary")
        _make(store, folder, "first", count)
        bytes_in_all = sum(info.size_bytes for info in store.list(f"{APP}/"))
        took: dict[str, list[float]] = {"ours": [], "peer": []}
        for number in range(1 if quick else ROUNDS):
            for name, times in took.items():
                target = open_store(f"{root}/{name}-{number}")
                began = time.perf_counter()
                if name == "ours":
                    Replicator(store, target, APP, "bench").run_round()
                else:
                    _plain(store, target)
                times.append(time.perf_counter() - began)
        ours, peer = median(took["ours"]), median(took["peer"])
        counted = CountingStore(open_store(f"{root}/ours-0"))
        copies = Replicator(store, counted, APP, "bench")
        copies.run_round()
        before = {info.key for info in store.list(f"{APP}/stages/")}
        _more(store, folder, count // 20)
        new = sum(info.size_bytes for info in store.list(f"{APP}/stages/") if info.key not in before)
        counted.reset()
        done = copies.run_round()
    mb = bytes_in_all / 1e6
    return [
        Row.at_least(
            f"replicate {count:,} keys, {mb:,.0f} MB, {where}, {WORKERS} at once",
            f"{ours:.1f} s ({mb / ours:,.0f} MB/s)",
            f"gets and puts of the same objects: {peer:.1f} s ({mb / peer:,.0f} MB/s)",
            peer / ours,
            0.8,
        ),
        Row.at_most(
            f"the next round, {new / 1e6:,.1f} MB new",
            f"{done.bytes / 1e6:,.1f} MB copied, {counted.bytes_written / 1e6:,.1f} MB put in all",
            f"new objects: {new / 1e6:,.1f} MB",
            done.bytes / new,
            1.0,
        ),
    ]


def _make(store: ObjectStore, folder: Path, name: str, count: int) -> None:
    source = folder / f"{name}.parquet"
    with duckdb.connect() as con:
        con.execute(
            f"COPY (SELECT lpad((hash(n) % 1000000000)::VARCHAR, 9, '0') || n AS leg, n % 97 AS flights, "
            f"n * 0.37 AS delay FROM range({count}) AS r(n)) TO '{source}'"
        )
    apps.ensure_app(store, AppInfo(APP, 1))
    first = Manifest(APP, "legs", 1, 1, "bench", 1, "init", {"legs": Input("legs", (0,))}, table=TABLE)
    initialise(store, first, RowSource(str(source)))


def _more(store: ObjectStore, folder: Path, count: int) -> None:
    """Commit a version with this many additional keys. Its SSTs are copied from another app of that size."""
    head = history.head(store, APP, "legs")
    assert head is not None
    with tempfile.TemporaryDirectory(dir=folder) as other:
        made = open_store(other)
        _make(made, folder, "more", count)
        more = history.head(made, APP, "legs")
        assert more is not None
        for sst in more.ssts:
            store.put(sst.object, made.get(sst.object))
    draft = successor(head, kind="batch", epoch=head.epoch, writer="bench", by="bench", now_ms=head.time_ms + 1)
    ssts = tuple(replace(sst, seq_min=draft.version, seq_max=draft.version, level=0) for sst in more.ssts)
    commit(store, replace(draft, ssts=(*ssts, *head.ssts)))


def _plain(store: ObjectStore, target: ObjectStore) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(lambda info: target.put(info.key, store.get(info.key)), store.list(f"{APP}/")):
            pass


if __name__ == "__main__":
    words = [each for each in sys.argv[1:] if each != "--quick"]
    with tempfile.TemporaryDirectory(dir=words[0] if words else None) as temporary:
        for row in rows(Path(temporary), "--quick" in sys.argv):
            print(f"{row.what}: {row.ours}; {row.peer}; ratio {row.ratio:.2f}, asked {row.asked}")
