"""Objects of an archive: records are read as they were written, also by ranges, and a damaged object is named."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Corruption
from slackwater.store.archive import index, merge, objects
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.reading import Archive, TopicArchives
from slackwater.store.objects.memory import MemoryStore

from tests.store.archive.small_archives import BY, append, put, records, write

APP, TOPIC = "shop", "orders"
EMPTY = index.empty_index(APP, TOPIC)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_ROW_GROUP_ROWS", 7)
    monkeypatch.setattr(objects, "_SMALL_OBJECT_BYTES", 0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=8),
    st.frozensets(st.integers(0, 60), max_size=20),
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 60)),
    st.booleans(),
)
def test_a_range_has_its_records_from_any_number_of_objects(
    sizes: list[tuple[int, int]], gaps: frozenset[int], wanted: tuple[int, int, int], is_merged: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_ROW_GROUP_ROWS", 7)
        patch.setattr(objects, "_SMALL_OBJECT_BYTES", 0)
        store, head, ends = MemoryStore(), EMPTY, [0, 0, 0]
        for partition, size in sizes:
            extent = Extent(partition, ends[partition], ends[partition] + size)
            there = set(range(extent.first, extent.end)) - gaps
            some = (put(store, EMPTY, extent, gaps=gaps),) if there else ()
            head = index.change(
                store, index.empty_index(APP, TOPIC), index.append_update(some, (extent,)), by=BY, now_ms=1
            )
            ends[partition] += size
        if is_merged and (inputs := merge.pick_inputs(head, all_sizes=True)):
            head = merge.merge(store, head, inputs, by=BY, now_ms=2)
            assert len(head.objects) < len(inputs)
        partition, first, end = wanted
        found = pa.concat_tables([records(partition, ()), *Archive(store, head).rows(partition, first, end)])
        expected = [at for at in range(min(end, ends[partition])) if at >= first and at not in gaps]
        assert found.equals(records(partition, expected))
        lacking = [
            at
            for each in TopicArchives((Archive(store, head),)).uncovered(partition, first, end)
            for at in range(each.first, each.end)
        ]
        assert lacking == [at for at in range(first, end) if at >= ends[partition]]


def test_parts_that_a_range_does_not_need_are_not_read(small_groups: None) -> None:
    store = MemoryStore()
    rows = pa.concat_tables([records(0, range(700), size=100), records(1, range(700), size=100)])
    one = write(store, EMPTY, [rows], (Extent(0, 0, 700), Extent(1, 0, 700)), 1)
    read = []

    class Counted(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            read.append(length)
            return store.get_range(key, start, length)

    (found,) = objects.ArchivedRecords(Counted(), one).rows(1, 7, 14)
    assert found["offset"].to_pylist() == list(range(7, 14))
    # The footer, which is long with so small groups, and of two groups that may have them all that lies between.
    assert sum(read) - one.footer_bytes < one.bytes / 20


def test_any_parquet_reader_can_read_an_object(small_groups: None) -> None:
    store = MemoryStore()
    one = put(store, EMPTY, Extent(0, 5, 40), Extent(2, 0, 3))
    found = pq.read_table(pa.BufferReader(store.get(one.object)))
    assert found.equals(pa.concat_tables([records(0, range(5, 40)), records(2, range(3))]))
    assert (one.rows, one.time_min_ms, one.time_max_ms) == (38, 1_000, 1_039)


def test_an_object_is_hardly_larger_than_plain_parquet() -> None:
    rng = np.random.default_rng(0)
    rows = records(0, range(100_000))
    values = [b'{"country": "%d", "cents": %d}' % (a, b) for a, b in rng.integers(0, 10_000, (len(rows), 2)).tolist()]
    rows = rows.set_column(6, "value", pa.array(values, pa.binary()))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    one = write(MemoryStore(), EMPTY, [rows], (Extent(0, 0, len(rows)),), 1)
    assert one.bytes < 1.1 * sink.tell()


def test_unordered_records_are_refused() -> None:
    writer = objects.ArchiveWriter()
    writer.append(records(0, [1, 2]))
    for bad in (records(0, [2]), records(0, [5, 4]), pa.concat_tables([records(2, [0]), records(1, [0])])):
        with pytest.raises(ValueError, match="in the order of partition and offset"):
            writer.append(bad)
    with pytest.raises(ValueError, match="at least one record"):
        objects.ArchiveWriter().finish("k", (), 1)


@pytest.mark.parametrize("whole", [0, 1 << 20])
@pytest.mark.parametrize("how", ["missing", "cut short", "a bit of a page", "a bit of the footer"])
def test_a_damaged_object_is_named_and_none_of_its_records_is_returned(
    how: str, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_SMALL_OBJECT_BYTES", whole)
    store = MemoryStore()
    head = append(store, APP, Extent(0, 0, 500))
    (one,) = head.objects
    data = bytearray(store.get(one.object))
    if how == "missing":
        store.delete(one.object)
    elif how == "cut short":
        store.put(one.object, bytes(data[:-1]))
    else:
        data[200 if "page" in how else len(data) - 30] ^= 1
        store.put(one.object, bytes(data))
    with pytest.raises(Corruption, match="of the input archive is damaged") as caught:
        list(Archive(store, head).rows(0, 0, 500))
    assert caught.value.object_key == one.object


def test_similar_objects_are_merged_and_days_stay_apart() -> None:
    store, day = MemoryStore(), 86_400_000
    for number in range(15):
        head = append(store, APP, Extent(0, number, number + 1), read_ms=day * (number // 10))
    assert [each.extents for each in merge.pick_inputs(head)] == [(Extent(0, n, n + 1),) for n in range(10)]
    head = merge.merge(store, head, merge.pick_inputs(head), by=BY, now_ms=1)
    assert len(head.objects) == 6
    assert head.objects[0].extents == (Extent(0, 0, 10),)
    assert merge.pick_inputs(head) == ()
    head = merge.merge(store, head, merge.pick_inputs(head, all_sizes=True), by=BY, now_ms=1)
    assert [each.extents for each in head.objects] == [(Extent(0, 0, 10),), (Extent(0, 10, 15),)]
    assert merge.pick_inputs(head, all_sizes=True) == ()


def test_a_merge_whose_inputs_were_removed_meanwhile_leaves_nothing() -> None:
    store = MemoryStore()
    for number in range(3):
        head = append(store, APP, Extent(0, number, number + 1))
    inputs = merge.pick_inputs(head, all_sizes=True)
    thin = index.change(
        store, index.empty_index(APP, TOPIC), index.replace_update({inputs[1].object: None}), by=BY, now_ms=1
    )
    before = {each.key for each in store.list("")}
    assert merge.merge(store, head, inputs, by=BY, now_ms=1) == thin
    assert {each.key for each in store.list("")} == before
