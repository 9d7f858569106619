"""What was sent on a channel, and what lies between two places of an input."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.fold.records import Range, difference, ranges, windows

COUNTS = st.lists(st.integers(0, 9), max_size=4)


@given(COUNTS, COUNTS)
def test_ranges_are_what_lies_between_and_new_partitions_begin_at_zero(starts: list[int], ends: list[int]) -> None:
    padded = starts + [0] * (len(ends) - len(starts))
    found = list(ranges(starts, ends))
    assert [(one.partition, offset) for one in found for offset in range(one.first, one.last)] == [
        (partition, offset) for partition, end in enumerate(ends) for offset in range(padded[partition], end)
    ]
    assert len(windows("t", starts, ends)) == len(found)


def test_where_no_rows_lie_nothing_is_read_and_where_nobody_counted_everything_is() -> None:
    assert list(ranges((0, 0), (2, 3), (5, 5), (5, 8))) == [Range(1, 0, 3, 3)]
    assert list(ranges((0, 0), (2, 3), (), (5, 8))) == [Range(0, 0, 2), Range(1, 0, 3)]
    assert difference((), (1,)) == ()
