import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.snapshot.verify.sst import reread_sst
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.read_stats import Reads
from slackwater.store.read.remote_sst import RangedSst
from slackwater.store.sst import writer
from slackwater.store.sst.bloom import Filter
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, Sst, Table

KEYED = Table((Column("k", "int64"),), (Column("v", "double"),), partitions=1, state="test")
INT64 = np.iinfo(np.int64)


def put(store: CountingStore, hashes: np.ndarray) -> Sst:
    """An SST of these hashes, whatever their keys."""
    rows = pa.table(
        {
            "_hash": pa.array(hashes, pa.int64()),
            "k": np.arange(len(hashes)),
            "v": np.zeros(len(hashes)),
            "_seq": np.ones(len(hashes), np.int64),
            "_op": np.zeros(len(hashes), np.uint8),
        }
    )
    return writer.write(store, None, app="a", stage="s", table=KEYED, partition=0, rows=rows)


def filters_of(data: bytes) -> list[Filter]:
    """All filters of a Parquet file, found as any reader finds them."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    places = [metadata.row_group(i).column(0) for i in range(metadata.num_row_groups)]
    return [
        Filter.decode(data[place.bloom_filter_offset : place.bloom_filter_offset + place.bloom_filter_length])
        for place in places
    ]


def random_hashes(seed: int, num: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(INT64.min, INT64.max, num, endpoint=True)


@given(st.lists(st.integers(INT64.min, INT64.max), min_size=1, max_size=200, unique=True))
def test_what_is_there_always_passes(hashes: list[int]) -> None:
    store = CountingStore(MemoryStore())
    written = put(store, np.array(hashes))
    (found,) = filters_of(store.get(written.object))
    assert found.may_have(np.array(hashes)).all()


@pytest.mark.parametrize(("num", "at_most"), [(1_000, 0.04), (writer.ROW_GROUP_ROWS, 0.04), (40_000, 0.04)])
def test_of_what_is_not_there_few_pass_for_a_byte_a_row(num: int, at_most: float) -> None:
    store = CountingStore(MemoryStore())
    written = put(store, random_hashes(1, num))
    others = random_hashes(2, 50_000)
    for one in filters_of(store.get(written.object)):
        assert one.may_have(others).mean() < at_most
    assert written.filter_bytes < 2.2 * num


def test_filters_lie_between_the_rows_and_the_footer_and_others_read_the_file() -> None:
    store = CountingStore(MemoryStore())
    hashes = random_hashes(3, 2 * writer.ROW_GROUP_ROWS + 7)
    written = put(store, hashes)
    data = store.get(written.object)
    metadata = pq.read_metadata(pa.BufferReader(data))
    last = metadata.row_group(2).column(metadata.num_columns - 1)
    rows_end = (last.dictionary_page_offset or last.data_page_offset) + last.total_compressed_size
    assert rows_end + written.filter_bytes + written.footer_bytes == written.bytes
    read = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    assert read["_hash"].to_pylist() == sorted(hashes.tolist())


def test_duckdb_asks_the_filters_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = CountingStore(MemoryStore())
    hashes = np.sort(random_hashes(4, 1_000))
    written = put(store, hashes)
    path = tmp_path_factory.mktemp("duckdb") / "one.parquet"
    path.write_bytes(store.get(written.object))
    absent = int(hashes[500]) + 1
    with duckdb.connect() as con:
        for value, excluded in ((int(hashes[500]), False), (absent, True)):
            probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{path}', '_hash', {value})"
            assert con.execute(probe).fetchall() == [(excluded,)]
            assert len(con.execute(f"FROM '{path}' WHERE _hash = {value}").fetchall()) == (not excluded)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x15\xff\xff\xff\xff\xff\xff",
        b"\x15\x40" + b"\x1c\x1c\x00\x00" * 3 + b"\x00" + bytes(31),
        b"\x15\x40" + b"\x1c\x2c\x00\x00" * 3 + b"\x00" + bytes(32),
        b"\x15\x00" + b"\x1c\x1c\x00\x00" * 3 + b"\x00",
    ],
)
def test_another_kind_of_filter_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="split-block Bloom filter"):
        Filter.decode(data)


def test_a_small_ssts_filters_come_with_its_footer() -> None:
    store = CountingStore(MemoryStore())
    written = put(store, random_hashes(5, 50_000))
    reads = Reads()
    opened = RangedSst(store, written, KEYED, reads)
    opened.passing(np.sort(random_hashes(6, 100)))
    assert (reads.requests, reads.bytes) == (1, written.footer_bytes + written.filter_bytes)
    assert reads.filtered > 80


def test_of_a_large_sst_only_the_filters_of_touched_row_groups_are_read() -> None:
    store = CountingStore(MemoryStore())
    hashes = np.sort(random_hashes(7, 12 * writer.ROW_GROUP_ROWS))
    written = put(store, hashes)
    reads = Reads()
    opened = RangedSst(store, written, KEYED, reads)
    assert (reads.requests, reads.bytes) == (1, written.footer_bytes)
    asked = hashes[[10, 20, 9 * writer.ROW_GROUP_ROWS]]
    assert opened.passing(asked).all()
    assert (reads.requests, reads.filtered) == (3, 0)
    assert reads.bytes < written.footer_bytes + 2 * 17_000
    # Kept for the next look-up.
    RangedSst(store, written, KEYED, reads).passing(asked)
    assert reads.requests == 3


@pytest.mark.parametrize("rows", [500, 12 * writer.ROW_GROUP_ROWS])
def test_a_damaged_filter_is_an_error_and_never_an_absent_key(rows: int) -> None:
    store = CountingStore(MemoryStore())
    hashes = np.sort(random_hashes(8, rows))
    written = put(store, hashes)
    data = bytearray(store.get(written.object))
    at = written.bytes - written.footer_bytes - written.filter_bytes
    # The first filter loses all its bits.
    data[at + 20 : at + 500] = bytes(480)
    store.put(written.object, bytes(data))
    with pytest.raises(Corruption, match="the filter of row group 0 is not what was written") as error:
        RangedSst(store, written, KEYED, Reads()).passing(hashes[:3])
    assert error.value.object_key == written.object


def test_ssts_without_filters_let_everything_pass() -> None:
    store = CountingStore(MemoryStore())
    hashes = np.sort(random_hashes(9, 3 * writer.ROW_GROUP_ROWS))
    written = put(store, hashes)
    data = store.get(written.object)
    # As they were written before there were filters: the bytes of such a footer are Parquet's own.
    plain = int.from_bytes(data[-8:-4], "little") + 8
    old = replace(written, filter_bytes=0, footer_bytes=plain, footer_checksum=xxhash.xxh3_128_hexdigest(data[-plain:]))
    reads = Reads()
    opened = RangedSst(store, old, KEYED, reads)
    asked = np.sort(np.concatenate([hashes[[3, 50_000 // 2]], hashes[[100]] + 1]))
    assert opened.passing(asked).all()
    assert (reads.requests, reads.filtered) == (1, 0)
    (block,) = opened.read(opened.needed(asked))
    assert np.isin(hashes[[3, 25_000]], block.hashes).all()


def test_verify_finds_a_filter_that_hides_rows() -> None:
    store = CountingStore(MemoryStore())
    keys = pa.table({"k": np.arange(1_000)})
    written = put(store, hash_keys(keys, ["k"]))
    assert not [fault for checked in reread_sst(store, written, KEYED, ()) for fault in checked.wrong]
    data = bytearray(store.get(written.object))
    place = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(0).column(0)
    start, end = place.bloom_filter_offset, place.bloom_filter_offset + place.bloom_filter_length
    data[start + 20 : end] = bytes(end - start - 20)
    # Whoever wrote it so also wrote the checksums.
    data[-written.footer_bytes : 8 - written.footer_bytes] = xxhash.xxh3_64_digest(data[start:end])
    forged = replace(
        written,
        checksum=xxhash.xxh3_128_hexdigest(data),
        footer_checksum=xxhash.xxh3_128_hexdigest(data[-written.footer_bytes :]),
    )
    store.put(written.object, bytes(data))
    (fault,) = [fault for checked in reread_sst(store, forged, KEYED, ()) for fault in checked.wrong]
    assert "the filter of row group 0 hides 1000 of its 1000 rows" in fault
