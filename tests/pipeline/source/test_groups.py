"""Distribution of a batch's offset ranges over tasks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.source import groups
from slackwater.pipeline.source.groups import MAX_GROUP, MIN_SPLIT, Group, group_ranges
from slackwater.state.records import Range

some_ranges = st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)), max_size=40).map(
    lambda spans: tuple(Range(number, first, first + size) for number, (first, size) in enumerate(spans))
)
counts = st.integers(1, 12)


def size(group: Group) -> int:
    return sum(part.last - part.first for part in group)


def allowed(parts: tuple[Range, ...], cores: int) -> int:
    """Return the maximum number of groups: one per core, and more only for a huge batch."""
    return next(count for count in range(cores, 10**6, cores) if size(parts) <= count * MAX_GROUP)


@given(some_ranges, counts)
def test_whole_ranges_are_grouped_evenly_into_at_most_as_many_groups_as_allowed(
    parts: tuple[Range, ...], count: int
) -> None:
    found = group_ranges(parts, count)
    count = allowed(parts, count)
    assert len(found) == min(count, len(parts))
    assert all(found), "no task has nothing to do"
    assert sorted((part for group in found for part in group), key=lambda part: part.partition) == list(parts)
    largest = max((part.last - part.first for part in parts), default=0)
    assert all(size(group) <= size(parts) / count + largest for group in found)
    assert all(one.partition < other.partition for group in found for one, other in pairwise(group))


@given(some_ranges, counts)
def test_split_ranges_of_a_large_batch_cover_every_offset_once_and_fill_groups_evenly(
    parts: tuple[Range, ...], count: int
) -> None:
    found = group_ranges(parts, count, can_split=True)
    if size(parts) < count * MIN_SPLIT:
        assert found == group_ranges(parts, count)
        return
    count = allowed(parts, count)
    assert len(found) <= count
    assert all(size(group) <= MAX_GROUP for group in found)
    assert all(size(group) <= -(-size(parts) // count) for group in found)
    for group in found:
        assert all(one.partition < other.partition for one, other in pairwise(group)), "a partition twice in a group"
    for part in parts:
        pieces = [each for group in found for each in group if each.partition == part.partition]
        assert (pieces[0].first, pieces[-1].last) == (part.first, part.last)
        assert all(one.last == other.first for one, other in pairwise(pieces))
        assert all(each.first < each.last for each in pieces)


def test_one_long_partition_does_not_delay_the_others() -> None:
    parts = (Range(0, 0, 10), Range(1, 0, 900), Range(2, 0, 20), Range(3, 0, 30))
    assert group_ranges(parts, 2) == ((parts[1],), (parts[0], parts[2], parts[3]))


def test_one_partition_with_a_backlog_is_read_by_all_cores() -> None:
    parts = (Range(0, 7, 7 + 4 * groups.MIN_SPLIT),)
    found = group_ranges(parts, 4, can_split=True)
    assert [size(group) for group in found] == [MIN_SPLIT] * 4
    assert group_ranges(parts, 4) == (parts,), "where order counts, one task reads a partition"
