import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Corruption
from slackwater.snapshot.verify.sst import reread_sst
from slackwater.store.objects.counting import CountingStore, ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.remote_sst import RangedSst
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.parquet_index import (
    CHUNK_BYTES,
    FileMetaData,
    decode_struct,
    index_ranges,
    probe_filter,
    probed_chunks,
    split_filter,
)
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

KEYED = Table((Column("k", "int64"),), (Column("v", "double"),), partitions=1)
INT64 = np.iinfo(np.int64)


def put(store: CountingStore, hashes: np.ndarray) -> Sst:
    """Write an SST with these hashes, for arbitrary keys."""
    rows = pa.table(
        {
            "_hash": pa.array(hashes, pa.int64()),
            "k": np.arange(len(hashes)),
            "v": np.zeros(len(hashes)),
            "_seq": np.ones(len(hashes), np.int64),
            "_op": np.zeros(len(hashes), np.int8),
        }
    )
    return writer.write_sst(store, None, app="a", stage="s", table=KEYED, partition=0, rows=rows)


def filters_of(data: bytes) -> list[dict[int, bytes]]:
    """Return all filters of a Parquet file, found as any Parquet reader does."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    places = [metadata.row_group(i).column(0) for i in range(metadata.num_row_groups)]
    return [
        split_filter(data[place.bloom_filter_offset : place.bloom_filter_offset + place.bloom_filter_length])
        for place in places
    ]


def size_of(chunks: dict[int, bytes]) -> int:
    return sum(map(len, chunks.values()))


def random_hashes(seed: int, num: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(INT64.min, INT64.max, num, endpoint=True)


@given(st.lists(st.integers(INT64.min, INT64.max), min_size=1, max_size=200, unique=True))
def test_existing_hashes_always_pass(hashes: list[int]) -> None:
    store = CountingStore(MemoryStore())
    written = put(store, np.array(hashes))
    (found,) = filters_of(store.get(written.object))
    assert probe_filter(found, np.array(hashes), size_of(found)).all()


@pytest.mark.parametrize(("num", "at_most"), [(1_000, 0.04), (writer.ROW_GROUP_ROWS, 0.04), (40_000, 0.04)])
def test_few_absent_hashes_pass_a_filter_of_a_byte_per_row(num: int, at_most: float) -> None:
    store = CountingStore(MemoryStore())
    written = put(store, random_hashes(1, num))
    others = random_hashes(2, 50_000)
    for one in filters_of(store.get(written.object)):
        assert probe_filter(one, others, size_of(one)).mean() < at_most
    assert written.filter_bytes < 2.2 * num


def test_filters_are_between_the_rows_and_the_footer_and_other_readers_can_read_the_file() -> None:
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


def test_duckdb_uses_the_filters(tmp_path_factory: pytest.TempPathFactory) -> None:
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
def test_an_unknown_kind_of_filter_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="split-block Bloom filter"):
        split_filter(data)


def test_an_absent_key_costs_a_page_index_and_part_of_a_filter() -> None:
    store = CountingStore(MemoryStore())
    hashes = np.sort(random_hashes(7, 3 * writer.ROW_GROUP_ROWS))
    written = put(store, hashes)
    reads = ReadCounters()
    opened = RangedSst(store, written, KEYED, reads)
    assert (reads.requests, reads.bytes) == (1, written.footer_bytes)
    absent = hashes[[10, 20, 2 * writer.ROW_GROUP_ROWS]] + 1
    passing, parts = opened.find_hashes(absent)
    assert (passing.sum(), len(parts)) == (0, 0)
    # Of two row groups of three, each with 61 pages of six columns; a filter has 131,072 bytes.
    assert reads.bytes < written.footer_bytes + 2 * 13_000
    # Kept for the next look-up.
    before = reads.requests
    RangedSst(store, written, KEYED, reads).find_hashes(absent)
    assert reads.requests == before


@given(
    num=st.integers(1, 3_000),
    asked=st.lists(st.integers(INT64.min, INT64.max), min_size=1, max_size=20, unique=True),
)
def test_the_needed_chunks_of_a_filter_give_the_same_result_as_all(num: int, asked: list[int]) -> None:
    store = CountingStore(MemoryStore())
    hashes = random_hashes(num, num)
    (whole,) = filters_of(store.get(put(store, hashes).object))
    bits = b"".join(whole.values())
    both = np.concatenate([hashes[:50], np.array(asked)])
    chunks = {
        number: bits[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
        for number in np.unique(probed_chunks(both, len(bits))).tolist()
    }
    assert probe_filter(chunks, both, len(bits)).tolist() == probe_filter(whole, both, len(bits)).tolist()


@pytest.mark.parametrize("rows", [500, 200_000])
def test_a_damaged_filter_is_an_error_and_never_an_absent_key(rows: int) -> None:
    store = CountingStore(MemoryStore())
    hashes = np.sort(random_hashes(8, rows))
    written = put(store, hashes)
    data = bytearray(store.get(written.object))
    at = written.bytes - written.footer_bytes - written.filter_bytes
    # The first filter loses its bits.
    lost = min(rows, 120_000)
    data[at + 20 : at + lost] = bytes(lost - 20)
    store.put(written.object, bytes(data))
    with pytest.raises(Corruption, match="the filter of row group 0 does not match its checksum") as error:
        RangedSst(store, written, KEYED, ReadCounters()).find_hashes(hashes[:3])
    assert error.value.object_key == written.object


def test_an_sst_without_a_page_index_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pq.ParquetWriter
    with monkeypatch.context() as patch:
        patch.setattr(
            pq, "ParquetWriter", lambda *given, **named: plain(*given, **{**named, "write_page_index": False})
        )
        patch.setattr(writer, "_with_checksums", lambda data: (data.to_pybytes(), 0, footer_bytes(data)))
        store = CountingStore(MemoryStore())
        foreign = put(store, np.sort(random_hashes(9, 50_000)))
    with pytest.raises(Corruption, match="it has no page index") as error:
        RangedSst(store, foreign, KEYED, ReadCounters())
    assert error.value.object_key == foreign.object


def footer_bytes(data: pa.Buffer) -> int:
    return int.from_bytes(data[-8:-4], "little") + 8


def test_verify_finds_a_filter_that_would_hide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore(MemoryStore())
    keys = pa.table({"k": np.arange(1_000)})
    written = put(store, hash_keys(keys, ["k"]))
    assert not [fault for checked in reread_sst(store, written, KEYED) for fault in checked.faults]
    with_checksums = writer._with_checksums

    def forged(data: pa.Buffer) -> tuple[bytes, int, int]:
        """Return the file with the filter's bits cleared and checksums to match."""
        place = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(0)
        start, end = place.bloom_filter_offset + 20, place.bloom_filter_offset + place.bloom_filter_length
        whole = data.to_pybytes()
        return with_checksums(pa.py_buffer(whole[:start] + bytes(end - start) + whole[end:]))

    monkeypatch.setattr(writer, "_with_checksums", forged)
    written = put(store, hash_keys(keys, ["k"]))
    (fault,) = [fault for checked in reread_sst(store, written, KEYED) for fault in checked.faults]
    assert "the filter of row group 0 hides 1000 of its 1000 rows" in fault


def test_verify_finds_a_page_index_that_does_not_match_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore(MemoryStore())
    with_checksums = writer._with_checksums

    def forged(data: pa.Buffer) -> tuple[bytes, int, int]:
        whole = data.to_pybytes()
        footer = decode_struct(FileMetaData, whole[-footer_bytes(data) : -8])
        at = index_ranges(footer.row_groups[0])[0][0]
        least = int(hashes.min()).to_bytes(8, "little", signed=True)
        changed = whole[at:].replace(least, (int(hashes.min()) + 1).to_bytes(8, "little", signed=True), 1)
        return with_checksums(pa.py_buffer(whole[:at] + changed))

    hashes = random_hashes(11, 1_000)
    monkeypatch.setattr(writer, "_with_checksums", forged)
    written = put(store, hashes)
    found = [fault for checked in reread_sst(store, written, KEYED) for fault in checked.faults]
    assert any("the page index of row group 0 does not match the hashes of its rows" in fault for fault in found)
