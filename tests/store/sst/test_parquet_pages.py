"""Selected pages of an SST have the rows that the whole SST has there, for any columns and page lengths."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.store.objects.counting import ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.decode import decode
from slackwater.store.read.fetch import fetch
from slackwater.store.read.multi_get import multi_get
from slackwater.store.read.remote_sst import PageSelection, RangedSst
from slackwater.store.sst import writer
from slackwater.store.sst.arrow_types import to_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.parquet_index import FileMetaData, decode_struct
from slackwater.store.versions.manifest import Column, Table

from tests.models.profiles import scaled

TEXT = st.text(max_size=5)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "int8": st.integers(-128, 127),
    "double": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.sampled_from(["same", "again", ""]) | TEXT,
    "binary": st.binary(max_size=300),
    "decimal128(20, 2)": st.integers(-(10**18), 10**18).map(lambda number: Decimal(number) / 100),
    "date32[day]": st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
    "list<string>": st.lists(st.none() | TEXT, max_size=4),
    "struct<a: int64, b: list<int64>>": st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9), "b": st.none() | st.lists(st.integers(0, 9), max_size=3)}
    ),
    "map<string, int64>": st.dictionaries(TEXT, st.none() | st.integers(0, 9), max_size=3).map(
        lambda one: [*one.items()]
    ),
}
KEYS = ["int64", "string", "binary", "date32[day]", "decimal128(20, 2)"]


@scaled(50, in_ci=500)
@given(st.data())
def test_pages_give_the_same_rows_as_the_whole(data: st.DataObject) -> None:
    key = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2), "key")
    values = data.draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=3), "values")
    table = Table(
        tuple(Column(f"k{at}", kind) for at, kind in enumerate(key)),
        tuple(Column(f"v{at}", kind) for at, kind in enumerate(values)),
        partitions=1,
    )
    kinds = [*key, *values]
    listed = data.draw(
        st.lists(
            st.tuples(*(st.none() | VALUES[kind] for kind in kinds)),
            min_size=1,
            max_size=60,
            unique_by=lambda row: tuple(map(repr, row[: len(key)])),
        ),
        "rows",
    )
    columns = [pa.array(column, to_arrow(kind)) for column, kind in zip(zip(*listed, strict=True), kinds, strict=True)]
    rows = pa.table(columns, names=[column.name for column in table.columns])
    names = [column.name for column in table.key]
    hashes = hash_keys(rows, names)
    num = rows.num_rows
    stored = rows.append_column("_hash", pa.array(hashes))
    stored = stored.append_column("_seq", pa.array(np.arange(1, num + 1)))
    stored = stored.append_column("_op", pa.array(np.zeros(num, np.int8)))
    store = MemoryStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_ROWS", data.draw(st.integers(1, 40), "rows of a row group"))
        patch.setattr(writer, "PAGE_ROWS", data.draw(st.integers(1, 20), "rows of a page"))
        sst = writer.write_sst(store, None, app="a", stage="s", table=table, partition=0, rows=stored)
    whole = pa.Table.from_batches(decode(fetch(store, sst), sst, table))

    opened = RangedSst(store, sst, table, ReadCounters())
    some = np.sort(np.array(data.draw(st.lists(st.sampled_from(hashes.tolist()), min_size=1, unique=True), "hashes")))
    passing, parts = opened.find_hashes(some)
    assert passing.all()
    found = pa.Table.from_batches([block.stored for block in opened.read(parts)])
    # Each row has a `_seq` of its own; several keys may have one hash.
    assert found == whole.filter(pc.is_in(whole["_seq"], found["_seq"]))
    assert np.isin(some, found["_hash"].to_numpy()).all()
    asked = data.draw(st.lists(st.sampled_from(whole.column_names), unique=True), "columns")
    of_those = pa.Table.from_batches([block.stored for block in opened.read(parts, asked)])
    assert of_those == found.select(of_those.column_names)
    assert set(of_those.column_names) == {"_hash", *asked}

    low, high = sorted(data.draw(st.tuples(st.integers(0, num + 1), st.integers(0, num + 1)), "range of _seq"))
    changed = [block.stored for block in opened.read(opened.find_values("_seq", low, high))]
    seqs = pa.Table.from_batches(changed, whole.schema)["_seq"].to_pylist()
    assert set(range(max(low, 1), min(high, num) + 1)) <= set(seqs)

    absent = pa.table([pa.array([None], column.type) for column in rows.select(names).columns], names=names)
    looked = pa.concat_tables([rows.select(names), absent])
    values, present = multi_get(store, None, (sst,), table, hash_keys(looked, names), looked)
    assert present[:num].all()
    assert values.slice(0, num) == rows.select([column.name for column in table.values])
    assert present[num] == any(all(value is None for value in row[: len(key)]) for row in listed)


def test_all_rows_of_a_row_group_are_read_without_its_index() -> None:
    store, table = MemoryStore(), Table((Column("k", "int64"),), (Column("v", "string"),), partitions=1)
    keys = pa.table({"k": np.arange(5_000)})
    rows = keys.append_column("v", keys["k"].cast(pa.string())).append_column("_hash", pa.array(hash_keys(keys, ["k"])))
    rows = rows.append_column("_seq", pa.array(np.ones(5_000, np.int64)))
    rows = rows.append_column("_op", pa.array(np.zeros(5_000, np.int8)))
    sst = writer.write_sst(store, None, app="a", stage="s", table=table, partition=0, rows=rows)
    reads = ReadCounters()
    (block,) = RangedSst(store, sst, table, reads).read([PageSelection(0, None)])
    assert pa.Table.from_batches([block.stored]) == writer.prepare_rows(rows, table)
    assert reads.requests == 2


def test_bytes_that_are_no_parquet_metadata_are_refused() -> None:
    with pytest.raises(ValueError, match="expected Parquet's FileMetaData in 3 bytes"):
        decode_struct(FileMetaData, b"\x19\xfc\xff")
