"""Records sent on a channel, and records between two positions of an input."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.state.records import (
    Range,
    SentMessages,
    count_unread,
    difference,
    format_windows,
    fully_read_input,
    ranges,
    sent_messages,
)
from slackwater.store.versions.manifest import Input, Manifest, Output

COUNTS = st.lists(st.integers(0, 9), max_size=4)


@given(COUNTS, COUNTS)
def test_ranges_lie_between_two_positions_and_new_partitions_begin_at_zero(starts: list[int], ends: list[int]) -> None:
    padded = starts + [0] * (len(ends) - len(starts))
    found = list(ranges(starts, ends))
    assert [(one.partition, offset) for one in found for offset in range(one.first, one.last)] == [
        (partition, offset) for partition, end in enumerate(ends) for offset in range(padded[partition], end)
    ]
    assert len(format_windows("t", starts, ends)) == len(found)


def test_nothing_is_read_where_no_rows_are_and_everything_where_no_counts_are_known() -> None:
    assert list(ranges((0, 0), (2, 3), (5, 5), (5, 8))) == [Range(1, 0, 3, 3)]
    assert list(ranges((0, 0), (2, 3), (), (5, 8))) == [Range(0, 0, 2), Range(1, 0, 3)]
    assert difference((), (1,)) == ()


def test_sent_counts_of_versions_are_added_up_and_are_zero_without_writes_to_the_channel() -> None:
    def version(number: int, outputs: dict[str, Output]) -> Manifest:
        return Manifest("a", "w", number, 1, "w", 1, "batch", {}, outputs, by="host:1")

    last = Output("a-c", (9, 4), attempts=("w.3.1", "w.3.2"), rows=7, sent=(8, 3))
    versions = [
        version(1, {"c": Output("a-c", (2, 1), attempts=("w.1.1",), rows=4, sent=(3, 1))}),
        version(2, {}),
        version(3, {"c": last, "other": Output("a-o", (1,), attempts=("w.3.9",), rows=1, sent=(1,))}),
    ]
    assert sent_messages("c", versions) == SentMessages({"w.1.1": 1, "w.3.1": 3, "w.3.2": 3}, 11)
    reader = fully_read_input(last, "w", 3, 500)
    assert reader == Input("a-c", (9, 4), "w", 3, consumed=(8, 3), watermark_ms=500)
    assert count_unread(last, reader) == 0
    assert count_unread(replace(last, sent=(10, 3)), reader) == 2
    assert count_unread(last, replace(reader, consumed=())) is None
