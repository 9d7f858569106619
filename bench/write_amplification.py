"""Write amplification: all bytes written per byte that batches flush, beside the optimum of each compaction policy.

Measured: batches of random updates to a loaded table, written by `store.sst.writer`; after each,
`store.compaction.merge` merges what `store.compaction.picker` picks, until nothing is due. The figure is all bytes put
into the store over the bytes of the batches' own SSTs.

Computed: only from expected numbers of distinct keys. Of K keys, m random draws hit D(m) = K (1 - (1 - 1/K)^m) distinct
keys, so a run that results from m draws has D(m) rows, and merging writes that many. All rows are assumed to have the
same size.

*Universal* guarantees fewer than `l0_trigger` runs after each batch. One of them is the loaded table, which needs no
merge while the others are smaller. The fewest rows that a schedule of merges writes with at most k = `l0_trigger` - 2
other runs is "K-slot SSTable stack compaction" (Mathieu, Staelin, Young: arXiv:1407.3008), solved exactly by dynamic
programming over the times at which the oldest of these runs is written:

    h(t, k) = min over s < t of  h(s, k) + g(t - s - 1, k - 1) + D(t b)        all of t batches in one run at time t
    g(n, k) = min over t <= n of h(t, k) + g(n - t, k - 1),  0 when n <= k     n batches, at most k runs at any time

*Leveled* guarantees that level 1 stays within its size and that level 0 has fewer than `l0_trigger` runs. Every
`l0_trigger` batches, all of level 1 is rewritten; a slot of it has D rows of the draws since it was last merged into
level 2. While level 1 is too large, the fullest of its s slots is merged into level 2, which rewrites the overlapping
1/s of level 2, that is all of its K/s keys (O'Neil, Cheng, Gawlick, O'Neil: "The Log-Structured Merge-Tree", 1996,
section 3; RocksDB wiki, "Leveled Compaction").
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .support.row import Row

if TYPE_CHECKING:
    from slackwater.store.objects.protocol import ObjectStore
    from slackwater.store.read.cache import SstCache
    from slackwater.store.versions.manifest import Policy, Table
from slackwater.store.versions.entries.ssts import Sst

KEYS = 400_000
BATCH = 5_000
BATCHES = 200
PARTITIONS = 2
LIMIT = 1.2
LEVEL_1_ROWS = 40_000
LEVEL_1_SLOTS = 4


def rows(folder: Path, quick: bool) -> list[Row]:
    """Measure both policies. Takes less than a minute. `folder` is for the cache."""
    from slackwater.store.versions.manifest import Policy

    found = []
    base, row_bytes = _load(folder)
    universal = Policy()
    size = int(LEVEL_1_ROWS * row_bytes)
    leveled = Policy(
        "leveled", l0_trigger=4, level_base_bytes=size, fanout=20, target_file_bytes=size // LEVEL_1_SLOTS + 1
    )
    keys, draws = KEYS / PARTITIONS, BATCH / PARTITIONS
    optimum = {
        "universal": universal_optimum(keys, draws, BATCHES, universal.l0_trigger - 2),
        "leveled": leveled_optimum(keys, draws, BATCHES, leveled.l0_trigger, LEVEL_1_ROWS, LEVEL_1_SLOTS),
    }
    for policy in (universal, leveled):
        measured, least = _measure(base, policy), optimum[policy.kind]
        found.append(
            Row(
                f"write amplification, {policy.kind}, {BATCHES} batches of {BATCH:,} random updates to {KEYS:,} keys",
                f"{measured:.2f}",
                f"computed optimum: {least:.2f}",
                measured / least,
                f"<= {LIMIT}",
                measured / least <= LIMIT,
            )
        )
    return found


def universal_optimum(keys: float, draws: float, batches: int, runs: int) -> float:
    """Return rows written per flushed row by the best schedule of merges with at most `runs` runs besides the base.

    Args:
        keys: number of keys of a state partition.
        draws: number of random draws in a batch, with repetitions.
        batches: number of batches.
        runs: maximum number of runs after each batch.
    """
    merged = _distinct(keys, draws * np.arange(batches + 1))
    # least[n]: n batches with at most k runs. With no runs allowed, only zero batches are possible.
    least = np.where(np.arange(batches + 1) > 0, np.inf, 0.0)
    for k in range(1, runs + 1):
        ends = np.full(batches + 1, np.inf)
        ends[1] = 0.0
        for t in range(2, batches + 1):
            s = np.arange(1, t)
            ends[t] = (ends[s] + least[t - s - 1]).min() + merged[t]
        within = [0.0 if n <= k else (ends[1 : n + 1] + least[n - 1 :: -1][:n]).min() for n in range(batches + 1)]
        least = np.array(within)
    return 1 + float(least[batches]) / (batches * float(merged[1]))


def leveled_optimum(keys: float, draws: float, batches: int, trigger: int, level_1_rows: float, slots: int) -> float:
    """Return the rows written per flushed row with levels 1 and 2. Level 2 has all keys.

    Args:
        keys: number of keys of a state partition.
        draws: number of random draws in a batch, with repetitions.
        batches: number of batches.
        trigger: number of level-0 runs that are merged into level 1 together.
        level_1_rows: maximum number of rows in level 1.
        slots: number of equal parts in which level 1 is merged into level 2.
    """
    ages = np.zeros(slots)
    written = 0.0
    for _ in range(batches // trigger):
        ages += trigger * draws / slots
        written += _distinct(keys / slots, ages).sum()
        while _distinct(keys / slots, ages).sum() > level_1_rows:
            ages[np.argmax(ages)] = 0
            written += keys / slots
    return 1 + float(written) / (batches * float(_distinct(keys, draws)))


def _distinct(keys: float, draws: np.ndarray | float) -> np.ndarray:
    return keys * -np.expm1(np.asarray(draws) * np.log1p(-1 / keys))


@dataclass(frozen=True)
class _Base:
    """A table that is loaded before the batches."""

    store: ObjectStore
    cache: SstCache
    table: Table
    ssts: tuple[Sst, ...]


def _load(folder: Path) -> tuple[_Base, float]:
    """Write a table of all keys, with one run per state partition. Returns it, and the average bytes per row."""
    from slackwater.store.objects.memory import MemoryStore
    from slackwater.store.read.cache import SstCache
    from slackwater.store.versions.manifest import Column, Table

    table = Table((Column("k", "int64"),), (Column("n", "int64"), Column("x", "double")), PARTITIONS)
    # Bytes are counted, not seconds, so an in-memory store suffices.
    base = _Base(MemoryStore(), SstCache(folder / "cache", 1 << 30), table, ())
    # Level 2, like a result of leveled compaction.
    ssts = _write(base, np.arange(KEYS), 1, level=2)
    return _Base(base.store, base.cache, table, ssts), sum(sst.bytes for sst in ssts) / KEYS


def _measure(base: _Base, policy: Policy) -> float:
    from slackwater.store.compaction.merge import run_compaction
    from slackwater.store.compaction.picker import pick
    from slackwater.store.compaction.plan import apply_results

    random = np.random.default_rng(5)
    ssts, flushed, compacted = base.ssts, 0, 0
    loaded = {sst.object for sst in base.ssts}
    for seq in range(2, BATCHES + 2):
        new = _write(base, np.unique(random.integers(KEYS, size=BATCH)), seq, level=0)
        ssts = (*new, *ssts)
        flushed += sum(sst.bytes for sst in new)
        while due := pick(ssts, PARTITIONS, policy):
            done = [run_compaction(base.store, base.cache, "bench", "wa", base.table, one) for one in due]
            compacted += sum(one.output_bytes for one in done)
            ssts = apply_results(ssts, done)
            for one in {sst.object for each in done for sst in each.compaction.inputs} - {sst.object for sst in ssts}:
                if one not in loaded:
                    base.store.delete(one)
    return (flushed + compacted) / flushed


def _write(base: _Base, keys: np.ndarray, seq: int, *, level: int) -> tuple[Sst, ...]:
    """Write one SST per state partition, with random values."""
    from msgspec.structs import replace
    from slackwater.store.sst import writer as sst
    from slackwater.store.sst.hashing import hash_keys, partition_of

    random = np.random.default_rng(seq)
    columns = {"k": keys, "n": random.integers(1 << 40, size=len(keys)), "x": random.random(len(keys))}
    found = pa.table(columns)
    hashes = hash_keys(found, ["k"])
    found = found.append_column("_hash", pa.array(hashes))
    found = found.append_column("_seq", pa.array(np.full(len(keys), seq)))
    found = found.append_column("_op", pa.array(np.zeros(len(keys), np.int8)))
    of = partition_of(hashes, PARTITIONS)
    parts = ((p, found.filter(pa.array(of == p))) for p in range(PARTITIONS))
    return tuple(
        replace(
            sst.write_sst(base.store, base.cache, app="bench", stage="wa", table=base.table, partition=p, rows=part),
            level=level,
        )
        for p, part in parts
    )
