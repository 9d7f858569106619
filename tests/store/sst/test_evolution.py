from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.state.fits import evolve
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst import schema
from slackwater.store.sst.schema import (
    HASH,
    INTERNAL_FIELD_IDS,
    OP,
    PREV,
    SEQ,
    can_widen,
    column_conversion,
    sst_schema,
)
from slackwater.store.versions.manifest import Column, Table

from tests.models.evolving import Evolving
from tests.models.profiles import scaled
from tests.support.state_rows import write_version


@scaled(8, in_ci=500)
@given(st.data(), st.sampled_from([1, 2]), st.booleans(), st.booleans())
def test_every_version_reads_as_the_dictionary_with_the_columns_of_its_time(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, partitions: int, cached: bool, expires: bool
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    table = Evolving(MemoryStore(), SstCache(folder, 1 << 40), partitions, expires)
    for _ in range(data.draw(st.integers(2, 6))):
        table.step(data.draw)
        if not cached:
            table.cache.close()
            table.cache = SstCache(tmp_path_factory.mktemp("other"), 1 << 40)
    table.check()


def test_ssts_carry_the_ids_of_their_columns_also_in_the_cache(tmp_path: Path) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path / "cache", 1 << 40)
    before = Table((Column("k", "int64"),), (Column("a", "int32"), Column("b", "string")), 1)
    after, _ = evolve("t", before, replace(before, values=(Column("b", "string"), Column("a", "string"))[:1]), {})
    again, _ = evolve("t", after, replace(after, values=(Column("b", "string"), Column("a", "string"))), {})
    assert again.column_ids == (1, 3, 4)
    (sst,) = write_version(store, cache, again, {(1,): ("b", "a")}, 2)
    numbers = [schema.field_id(each) for each in pq.read_schema(pa.BufferReader(store.get(sst.object)))]
    assert numbers == [
        INTERNAL_FIELD_IDS[HASH],
        1,
        3,
        4,
        INTERNAL_FIELD_IDS[SEQ],
        INTERNAL_FIELD_IDS[OP],
        INTERNAL_FIELD_IDS[PREV],
    ]
    mapped = cache.open(store, sst, again)
    assert [schema.field_id(each) for each in mapped.stored.schema] == numbers
    # Under the columns of before, the first `a` is not there: it is another one than the last.
    with pytest.raises(Corruption, match="expected columns"):
        cache.open(store, sst, before)


def test_a_table_that_was_never_migrated_is_read_without_conversion() -> None:
    table = Table((Column("k", "int64"),), (Column("a", "int32"),), 1)
    assert column_conversion(sst_schema(table), table) is None
    migrated, _ = evolve("t", table, replace(table, values=(Column("a", "int64"),)), {})
    assert column_conversion(sst_schema(migrated), migrated) is None
    how = column_conversion(sst_schema(table), migrated)
    assert how is not None
    assert how is column_conversion(sst_schema(table), migrated)


@pytest.mark.parametrize(
    ("was", "kind", "does"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int64(), pa.float64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.decimal128(5, 2), pa.decimal128(7, 4), True),
        (pa.decimal128(5, 2), pa.decimal128(7, 5), False),
        (pa.decimal128(5, 2), pa.decimal128(5, 1), False),
        (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.string()), ("x", pa.int16())]), True),
        (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.string())]), False),
        (pa.map_(pa.int32(), pa.int8()), pa.map_(pa.int64(), pa.int8()), False),
        (pa.map_(pa.int32(), pa.int8()), pa.map_(pa.int32(), pa.int16()), True),
        (pa.string(), pa.binary(), False),
    ],
)
def test_a_type_is_widened_only_to_one_that_holds_all_its_values(
    was: pa.DataType, kind: pa.DataType, does: bool
) -> None:
    assert can_widen(was, kind) is does
