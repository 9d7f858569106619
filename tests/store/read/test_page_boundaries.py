"""Pages of all columns begin with the same rows, whatever the values are and however they come to be written."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.multi_get import point_get
from slackwater.store.read.read_stats import Reads
from slackwater.store.read.remote_sst import Part, RangedSst
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.types import sst_schema
from slackwater.store.sst.writer import SstWriter
from slackwater.store.versions.manifest import Column, Sst, Table

LISTS = [[f"{number}-{at}" for at in range(5)] for number in range(6_000)]
TEXTS = [f"a text of some fifty letters, and its number: {number % 3_000:06}" for number in range(20_000)]
NUMBERS = [[number] * 3 for number in range(6_000)]
CASES = {
    "lists whose dictionary overflows": ("array<string>", LISTS, 6_000),
    "texts in many pieces": ("string", TEXTS, 1_700),
    "lists of numbers": ("array<int64>", NUMBERS, 6_000),
}


def written(kind: str, values: list[object], piece: int) -> tuple[MemoryStore, Sst, Table, pa.Table]:
    """An SST of these values, by hash, appended in pieces of several chunks each."""
    table = Table((Column("k", "int64"),), (Column("v", kind),), partitions=1, state="test")
    keys = pa.table({"k": np.arange(len(values))})
    hashes = hash_keys(keys, ["k"])
    order = np.argsort(hashes)
    rows = pa.table(
        {
            "_hash": hashes[order],
            "k": keys["k"].to_numpy()[order],
            "v": pa.array([values[at] for at in order]),
            "_seq": np.arange(len(values))[order] + 1,
            "_op": np.zeros(len(values), np.uint8),
            "_prev_seq": np.zeros(len(values), np.int64),
        }
    )
    schema = sst_schema(table)
    rows = rows.select([name for name in schema.names if name in rows.column_names]).cast(schema)
    writer, store = SstWriter(table), MemoryStore()
    for at in range(0, rows.num_rows, piece):
        some = rows.slice(at, piece)
        writer.append(pa.concat_tables([some.slice(0, 700), some.slice(700)]))
    sst, data = writer.finish(app="a", stage="s", partition=0, level=1)
    store.put(sst.object, data)
    return store, sst, table, rows


@pytest.mark.parametrize("name", CASES)
def test_each_key_has_its_own_values(name: str) -> None:
    kind, values, piece = CASES[name]
    store, sst, table, _ = written(kind, list(values), piece)
    keys = pa.table({"k": np.random.default_rng(7).choice(len(values), 40, replace=False)})
    found = point_get(store, (sst,), table, hash_keys(keys, ["k"]), keys)
    assert found.present.all()
    assert found.values["v"].to_pylist() == [values[key] for key in keys["k"].to_pylist()]


@pytest.mark.parametrize("name", CASES)
def test_a_row_group_is_read_whole(name: str, tmp_path: Path) -> None:
    kind, values, piece = CASES[name]
    store, sst, table, rows = written(kind, list(values), piece)
    ranged = RangedSst(store, sst, table, Reads())
    (group, *_) = ranged.within(-(1 << 63), (1 << 63) - 1)
    blocks = list(ranged.read([Part(group.group, None)]))
    read = pa.concat_tables(pa.Table.from_batches([block.stored]) for block in blocks)
    assert read["v"].to_pylist() == rows["v"].slice(0, read.num_rows).to_pylist()
