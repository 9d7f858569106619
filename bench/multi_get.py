"""Look-ups of 100,000 random keys of 10 M, beside RocksDB and SlateDB, with the same keys, values and machine.

`python -m bench.multi_get [FOLDER] [--quick]` prints its rows alone; `--quick` uses 1 M keys.

Each store returns the value of every key of a batch, through its own API; the stores alternate. slackwater gets the key
column, hashes it (in an app, Spark has done that), and returns the value columns. RocksDB and SlateDB get a list of
bytes and return a list of bytes; their time includes neither making the keys nor decoding the values.

Each peer has one compacted sorted run, with Bloom filters and everything in its block cache. Our table is like that of
a running app: 4 state partitions in the cache folder, each with a base run and 8 level-0 runs on top. All of them use
one thread, since a Spark task has one core.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from slackwater.store.objects.counting import ReadCounters
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst import sorted_runs
from slackwater.store.sst.hashing import hash_keys, partition_of
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

from .support.row import Row
from .support.written import ssts

KEYS = 10_000_000
QUICK_KEYS = 1_000_000
ASKED = 100_000
FEW = 100
LIMITS = {FEW: 6_000_000, 1: 100_000}
"""Maximum number of bytes that a look-up of this many keys may read with an empty cache."""
TRIES = 20
TABLE = Table((Column("leg", "string"),), (Column("flights", "int64"), Column("delay", "double")), partitions=4)
RUNS_L0 = 8
L0_ROWS = 70_000
ROUNDS = 9
_PUT_ROWS = 100_000
_VALUE = struct.Struct("<qd")


def rows(folder: Path, quick: bool) -> list[Row]:
    """Build the three stores in the folder, and measure. Takes about two minutes at full scale.

    Args:
        folder: an empty folder on a disk with 3 GB.
        quick: 1 M keys instead of 10 M.
    """
    num_keys = QUICK_KEYS if quick else KEYS
    ours = Keyed.build(folder / "slackwater", num_keys)
    peers = {"rocksdict (RocksDB) multi_get": _rocksdb, "slatedb, Python binding": _slatedb}
    found = []
    for name, build in peers.items():
        theirs, close = build(folder / name.split()[0].strip(","), num_keys)
        try:
            mine_s, theirs_s = _in_turns(ours, theirs, num_keys)
        finally:
            close()
        ratio = theirs_s / mine_s
        what = f"multi-get of {ASKED:,} random keys of {num_keys:,}, warm, one thread"
        found.append(
            Row(what, f"{mine_s * 1000:.0f} ms", f"{name}: {theirs_s * 1000:.0f} ms", ratio, ">= 5", ratio >= 5)
        )
    return [*found, _cold(ours, num_keys, ASKED), _few(ours, num_keys, FEW), _few(ours, num_keys, 1)]


@dataclass
class Keyed:
    """A table in a local store, with a cache."""

    folder: Path
    store: ObjectStore
    cache: SstCache
    ssts: tuple[Sst, ...] = ()

    @staticmethod
    def build(folder: Path, num_keys: int) -> Keyed:
        """Write the whole table, and warm its cache."""
        made = Keyed(folder, open_store(str(folder / "store")), SstCache(folder / "cache", 1 << 40))
        made.ssts = made._write(np.arange(num_keys), 1, level=1)
        random = np.random.default_rng(8)
        for seq in range(2, 2 + RUNS_L0):
            numbers = random.choice(num_keys, min(L0_ROWS, num_keys // 10), replace=False)
            made.ssts += made._write(numbers, seq, level=0)
        return made

    def _write(self, numbers: npt.NDArray[np.int64], seq: int, level: int) -> tuple[Sst, ...]:
        rows = pa.table({"leg": _names(numbers), "flights": numbers + seq, "delay": numbers / 4})
        return ssts(self.store, self.cache, "bench", "legs", TABLE, rows, seq, level)

    def look_up(self, keys: pa.Table, reads: ReadCounters | None = None) -> int:
        """Look up keys as tasks do, one state partition after the other. Returns the number of keys that exist."""
        hashes = hash_keys(keys, ["leg"])
        partitions = partition_of(hashes, TABLE.partitions)
        found = 0
        for partition in range(TABLE.partitions):
            mine = np.flatnonzero(partitions == partition)
            ssts = sorted_runs.ssts_of_partition(self.ssts, partition, TABLE.partitions)
            asked = keys.take(pa.array(mine))
            values, present = multi_get(self.store, self.cache, ssts, TABLE, hashes[mine], asked, reads)
            assert values.num_rows == len(mine)
            found += int(present.sum())
        return found


def _names(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return keys such as "leg-00001234"."""
    digits = numbers[:, np.newaxis] // 10 ** np.arange(7, -1, -1) % 10 + ord("0")
    text = np.empty((len(numbers), 12), np.uint8)
    text[:, :4] = np.frombuffer(b"leg-", np.uint8)
    text[:, 4:] = digits
    offsets = np.arange(0, 12 * len(numbers) + 1, 12, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def _in_turns(ours: Keyed, theirs: Callable[[list[bytes]], int], num_keys: int) -> tuple[float, float]:
    """Look up each batch of keys on both sides. Returns the median seconds of each after three warm-up rounds."""
    seconds: tuple[list[float], list[float]] = ([], [])
    random = np.random.default_rng(9)
    for _ in range(3 + ROUNDS):
        names = _names(random.integers(num_keys, size=ASKED))
        table, listed = pa.table({"leg": names}), names.cast(pa.binary()).to_pylist()
        for side, look_up in ((0, lambda: ours.look_up(table)), (1, lambda: theirs(listed))):  # noqa: B023
            started = time.perf_counter()
            found = look_up()
            seconds[side].append(time.perf_counter() - started)
            assert found == ASKED, (side, found)
    return median(seconds[0][3:]), median(seconds[1][3:])


def _cold(ours: Keyed, num_keys: int, number: int) -> Row:
    """Compare the bytes that a look-up with an empty cache reads with the size of the row groups that have its keys."""
    ((seconds, reads),) = _cold_tries(ours, num_keys, number, 1)
    ratio = reads.bytes / reads.touched_bytes
    return Row(
        f"multi-get of {number:,} random keys of {num_keys:,}, cold: bytes read ({seconds * 1000:.0f} ms, "
        f"{reads.requests} requests)",
        f"{reads.bytes / 1e6:.1f} MB",
        f"row groups touched: {reads.touched_bytes / 1e6:.1f} MB",
        ratio,
        "<= 1.2",
        ratio <= 1.2,
    )


def _few(ours: Keyed, num_keys: int, number: int) -> Row:
    """Measure the bytes that a first look-up of a few keys reads, as the median of several tries."""
    tries = _cold_tries(ours, num_keys, number, TRIES if number == 1 else 5)
    size = median(reads.bytes for _, reads in tries)
    most = max(reads.bytes for _, reads in tries)
    waits = sorted(reads.round_trips for _, reads in tries)
    return Row(
        f"multi-get of {number} random key{'s' if number > 1 else ''} of {num_keys:,}, cold: bytes read "
        f"({median(seconds for seconds, _ in tries) * 1000:.0f} ms, {median(reads.requests for _, reads in tries):.0f} "
        f"requests, {median(waits):.0f} round trips; at most {most / 1000:,.0f} kB, {waits[-1]} round trips)",
        f"{size / 1000:,.0f} kB",
        f"limit: {LIMITS[number] / 1000:,.0f} kB",
        size / LIMITS[number],
        "<= 1",
        size <= LIMITS[number],
    )


def _cold_tries(ours: Keyed, num_keys: int, number: int, tries: int) -> list[tuple[float, ReadCounters]]:
    # A separate process for each look-up, because this process caches footers.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        asked = [fresh.submit(_look_up_cold, ours.folder, ours.ssts, num_keys, number, 10 + at) for at in range(tries)]
        return [one.result() for one in asked]


def _look_up_cold(
    folder: Path, ssts: tuple[Sst, ...], num_keys: int, number: int, seed: int
) -> tuple[float, ReadCounters]:
    """Look up random keys with an empty cache. Returns the seconds and the reads."""
    keys = pa.table({"leg": _names(np.random.default_rng(seed).integers(num_keys, size=number))})
    reads = ReadCounters()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        table = Keyed(folder, open_store(str(folder / "store")), SstCache(Path(name), 1 << 40), ssts)
        started = time.perf_counter()
        found = table.look_up(keys, reads)
        seconds = time.perf_counter() - started
    assert found == number
    return seconds, reads


def _batches(num_keys: int) -> Sequence[npt.NDArray[np.int64]]:
    return [np.arange(at, min(at + _PUT_ROWS, num_keys)) for at in range(0, num_keys, _PUT_ROWS)]


def _rocksdb(folder: Path, num_keys: int) -> tuple[Callable[[list[bytes]], int], Callable[[], None]]:
    """Build a RocksDB table with the settings that RocksDB recommends for point look-ups.

    The settings are Bloom filters, a hash index in data blocks, and a cache that holds all blocks.
    """
    import rocksdict

    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(2 << 30))
    table.set_bloom_filter(10, False)
    table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.increase_parallelism(2)
    options.prepare_for_bulk_load()
    db = rocksdict.Rdict(str(folder), options)
    for numbers in _batches(num_keys):
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, number in zip(_names(numbers).cast(pa.binary()).to_pylist(), numbers.tolist(), strict=True):
            batch.put(key, _VALUE.pack(number, number / 4))
        db.write(batch)
    db.flush()
    db.compact_range(None, None)

    def look_up(keys: list[bytes]) -> int:
        return sum(value is not None for value in db.get(keys))

    return look_up, db.close


