from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption, Refused, Usage
from slackwater.store.objects.counting import CountingStore, ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.decode import Block, decode
from slackwater.store.read.fetch import fetch
from slackwater.store.read.remote_sst import PageSelection, RangedSst
from slackwater.store.sst import writer
from slackwater.store.sst.arrow_types import from_arrow, to_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.schema import sst_schema
from slackwater.store.versions.manifest import Column, Table

from tests.support.state_rows import ROUTES, state_rows, write_version

EVERY_TYPE = Table(
    key=(Column("k", "string"),),
    values=tuple(
        Column(f"v{i}", name)
        for i, name in enumerate(
            [
                "string",
                "binary",
                "bool",
                "int8",
                "int16",
                "int32",
                "int64",
                "float",
                "double",
                "date32[day]",
                "timestamp[us]",
                "timestamp[us, tz=UTC]",
                "decimal128(10, 2)",
                "decimal128(38, 10)",
            ]
        )
    ),
    partitions=1,
)
EXTREMES: dict[tuple[object, ...], tuple[object, ...] | None] = {
    ("low",): (
        "",
        b"",
        False,
        -(2**7),
        -(2**15),
        -(2**31),
        -(2**63),
        float("-inf"),
        -0.0,
        date(1, 1, 1),
        datetime(1, 1, 1),  # noqa: DTZ001  a timestamp without a zone is what is tested
        datetime(1, 1, 1, tzinfo=UTC),
        Decimal("-99999999.99"),
        Decimal("-9999999999999999999999999999.9999999999"),
    ),
    ("high",): (
        "日本語 \U0001f680",
        bytes(range(256)),
        True,
        2**7 - 1,
        2**15 - 1,
        2**31 - 1,
        2**63 - 1,
        1.5,
        float("nan"),
        date(9999, 12, 31),
        datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
        datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        Decimal("99999999.99"),
        Decimal("9999999999999999999999999999.9999999999"),
    ),
    (None,): (None,) * 14,
}


def many_routes(num_rows: int, seq: int = 1) -> pa.Table:
    """Return rows of ROUTES in no order."""
    number = np.random.default_rng(7).permutation(num_rows)
    keys = pa.table({"origin": pa.array(["JFK"] * num_rows), "dest": pa.array(number).cast(pa.string())})
    return (
        keys.append_column("flights", pa.array(number))
        .append_column("delay", pa.array(number / 2))
        .append_column("_sum", pa.nulls(num_rows, pa.decimal128(38, 2)))
        .append_column("_hash", pa.array(hash_keys(keys, ["origin", "dest"])))
        .append_column("_seq", pa.array(np.full(num_rows, seq)))
        .append_column("_op", pa.array(np.zeros(num_rows, np.int8)))
    )


