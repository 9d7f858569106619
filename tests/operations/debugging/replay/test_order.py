"""The order of a batch's records: by offset within a partition, by time across partitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from slackwater.operations.debugging.replay.first import sort_records

RECORDS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 30), st.integers(0, 1), st.integers(0, 8)),
    unique_by=lambda record: record[:4],
    min_size=1,
    max_size=30,
)
"""Topic, partition, offset, row and time of each record."""


def ordered(records: list[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[int]]:
    topics, partitions, offsets, rows, times = (np.array(each) for each in zip(*records, strict=True))
    found = sort_records(times, topics, partitions, offsets, rows)
    return [records[at] for at in found.order.tolist()], found.times_ms.tolist()


@given(RECORDS)
def test_offsets_ascend_within_a_partition_and_times_across_partitions(records: list[tuple[int, ...]]) -> None:
    found, times = ordered(records)
    assert sorted(found) == sorted(records)
    for lane in {record[:2] for record in records}:
        mine = [record[:4] for record in found if record[:2] == lane]
        assert mine == sorted(mine)
    # Each record gets the latest time of its partition up to it, and all records are sorted by these times.
    for record, time in zip(found, times, strict=True):
        up_to = [other[4] for other in records if other[:2] == record[:2] and other[:4] <= record[:4]]
        assert time == max(up_to)
    assert times == sorted(times)


@given(RECORDS)
def test_records_of_different_partitions_with_the_same_time_are_tied(records: list[tuple[int, ...]]) -> None:
    topics, partitions, offsets, rows, times = (np.array(each) for each in zip(*records, strict=True))
    found = sort_records(times, topics, partitions, offsets, rows)
    _, latest = ordered(records)
    for at in range(len(records)):
        tied = found.tied_positions(at)
        assert sorted(place for mine in tied.values() for place in mine.tolist()) == [
            place for place, time in enumerate(latest) if time == latest[at]
        ]
        for mine in tied.values():
            assert len({records[found.order[place]][:2] for place in mine.tolist()}) == 1
