"""The pages of all columns begin at the same rows, whatever the values and the chunks that are written."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from slackwater.store.objects.counting import ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.multi_get import multi_get
from slackwater.store.read.remote_sst import PageSelection, RangedSst
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.schema import sst_schema
from slackwater.store.sst.writer import SstWriter
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

RANDOM = np.random.default_rng(3)
LISTS = [[f"{number}-{RANDOM.bytes(16).hex()}" for _ in range(5)] for number in range(4_400)]
SOME = [RANDOM.bytes(25).hex() for _ in range(1_500)]
TEXTS = [SOME[at] for at in RANDOM.integers(0, len(SOME), 40_000).tolist()]
NUMBERS = [[number] * 3 for number in range(6_000)]
CASES = {
    "lists whose dictionary overflows": ("array<string>", LISTS, 4_400),
    "texts in two chunks": ("string", TEXTS, 8_300),
    "lists of numbers": ("array<int64>", NUMBERS, 6_000),
}


def written(kind: str, values: list[object], piece: int) -> tuple[MemoryStore, Sst, Table, pa.Table]:
    """Write an SST of these values, ordered by their hashes. Its first chunk has this many rows."""
    table = Table((Column("k", "int64"),), (Column("v", kind),), partitions=1)
    keys = pa.table({"k": np.arange(len(values))})
    hashes = hash_keys(keys, ["k"])
    order = np.argsort(hashes)
    rows = pa.table(
        {
            "_hash": hashes[order],
            "k": keys["k"].to_numpy()[order],
            "v": pa.array([values[at] for at in order]),
            "_seq": np.arange(len(values))[order] + 1,
            "_op": np.zeros(len(values), np.int8),
            "_prev_seq": np.zeros(len(values), np.int64),
        }
    )
    schema = sst_schema(table)
    rows = rows.select([name for name in schema.names if name in rows.column_names]).cast(schema)
    writer, store = SstWriter(table), MemoryStore()
    writer.append(pa.concat_tables([rows.slice(0, piece), rows.slice(piece)]))
    sst, data = writer.finish(app="a", stage="s", partition=0, level=1)
    store.put(sst.object, data)
    return store, sst, table, rows


@pytest.mark.parametrize("name", CASES)
def test_each_key_is_read_with_its_own_values(name: str) -> None:
    kind, values, piece = CASES[name]
    store, sst, table, _ = written(kind, list(values), piece)
    # One by one: for many keys, whole row groups are read.
    for key in np.random.default_rng(7).choice(len(values), 40, replace=False).tolist():
        keys = pa.table({"k": [key]})
        reads = ReadCounters()
        found, _ = multi_get(store, None, (sst,), table, hash_keys(keys, ["k"]), keys, reads)
        assert found["v"].to_pylist() == [values[key]]
        assert reads.bytes < sst.bytes / 2


@pytest.mark.parametrize("name", CASES)
def test_a_row_group_is_read_completely(name: str, tmp_path: Path) -> None:
    kind, values, piece = CASES[name]
    store, sst, table, rows = written(kind, list(values), piece)
    ranged = RangedSst(store, sst, table, ReadCounters())
    (group, *_) = ranged.find_values("_hash", -(1 << 63), (1 << 63) - 1)
    blocks = list(ranged.read([PageSelection(group.group, None)]))
    read = pa.concat_tables(pa.Table.from_batches([block.stored]) for block in blocks)
    assert read["v"].to_pylist() == rows["v"].slice(0, read.num_rows).to_pylist()