def test_every_type_is_read_as_written_with_the_declared_schema() -> None:
    store = MemoryStore()
    (written,) = write_version(store, None, EVERY_TYPE, EXTREMES, 1)
    schema = sst_schema(EVERY_TYPE)
    data = fetch(store, written)
    assert pq.read_schema(pa.BufferReader(data)) == schema
    (found,) = decode(data, written, EVERY_TYPE)
    expected = writer.prepare_rows(state_rows(EVERY_TYPE, EXTREMES, 1), EVERY_TYPE)
    # repr tells NaN from null and -0.0 from 0.0.
    assert repr(found.to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize("column", EVERY_TYPE.values, ids=lambda column: column.type)
def test_a_type_is_parsed_from_its_name(column: Column) -> None:
    assert from_arrow(to_arrow(column.type)) == column.type


def test_arrow_layouts_of_the_same_values_have_the_same_name() -> None:
    assert from_arrow(pa.large_string()) == from_arrow(pa.string_view()) == "string"
    assert from_arrow(pa.large_binary()) == from_arrow(pa.binary_view()) == "binary"
    assert from_arrow(pa.timestamp("us", tz="Asia/Tokyo")) == "timestamp[us, tz=UTC]"
    assert to_arrow("date32") == pa.date32()


@pytest.mark.parametrize("name", ["int128", "decimal128(39, 2)", "decimal128(3, 4)", "list<item: int64>", ""])
def test_an_unknown_type_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(Usage, match=r"cannot be a column of a state table: expected one of string, .*decimal128"):
        to_arrow(name)


PLAIN = st.sampled_from([column.type for column in EVERY_TYPE.values])
FIELDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
TYPES = st.recursive(
    PLAIN.map(to_arrow),
    lambda inner: (
        inner.map(pa.list_)
        | st.tuples(PLAIN.map(to_arrow), inner).map(lambda pair: pa.map_(*pair))
        | st.lists(st.tuples(FIELDS, inner), min_size=1, max_size=3, unique_by=lambda f: f[0].casefold()).map(pa.struct)
    ),
    max_leaves=6,
)


@given(TYPES)
def test_a_nested_type_is_parsed_from_its_name_for_any_field_names(kind: pa.DataType) -> None:
    assert to_arrow(from_arrow(kind)) == kind


def test_nullability_and_the_layout_of_lists_do_not_change_the_type() -> None:
    strict = pa.struct([pa.field("a", pa.large_list(pa.field("element", pa.int64(), nullable=False)), nullable=False)])
    assert from_arrow(strict) == "struct<a: list<int64>>"
    assert from_arrow(pa.map_(pa.string(), pa.field("v", pa.int8(), nullable=False))) == "map<string, int8>"


@pytest.mark.parametrize(
    "name",
    [
        "struct<>",
        "struct<a: int64, A: int64>",
        "struct<a>",
        "struct<a: int64",
        "struct<`a: int64>",
        "struct<a: void>",
        "list<>",
        "list<int64>>",
        "list<int64> x",
        "list<" * 100_000 + "int64",
        "map<string>",
    ],
)
def test_a_nested_type_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(Usage, match="cannot be a column of a state table"):
        to_arrow(name)


@pytest.mark.parametrize("kind", [pa.struct([]), pa.struct([("a", pa.int8()), ("a", pa.int8())]), pa.list_(pa.null())])
def test_a_nested_arrow_type_that_cannot_be_stored_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(Usage, match="cannot be a column of a state table"):
        from_arrow(kind)


def test_an_arrow_type_that_would_lose_values_is_refused() -> None:
    with pytest.raises(Usage, match=r"timestamp\[ns\]"):
        from_arrow(pa.timestamp("ns"))


def test_the_entry_in_the_manifest_describes_the_object() -> None:
    store = MemoryStore()
    rows = pa.concat_tables(
        [
            state_rows(ROUTES, {("JFK", "LAX"): (1, 2.0, None), ("JFK", "SFO"): None}, 4),
            state_rows(ROUTES, {("EWR", "LAX"): (3, None, None)}, 9),
        ]
    )
    written = writer.write_sst(store, None, app="flights", stage="routes", table=ROUTES, partition=0, rows=rows)
    data = store.get(written.object)
    hashes = sorted(rows["_hash"].to_pylist())
    assert written.object.startswith("flights/stages/routes/sst/")
    assert written.object.endswith(".parquet")
    assert (written.partition, written.level, written.rows, written.tombstones) == (0, 0, 3, 1)
    assert (written.seq_min, written.seq_max) == (4, 9)
    assert (written.hash_min, written.hash_max) == (hashes[0], hashes[-1])
    assert (written.bytes, written.checksum) == (len(data), xxhash.xxh3_128_hexdigest(data))


def test_a_write_costs_one_request() -> None:
    store = CountingStore(MemoryStore())
    write_version(store, None, ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1)
    assert dict(store.counts) == {"put": 1}


def test_rows_are_sorted_and_row_groups_have_statistics_of_their_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 1 << 13)
    store = MemoryStore()
    rows = many_routes(3 * writer.ROW_GROUP_ROWS + 5)
    written = writer.write_sst(store, None, app="a", stage="s", table=ROUTES, partition=0, rows=rows)
    file = pq.ParquetFile(pa.BufferReader(store.get(written.object)), page_checksum_verification=True)
    assert [file.metadata.row_group(i).num_rows for i in range(4)] == [writer.ROW_GROUP_ROWS] * 3 + [5]
    found = file.read()
    assert found["_hash"].to_pylist() == sorted(rows["_hash"].to_pylist())
    assert sorted(found["dest"].to_pylist()) == sorted(rows["dest"].to_pylist())
    start = 0
    for i in range(4):
        group = file.metadata.row_group(i)
        hashes = found["_hash"].slice(start, group.num_rows)
        start += group.num_rows
        bounds = group.column(0).statistics
        assert (bounds.min, bounds.max) == (hashes[0].as_py(), hashes[-1].as_py())


def test_columns_may_have_any_order_and_layout_and_undeclared_ones_are_dropped() -> None:
    rows = state_rows(ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1)
    odd = rows.select(rows.column_names[::-1]).append_column("extra", pa.array([1]))
    odd = odd.set_column(odd.column_names.index("dest"), "dest", odd["dest"].cast(pa.large_string()))
    assert writer.prepare_rows(odd, ROUTES) == writer.prepare_rows(rows, ROUTES)


