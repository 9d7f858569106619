"""The search for due rows reads in proportion to their number, and finds only visible rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from slackwater.store.objects.counting import ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import DueRows, TableLookUps
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.schema import DUE
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

TABLE = Table((Column("key", "int64"),), (Column("n", "int64"), Column(DUE, "int64")), 1)
_OWN = ("_hash", "_seq", "_op")
EVERY = (-(1 << 63), (1 << 63) - 1)
ROWS = 5 * 16_384


def write(
    store: MemoryStore,
    keys: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    due: list[int | None],
    seq: int,
    table: Table = TABLE,
) -> Sst:
    rows = pa.table({"key": keys, "n": keys * 2, DUE: pa.array(due, pa.int64())})
    hashes = hash_keys(rows, ["key"])
    op = np.zeros(len(keys), np.int8)
    rows = rows.append_column("_hash", pa.array(hashes)).append_column("_seq", pa.array(np.full(len(keys), seq)))
    rows = rows.append_column("_op", pa.array(op)).select(["key", *(each.name for each in table.values), *_OWN])
    return writer.write_sst(store, None, app="a", stage="s", table=table, partition=0, rows=rows)


def keys_by_hash() -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    keys = np.arange(ROWS)
    return keys[np.argsort(hash_keys(pa.table({"key": keys}), ["key"]))]


def due_rows(
    store: MemoryStore,
    cache: SstCache,
    ssts: tuple[Sst, ...],
    table: Table,
    *,
    span: tuple[int, int],
    hashes: tuple[int, int],
    clock_ms: int,
    reads: ReadCounters,
) -> DueRows:
    return TableLookUps(store, cache, table, ssts, clock_ms, reads).get_due_rows(span, hashes)


@pytest.mark.parametrize("warm", [False, True])
def test_only_current_due_rows_are_found_and_the_next_due_time(tmp_path: Path, *, warm: bool) -> None:
    store, keys = MemoryStore(), keys_by_hash()
    # By their hashes they fall due one after the other, so most row groups have none of a short span.
    old = write(store, keys, list(range(ROWS)), 1)
    touched = keys[100:120]
    new = write(store, touched, [None] * 10 + [70_000] * 10, 2)
    cache, reads = SstCache(tmp_path / "cache", 1 << 30 if warm else 0), ReadCounters()
    if warm:
        cache.open(store, old, TABLE)
    found = due_rows(store, cache, (old, new), TABLE, span=(95, 129), hashes=EVERY, clock_ms=0, reads=reads)
    assert sorted(found.keys["key"].to_pylist()) == sorted([*keys[95:100].tolist(), *keys[120:130].tolist()])
    assert found.values["n"].to_pylist() == [key * 2 for key in found.keys["key"].to_pylist()]
    assert set(found.seqs.tolist()) == {1}
    assert found.next_ms == 130
    if not warm:
        assert reads.row_groups <= 2, "one for the times, and the same once more for the rows"
        assert reads.bytes < old.bytes
    none = due_rows(
        store, cache, (old, new), TABLE, span=(ROWS, EVERY[1]), hashes=EVERY, clock_ms=0, reads=ReadCounters()
    )
    assert (none.keys.num_rows, none.next_ms) == (0, None)


def test_an_sst_from_before_the_table_had_due_times_is_not_read(tmp_path: Path) -> None:
    store, keys = MemoryStore(), keys_by_hash()
    now = replace(TABLE, values=tuple(replace(each, id=2 + at) for at, each in enumerate(TABLE.values)), schema=1)
    now = replace(now, key=(replace(TABLE.key[0], id=1),), next_id=4)
    old = write(store, keys, [None] * ROWS, 1, replace(TABLE, values=TABLE.values[:1]))
    none = write(store, keys[:100], [None] * 100, 2, now)
    for cache in (SstCache(tmp_path / "none", 0), SstCache(tmp_path / "cache", 1 << 30)):
        found = due_rows(
            store, cache, (old,), now, span=(0, 99), hashes=EVERY, clock_ms=0, reads=(reads := ReadCounters())
        )
        assert (found.keys.num_rows, found.next_ms, reads.row_groups) == (0, None, 0)
        cache.open(store, old, now)
        found = due_rows(store, cache, (old, none), now, span=(0, 99), hashes=EVERY, clock_ms=0, reads=ReadCounters())
        assert (found.keys.num_rows, found.next_ms) == (0, None)


def test_without_due_times_there_is_no_next_one(tmp_path: Path) -> None:
    store = MemoryStore()
    sst = write(store, keys_by_hash(), [None] * ROWS, 1)
    cache = SstCache(tmp_path / "cache", 0)
    found = due_rows(store, cache, (sst,), TABLE, span=(0, 99), hashes=EVERY, clock_ms=0, reads=ReadCounters())
    assert (found.keys.num_rows, found.next_ms) == (0, None)


def test_only_rows_of_the_given_hash_range_are_found(tmp_path: Path) -> None:
    store, keys = MemoryStore(), np.arange(100)
    sst = write(store, keys, [5] * 100, 1)
    cache = SstCache(tmp_path / "cache", 1 << 30)
    halves = [
        due_rows(store, cache, (sst,), TABLE, span=(0, 9), hashes=hashes, clock_ms=0, reads=ReadCounters())
        for hashes in ((EVERY[0], -1), (0, EVERY[1]))
    ]
    found = [key for half in halves for key in half.keys["key"].to_pylist()]
    assert sorted(found) == keys.tolist()
    assert all(half.keys.num_rows for half in halves)


@pytest.mark.parametrize("warm", [False, True])
def test_later_rows_of_a_row_group_with_due_rows_give_the_next_due_time(tmp_path: Path, *, warm: bool) -> None:
    store, keys = MemoryStore(), keys_by_hash()
    sst = write(store, keys, [10] * 4_352 + [1_000] * (ROWS - 4_352), 1)
    cache = SstCache(tmp_path / "cache", 1 << 30 if warm else 0)
    if warm:
        cache.open(store, sst, TABLE)
    found = due_rows(store, cache, (sst,), TABLE, span=(0, 50), hashes=EVERY, clock_ms=0, reads=ReadCounters())
    assert (found.keys.num_rows, found.next_ms) == (4_352, 1_000)
