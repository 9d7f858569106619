"""Rearrangements of a batch's records: no record is lost, and guaranteed orders are kept."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from slackwater.operations.debugging.check.arrangements import (
    BatchRows,
    RecordOrigins,
    last_partitions_first,
    original_order,
    random_batches,
    reversed_order,
)

VERSIONS = st.lists(st.lists(st.integers(1, 4), max_size=6).map(sorted), max_size=4)


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, RecordOrigins]:
    """Draw a topic and a channel with records in some partitions. Versions in the channel ascend."""
    counts = draw(st.lists(st.integers(0, 6), max_size=4))
    topic = np.repeat(np.arange(len(counts)), counts)
    sent = draw(VERSIONS)
    channel = np.repeat(np.arange(len(sent)), list(map(len, sent)))
    versions = np.array([version for each in sent for version in each], np.int64)
    return {"topic": RecordOrigins(topic, np.zeros(len(topic), np.int64)), "channel": RecordOrigins(channel, versions)}


@given(inputs(), st.integers(0, 1 << 32))
@example({"topic": RecordOrigins(np.arange(3), np.zeros(3, np.int64))}, 3)
@example({"topic": RecordOrigins(np.arange(2), np.zeros(2, np.int64))}, 7)
def test_random_batches_have_each_record_once_and_keep_the_order_in_a_partition(
    came: dict[str, RecordOrigins], seed: int
) -> None:
    batches = random_batches(came, np.random.default_rng(seed))
    count = sum(len(each.partitions) for each in came.values())
    assert (len(batches) > 1) == (count > 1)
    assert_whole(came, batches)


@given(inputs())
def test_batches_of_whole_partitions_begin_with_the_last_partitions(came: dict[str, RecordOrigins]) -> None:
    batches = last_partitions_first(came)
    spans = [(name, partition) for name, each in came.items() for partition in np.unique(each.partitions).tolist()]
    assert len(batches) == min(len(spans), 3)
    assert_whole(came, batches)
    there = [{name: set(came[name].partitions[rows].tolist()) for name, rows in batch.items()} for batch in batches]
    placed = [next(at for at, batch in enumerate(there) if partition in batch[name]) for name, partition in spans]
    assert placed == sorted(placed, reverse=True)


def assert_whole(came: dict[str, RecordOrigins], batches: tuple[BatchRows, ...]) -> None:
    assert len(batches) <= 3
    assert all(any(len(rows) for rows in batch.values()) for batch in batches)
    for name, each in came.items():
        rows = np.concatenate([np.empty(0, np.int64), *(batch[name] for batch in batches)])
        assert sorted(rows.tolist()) == list(range(len(each.partitions)))
        for partition in np.unique(each.partitions):
            mine = rows[each.partitions[rows] == partition]
            assert (np.diff(mine) > 0).all()


@given(inputs())
def test_reversing_keeps_a_partitions_records_and_a_channels_versions_in_order(
    came: dict[str, RecordOrigins],
) -> None:
    other = reversed_order(came)
    for name, each in came.items():
        rows = other[name]
        assert sorted(rows.tolist()) == original_order(came)[name].tolist()
        for partition in np.unique(each.partitions):
            mine = rows[each.partitions[rows] == partition]
            assert (np.diff(each.versions[mine]) >= 0).all()
            if name == "topic":
                assert (np.diff(mine) > 0).all()


@given(inputs())
def test_reversing_swaps_any_two_records_without_a_guaranteed_order(came: dict[str, RecordOrigins]) -> None:
    other = reversed_order(came)
    for name, each in came.items():
        place = np.argsort(other[name])
        for one in range(len(place)):
            for later in range(one + 1, len(place)):
                same = each.partitions[one] == each.partitions[later]
                kept = same and (name == "topic" or each.versions[one] != each.versions[later])
                assert (place[one] < place[later]) == kept