def test_a_missing_column_is_refused_with_both_schemas() -> None:
    rows = state_rows(ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1).drop_columns(["delay"])
    with pytest.raises(Refused, match=r"expected columns .*delay double.*; found origin string"):
        writer.prepare_rows(rows, ROUTES)


def test_a_value_that_does_not_fit_its_type_is_refused() -> None:
    rows = state_rows(ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1)
    rows = rows.set_column(rows.column_names.index("flights"), "flights", pa.array([2**64 - 1], pa.uint64()))
    with pytest.raises(Refused, match="do not fit the table"):
        writer.prepare_rows(rows, ROUTES)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_duplicate_key_is_refused_with_the_key(value: float) -> None:
    table = Table((Column("x", "double"), Column("s", "string")), (Column("v", "int64"),), 1)
    rows = pa.concat_tables([state_rows(table, {(value, None): (1,)}, 1), state_rows(table, {(-value, None): (2,)}, 1)])
    with pytest.raises(Refused, match=r"1 rows repeat the key of another row, such as \{'x': (0.0|nan), 's': None\}"):
        writer.prepare_rows(rows, table)


def test_keys_with_the_same_hash_are_ordered_by_key() -> None:
    rows = state_rows(ROUTES, {(o, d): (1, 1.0, None) for o in ("b", "a", None) for d in ("y", None, "x")}, 1)
    rows = rows.set_column(rows.column_names.index("_hash"), "_hash", pa.array([5] * 9))
    found = writer.prepare_rows(rows, ROUTES).select(["origin", "dest"]).to_pylist()
    assert [tuple(key.values()) for key in found] == [(o, d) for o in ("a", "b", None) for d in ("x", "y", None)]


def test_rows_of_another_partition_are_refused_and_nothing_is_written() -> None:
    store = CountingStore(MemoryStore())
    table = replace(ROUTES, partitions=4)
    rows = state_rows(table, {(str(i), "x"): (1, 1.0, None) for i in range(50)}, 1)
    with pytest.raises(Refused, match="hash range 2 of a/s have hashes of the ranges 0 to 3 of 4"):
        writer.write_sst(store, None, app="a", stage="s", table=table, partition=2, rows=rows)
    assert not store.counts


def test_without_rows_no_sst_is_written() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        writer.write_sst(MemoryStore(), None, app="a", stage="s", table=ROUTES, partition=0, rows=many_routes(0))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@given(st.data())
def test_any_change_of_a_stored_byte_is_found_and_the_object_is_named(data: st.DataObject) -> None:
    store = MemoryStore()
    (written,) = write_version(store, None, ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1)
    store.put(written.object, flipped(store.get(written.object), data.draw(st.integers(0, written.bytes - 1))))
    with pytest.raises(Corruption, match="expected checksum") as error:
        fetch(store, written)
    assert error.value.object_key == written.object
    assert error.value.hint


def test_a_truncated_or_missing_object_is_found() -> None:
    store = MemoryStore()
    (written,) = write_version(store, None, ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1)
    store.put(written.object, store.get(written.object)[:-1])
    with pytest.raises(Corruption, match=f"expected {written.bytes} bytes, found {written.bytes - 1}"):
        fetch(store, written)
    store.delete(written.object)
    with pytest.raises(Corruption, match="the object is missing"):
        fetch(store, written)


def test_an_sst_of_another_table_is_found() -> None:
    store = MemoryStore()
    (written,) = write_version(store, None, ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1)
    with pytest.raises(Corruption, match=r"expected columns .* v0 string.*; found .* flights int64"):
        list(decode(fetch(store, written), written, EVERY_TYPE))
    with pytest.raises(Corruption, match="expected 2 rows, found 1"):
        list(decode(fetch(store, written), replace(written, rows=2), ROUTES))


def test_a_large_sst_is_decoded_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.store.read.decode.BLOCK_ROWS", 1 << 14)
    store = MemoryStore()
    rows = many_routes((1 << 14) + 10).drop_columns(["_sum"])
    table = replace(ROUTES, values=ROUTES.values[:2])
    written = writer.write_sst(store, None, app="a", stage="s", table=table, partition=0, rows=rows)
    blocks = [Block.from_rows(batch) for batch in decode(fetch(store, written), written, table)]
    assert [len(block.hashes) for block in blocks] == [1 << 14, 10]
    assert np.array_equal(np.concatenate([block.hashes for block in blocks]), np.sort(rows["_hash"].to_numpy()))