def _slatedb(folder: Path, num_keys: int) -> tuple[Callable[[list[bytes]], int], Callable[[], None]]:
    """Build a SlateDB table on a local object store: default filters, all blocks in its cache, one get per key."""
    from slatedb import uniffi as slatedb

    loop = asyncio.new_event_loop()

    async def build() -> slatedb.Db:
        # The store is the whole disk, and the database's path lies in it.
        builder = slatedb.DbBuilder(str(folder).lstrip("/"), slatedb.ObjectStore.resolve("file:///"))
        cache = slatedb.DbCache.new_foyer_cache(slatedb.FoyerCacheOptions(max_capacity=2 << 30, shards=8))
        builder.with_db_cache(cache, 1)
        db = await builder.build()
        for numbers in _batches(num_keys):
            batch = slatedb.WriteBatch()
            for key, number in zip(_names(numbers).cast(pa.binary()).to_pylist(), numbers.tolist(), strict=True):
                batch.put(key, _VALUE.pack(number, number / 4))
            await db.write(batch)
        await db.flush()
        return db

    db = loop.run_until_complete(build())

    async def ask(keys: list[bytes]) -> int:
        found = await asyncio.gather(*[db.get(key) for key in keys])
        return sum(value is not None for value in found)

    def close() -> None:
        loop.run_until_complete(db.shutdown())
        loop.close()

    return lambda keys: loop.run_until_complete(ask(keys)), close


if __name__ == "__main__":
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=named[0] if named else None) as work:
        for row in rows(Path(work), "--quick" in sys.argv):
            print(row)
