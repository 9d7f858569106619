"""Searches for guilty records, beside what must hold of what they find."""

from collections.abc import Sequence
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.bisect.delta import smallest, turning_point


@given(st.integers(1, 2_000), st.data())
def test_a_sequence_that_stays_bad_turns_at_one_place_found_with_a_logarithm_of_questions(
    count: int, data: st.DataObject
) -> None:
    guilty = data.draw(st.integers(0, count - 1))
    asked: list[int] = []

    def is_bad(number: int) -> bool:
        asked.append(number)
        return number > guilty

    assert turning_point(count, is_bad) == guilty
    assert len(asked) <= ceil(log2(count))
    assert not {0, count} & set(asked)


@given(st.lists(st.booleans(), max_size=200))
def test_a_sequence_that_turns_several_times_is_answered_with_one_of_the_turns(states: list[bool]) -> None:
    states = [False, *states, True]
    at = turning_point(len(states) - 1, lambda number: states[number])
    assert not states[at]
    assert states[at + 1]


@given(st.integers(1, 40), st.data())
def test_what_delta_debugging_leaves_is_bad_and_needs_each_of_its_members(count: int, data: st.DataObject) -> None:
    # Bad are the sets that hold one of these whole: nothing says that what is bad stays bad for fewer.
    causes = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1, max_size=4), min_size=1, max_size=3))

    def is_bad(chosen: Sequence[int]) -> bool:
        return any(cause <= set(chosen) for cause in causes)

    left, is_smallest = smallest(range(count), is_bad, most=10_000)
    assert is_smallest
    assert is_bad(left)
    assert list(left) == sorted(set(left))
    assert not any(is_bad([each for each in left if each != one]) for one in left)


@given(st.integers(2, 40), st.integers(0, 5))
def test_delta_debugging_stops_when_it_has_asked_enough_and_says_so(count: int, most: int) -> None:
    asked: list[Sequence[int]] = []

    def is_bad(chosen: Sequence[int]) -> bool:
        asked.append(chosen)
        return {0, count - 1} <= set(chosen)

    left, is_smallest = smallest(range(count), is_bad, most=most)
    assert len(asked) <= most
    assert {0, count - 1} <= set(left)
    assert is_smallest <= (len(left) == 2)