def test_an_sst_of_another_root_is_opened_by_its_url(tmp_path_factory: pytest.TempPathFactory) -> None:
    theirs = open_store(str(tmp_path_factory.mktemp("theirs")))
    (written,) = write_version(theirs, None, ROUTES, {("JFK", "LAX"): (1, 2.0, None)}, 1)
    mine = MemoryStore()
    assert len(fetch(mine, replace(written, root=theirs.url))) == written.bytes
    assert mine.at(written.root) is mine.at(mine.url) is mine


def ranged(store: ObjectStore, num_rows: int) -> tuple[RangedSst, ReadCounters, pa.Table]:
    rows = many_routes(num_rows)
    written = writer.write_sst(store, None, app="a", stage="s", table=ROUTES, partition=0, rows=rows)
    reads = ReadCounters()
    return RangedSst(store, written, ROUTES, reads), reads, writer.prepare_rows(rows, ROUTES)


def test_only_pages_that_can_hold_the_hashes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 16_384)
    store = CountingStore(MemoryStore())
    opened, reads, rows = ranged(store, 8 * 16_384)
    hashes = rows["_hash"].to_numpy()
    wanted = hashes[[3, 16_384 * 5, 16_384 * 6 - 1]]
    passing, parts = opened.find_hashes(wanted)
    assert passing.all()
    assert [part.group for part in parts] == [0, 5]
    # The first page; the first and the last.
    assert [part.pages.tolist() for part in parts if part.pages is not None] == [[0], [0, 7]]
    (block,) = opened.read(parts)
    assert np.isin(wanted, block.hashes).all()
    first = writer.PAGE_ROWS
    expected = [slice(0, first), slice(5 * 16_384, 5 * 16_384 + first), slice(5 * 16_384 + 7 * first, 6 * 16_384)]
    assert block.stored == pa.concat_tables([rows[each] for each in expected]).combine_chunks().to_batches()[0]
    assert reads.row_groups == 2
    assert store.counts["get_range"] == reads.requests
    assert "get" not in store.counts
    assert reads.bytes < opened.touched_bytes(wanted) / 2
    few = pa.Table.from_batches(each.stored for each in opened.read(parts, ["dest", "_op", "_expires_at"]))
    assert few.column_names == ["_hash", "dest", "_op"]


def test_adjacent_rows_are_read_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 16_384)
    opened, reads, rows = ranged(MemoryStore(), 5 * 16_384)
    before = reads.requests
    (block,) = opened.read([PageSelection(1, None), PageSelection(2, None), PageSelection(3, None)])
    assert reads.requests == before + 1
    assert pa.Table.from_batches([block.stored]) == rows.slice(16_384, 3 * 16_384)


def test_hashes_between_row_groups_need_no_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 16_384)
    opened, reads, rows = ranged(MemoryStore(), 2 * 16_384)
    hashes = rows["_hash"].to_numpy()
    between = np.array([hashes[0] - 1, hashes[16_384] - 1, hashes[-1] + 1])
    passing, parts = opened.find_hashes(between)
    assert (passing.any(), parts, reads.requests) == (False, [], 1)
    assert list(opened.read(parts)) == []


@pytest.mark.parametrize("part", ["page", "footer", "magic"])
def test_damage_is_found_when_reading_in_pieces(part: str) -> None:
    store = MemoryStore()
    rows = many_routes(100)
    written = writer.write_sst(store, None, app="a", stage="s", table=ROUTES, partition=0, rows=rows)
    data = store.get(written.object)
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(1)
    at = {"page": chunk.data_page_offset + chunk.total_compressed_size - 3, "footer": len(data) - 200, "magic": -1}
    store.put(written.object, flipped(data, at[part] % len(data)))
    with pytest.raises(Corruption) as error:
        list(RangedSst(store, written, ROUTES, ReadCounters()).read([PageSelection(0, None)]))
    assert error.value.object_key == written.object


def test_a_missing_or_truncated_object_is_found_when_reading_in_pieces() -> None:
    store = MemoryStore()
    written = writer.write_sst(store, None, app="a", stage="s", table=ROUTES, partition=0, rows=many_routes(100))
    store.put(written.object, store.get(written.object)[:-5])
    with pytest.raises(Corruption, match=r"expected \d+ bytes from \d+ on, found"):
        RangedSst(store, written, ROUTES, ReadCounters())
    store.delete(written.object)
    with pytest.raises(Corruption, match="missing"):
        RangedSst(store, written, ROUTES, ReadCounters())
