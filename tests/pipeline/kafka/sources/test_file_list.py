"""The list of a source's files: any process reads the same list, with few requests, whoever adds to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.kafka.sources import file_list as module
from slackwater.pipeline.kafka.sources.file_list import FileList, SourceFile
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore

TOPIC = "files:in"
ADDED = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=70)


def some_parts(first: int, rows: list[int]) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(f"{first + n}", count, 1, first + n) for n, count in enumerate(rows))


@given(ADDED, st.data())
def test_a_list_is_the_same_for_all_readers(added: list[list[int]], data: st.DataObject) -> None:
    """Two writers take turns, readers come at any time; the oracle is a plain list of (path, row) for each offset."""
    store, expected = MemoryStore(), list[tuple[str, int]]()
    lists, count = (FileList(TOPIC), FileList(TOPIC)), 0
    readers = (FileList(TOPIC), FileList(TOPIC))
    for rows in added:
        writer = lists[data.draw(st.integers(0, 1))]
        new = some_parts(count, rows)
        if not writer.append(store, new):
            # The other writer was first; now this one knows its files.
            assert [part.path for part in writer.files] == [str(n) for n in range(count)]
            assert writer.append(store, new)
        count += len(rows)
        expected += [(part.path, row) for part in new for row in range(part.rows)]
        if data.draw(st.booleans()):
            reader = readers[data.draw(st.integers(0, 1))]
            reader.refresh(store)
            assert [part.path for part in reader.files] == [str(n) for n in range(count)]
    reader = data.draw(st.sampled_from([FileList(TOPIC), *readers]))
    reader.refresh(store)
    assert reader.end == len(expected)
    assert [(part.path, n - first) for n in range(reader.end) for first, part in reader.between(n, n + 1)] == expected
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(expected))] * 2)))
    within = [
        (part.path, row)
        for first, part in reader.between(low, high)
        for row in range(max(0, low - first), min(part.rows, high - first))
    ]
    assert within == expected[low:high]
    for time_ms in (0, count // 2, count):
        later = [n for n, (path, _) in enumerate(expected) if int(path) >= time_ms]
        assert reader.first_since(time_ms) == (later[0] if later else -1)


@pytest.mark.parametrize("every", [1, 5, 15, 17])
@pytest.mark.parametrize("limit", [20_000, 20])
def test_a_reader_follows_a_list_that_grows(every: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that repeat others are read also by readers that know a part of the files that these repeat."""
    monkeypatch.setattr(module, "MAX_FILES", limit)
    store, writer, reader = MemoryStore(), FileList(TOPIC), FileList(TOPIC)
    for n in range(600):
        assert writer.append(store, some_parts(n, [1]))
        if n % every == 0:
            reader.refresh(store)
            assert [part.path for part in reader.files] == [str(at) for at in range(n + 1)]


def test_a_list_that_another_thread_extended_is_not_extended_by_what_was_found_before() -> None:
    store, writer = MemoryStore(), FileList(TOPIC)
    assert writer.append(store, some_parts(0, [1]), seen=0)
    assert not writer.append(store, some_parts(0, [1]), seen=0)
    assert [part.path for part in writer.files] == ["0"]


def test_marks_and_constants_count_in_the_size_of_an_object() -> None:
    store, writer = MemoryStore(), FileList(TOPIC)
    for n in range(16):
        marks = tuple((50_000 * k, 5_000_000 * k) for k in range(2_000))
        assert writer.append(store, (SourceFile(str(n), 1, 1, n, 0, {"day": "x"}, marks),))
    assert max(len(store.get(info.key)) for info in store.list("_sources/")) < 50_000
    reader = FileList(TOPIC)
    reader.refresh(store)
    assert reader.files == writer.files


def test_a_long_list_takes_few_requests_and_an_unchanged_one_takes_one() -> None:
    store, writer = MemoryStore(), FileList(TOPIC)
    for n in range(1_000):
        assert writer.append(store, some_parts(n, [1]))
    counting, reader = CountingStore(store), FileList(TOPIC)
    reader.refresh(counting)
    assert reader.end == 1_000
    assert counting.requests < 60
    before = counting.requests
    reader.refresh(counting)
    assert counting.requests - before == 1


def test_a_list_with_too_many_files_to_repeat_is_read_whole() -> None:
    store, writer, limit = MemoryStore(), FileList(TOPIC), module.MAX_FILES
    module.MAX_FILES = 20
    try:
        for n in range(300):
            assert writer.append(store, some_parts(n, [1]))
    finally:
        module.MAX_FILES = limit
    reader = FileList(TOPIC)
    reader.refresh(store)
    assert [part.path for part in reader.files] == [str(n) for n in range(300)]
