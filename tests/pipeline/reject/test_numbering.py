"""Numbers of a batch's messages: consecutive, and convertible back to offsets."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.reject.records import Numbering, numbering_of, record_number, split_record_number
from slackwater.state.records import Position, Range
from slackwater.store.versions.manifest import Input

STRETCHES = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1 << 40), st.integers(1, 50)), min_size=1, max_size=6
).map(lambda each: Numbering(tuple((name, Range(at, low, low + size)) for at, (name, low, size) in enumerate(each))))


@given(STRETCHES)
def test_messages_are_numbered_consecutively_and_each_number_leads_back_to_its_message(places: Numbering) -> None:
    every = [
        (place + offset - each.first, (name, each.partition, offset))
        for place, name, each in places.numbered_ranges
        for offset in range(each.first, each.last)
    ]
    assert [number for number, _ in every] == [*range(len(every))]
    assert [places.locate(number) for number, _ in every] == [where for _, where in every]


@given(st.integers(0, 1 << 42), st.integers(0, (1 << 20) - 1))
def test_a_records_number_can_be_split_into_message_and_row(place: int, row: int) -> None:
    assert split_record_number(record_number(place, row)) == (place, row)


def test_a_batchs_ranges_lie_between_two_positions_and_channels_have_row_counts() -> None:
    before = {
        "topic": Input("topic", (5, 9)),
        "by-a": Input("app-by-a-repartition", (1, 2), "up", 3, consumed=(10, 20)),
    }
    after = {"topic": Position("topic", (5, 12, 2)), "by-a": Position("by-a", (4, 9), 5, (10, 26))}
    assert numbering_of(before, after).ranges == (
        ("topic", Range(1, 9, 12)),
        ("topic", Range(2, 0, 2)),
        # Of partition 0 there are only markers.
        ("by-a", Range(1, 2, 9, rows=6)),
    )
