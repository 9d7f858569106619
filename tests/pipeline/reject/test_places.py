"""Places of a batch's messages: numbered without gaps, and found again."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.reject.places import Places, Stretch, left_out, place_of, places_of, record_number
from slackwater.pipeline.source.planner import Position
from slackwater.store.versions.manifest import Input

STRETCHES = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1 << 40), st.integers(1, 50)), min_size=1, max_size=6
).map(lambda each: Places(tuple(Stretch(name, at, low, low + size) for at, (name, low, size) in enumerate(each))))


@given(STRETCHES, st.data())
def test_every_place_is_one_message_and_readings_bring_exactly_those_that_are_asked_for(
    places: Places, data: st.DataObject
) -> None:
    ((first, count),) = places.all
    every = [places.at(place) for place in range(first, count)]
    assert len({(each.input, each.partition, offset) for each, offset in every}) == count
    low = data.draw(st.integers(0, count - 1))
    high = data.draw(st.integers(low + 1, count))
    read = [
        (each.input, each.partition, offset)
        for each in places.readings(((low, high),))
        for offset in range(each.first, each.last)
    ]
    assert read == [(each.input, each.partition, offset) for each, offset in every[low:high]]


@given(st.integers(0, 1 << 42), st.integers(0, (1 << 20) - 1))
def test_a_records_number_says_its_message_and_its_row(place: int, row: int) -> None:
    assert place_of(record_number(place, row)) == (place, row)


def test_what_is_left_out_is_told_by_input_partition_offset_and_row() -> None:
    places = Places((Stretch("a", 0, 10, 12), Stretch("b", 3, 7, 9, rows=40)))
    numbers = [record_number(1, 0), record_number(3, 5), record_number(3, 6)]
    assert left_out(numbers, places) == {"a": [(0, 11, 0)], "b": [(3, 8, 5), (3, 8, 6)]}


def test_a_batch_reads_what_lies_between_two_positions_and_knows_the_rows_of_channels() -> None:
    before = {
        "topic": Input("topic", (5, 9)),
        "by-a": Input("app-by-a-repartition", (1, 2), "up", 3, consumed=(10, 20)),
    }
    after = {"topic": Position("topic", (5, 12, 2)), "by-a": Position("by-a", (4, 9), 5, (10, 26))}
    assert places_of(before, after).stretches == (
        Stretch("topic", 1, 9, 12),
        Stretch("topic", 2, 0, 2),
        # Of partition 0 there are only markers.
        Stretch("by-a", 1, 2, 9, rows=6),
    )
