"""Cost of a snapshot and a clone by size of state: store requests, and for a clone also time and bytes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from .support.events import PARTITIONS
from .support.row import Row


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare the store requests of a snapshot and a clone at 10,000 and 10,000,000 keys. Time `slackwater clone`."""
    num_keys = 1_000_000 if quick else 10_000_000
    small, large = (requests(str(folder / f"requests-{keys}"), keys) for keys in (10_000, num_keys))
    seconds, copied = command(bootstrap, folder, num_keys)
    what = f"the command that clones {num_keys:,} keys, Python's start included"
    return [
        Row.at_most(what, f"{seconds:.1f} s", "3 s", seconds / 3, 1),
        Row(f"{what}: SSTs copied", str(copied), "none", copied, "= 0", not copied),
    ] + [
        Row(
            f"store requests of a {verb}, {num_keys:,} keys",
            str(large[verb]),
            f"10,000 keys: {small[verb]}",
            large[verb] / small[verb],
            "= 1",
            large[verb] == small[verb],
        )
        for verb in ("snapshot", "clone")
    ]


def command(bootstrap: str, folder: Path, num_keys: int) -> tuple[float, int]:
    """Run `slackwater clone` on that app. Returns its seconds, and the number of SSTs in the clone's own folder."""
    root = folder / f"requests-{num_keys}"
    words = ["clone", "bench@s1", "timed", "--store", str(root), "--kafka", bootstrap]
    began = time.monotonic()
    subprocess.run([Path(sys.executable).with_name("slackwater"), *words], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, len(list((root / "timed").rglob("*.parquet")))


def requests(root: str, num_keys: int) -> dict[str, int]:
    """Count the store requests of a pinned snapshot and of a clone, in a new store with an app of this many keys."""
    from slackwater.operations.staging.clone import clone
    from slackwater.snapshot.cut.resolve import resolve
    from slackwater.snapshot.take import snapshots
    from slackwater.store.objects.counting import CountingStore
    from slackwater.store.objects.open import open_store
    from slackwater.store.sst import writer
    from slackwater.store.sst.hashing import hash_keys, partition_of
    from slackwater.store.versions import apps, commit
    from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table

    store = CountingStore(open_store(root))
    table = Table((Column("k", "int64"),), (Column("n", "int64"),), PARTITIONS)
    apps.create_app(store, AppInfo("bench", 1))
    keys = pa.table({"k": pa.array(np.arange(num_keys))})
    hashes = hash_keys(keys, ["k"])
    partitions = partition_of(hashes, PARTITIONS)
    runs = []
    for partition in range(PARTITIONS):
        mine = np.flatnonzero(partitions == partition)
        mine = mine[np.argsort(hashes[mine])]
        rows = pa.table(
            {
                "_hash": hashes[mine],
                "k": keys["k"].to_numpy()[mine],
                "n": mine,
                "_seq": np.ones(len(mine), np.int64),
                "_op": np.zeros(len(mine), np.int8),
            }
        )
        runs.append(
            writer.write_sst(store, None, app="bench", stage="legs", table=table, partition=partition, rows=rows)
        )
    commit.commit(store, Manifest("bench", "legs", 1, 1, "w", 1, "batch", table=table, ssts=tuple(runs)))
    store.reset()
    cut = resolve(store, "bench", now_ms=time.time_ns() // 1_000_000)
    snapshots.pin_cut(store, cut, "s1", "instant", by="bench")
    taken = store.requests
    store.reset()
    clone(store, "bench@s1", "staging", topics={}, channels=_NoChannels(), by="bench")
    return {"snapshot": taken, "clone": store.requests}


class _NoChannels:
    """Kafka access for an app that has no repartition topics."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str, /) -> None:
        raise AssertionError(topic)

    def topic_id(self, topic: str, /) -> str:
        raise AssertionError(topic)

    def commit_positions(self, app: str, stage: str, positions: object, /) -> None:
        """Ignore the positions."""

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        raise AssertionError(topic)

    def copy(self, in_flight: object, topic: str, app: str, /) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        raise AssertionError(topic)
