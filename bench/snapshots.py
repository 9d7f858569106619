"""What a snapshot and a clone cost in store requests, whatever the size of the state."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from .support.events import PARTITIONS
from .support.row import Row


def rows(folder: Path, quick: bool) -> list[Row]:
    """Store requests of a snapshot and of a clone, at 10,000 and at 5,000,000 keys."""
    small, large = requests(folder, 10_000), requests(folder, 5_000_000)
    return [
        Row(
            f"store requests of a {verb}, 5,000,000 keys",
            str(large[verb]),
            f"10,000 keys: {small[verb]}",
            large[verb] / small[verb],
            "= 1",
            large[verb] == small[verb],
        )
        for verb in ("snapshot", "clone")
    ]


def requests(folder: Path, num_keys: int) -> dict[str, int]:
    """Store requests of a pinned snapshot and of a clone of an app whose table has so many keys."""
    from slackwater.keep.clone.clone import clone
    from slackwater.moments.cut.resolve import resolve
    from slackwater.moments.take import snapshots
    from slackwater.store.objects.counting import CountingStore
    from slackwater.store.objects.open import open_store
    from slackwater.store.sst import writer
    from slackwater.store.sst.hashing import hash_keys, partition_of
    from slackwater.store.versions import apps, commit
    from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table

    store = CountingStore(open_store(str(folder / f"requests-{num_keys}")))
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
        runs.append(writer.write(store, None, app="bench", stage="legs", table=table, partition=partition, rows=rows))
    commit.commit(store, Manifest("bench", "legs", 1, 1, "w", 1, "batch", table=table, ssts=tuple(runs)))
    store.reset()
    cut = resolve(store, "bench", now_ms=time.time_ns() // 1_000_000)
    snapshots.pin(store, cut, "s1", "instant", by="bench")
    taken = store.requests
    store.reset()
    clone(store, "bench@s1", "staging", topics={}, channels=_NoChannels(), by="bench")
    return {"snapshot": taken, "clone": store.requests}


class _NoChannels:
    """The app of this measurement has none."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], /) -> None:
        raise AssertionError(topic)

    def announce(self, app: str, stage: str, positions: object, /) -> None:
        """Nobody looks."""

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        raise AssertionError(topic)

    def copy(self, in_flight: object, topic: str, app: str, /) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        raise AssertionError(topic)
