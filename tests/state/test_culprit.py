"""Searches for failing items, compared with their definitions: the rest passes, and no item can be added back."""

from collections.abc import Sequence
from itertools import combinations
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.state.failing import (
    Items,
    TooManyFailing,
    find_culprits,
    find_early_turning_point,
    find_late_turning_point,
    find_smallest_failing,
    find_turning_point,
    minimize_failing,
)


class Trials:
    """Groups of items, some of which fail alone and some together."""

    def __init__(self, bad: Sequence[frozenset[int]]) -> None:
        self.bad = bad
        self.groups = 0
        self.rounds = 0
        self.widest = 0

    def __call__(self, groups: Sequence[Items]) -> list[bool]:
        self.groups += len(groups)
        self.rounds += 1
        self.widest = max(self.widest, len(groups))
        return [self.fails(set(group.tolist())) for group in groups]

    def fails(self, items: set[int]) -> bool:
        return any(group <= items for group in self.bad)


@given(st.data(), st.integers(1, 5_000))
def test_items_that_fail_by_themselves_are_found_all_in_a_logarithm_of_rounds(data: st.DataObject, count: int) -> None:
    poison = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=12))
    trials = Trials([frozenset({item}) for item in poison])
    assert find_culprits(count, trials, 1_000) == tuple(sorted(poison))
    deep = ceil(log2(count))
    assert trials.rounds <= deep + 1
    assert trials.groups <= 2 * len(poison) * deep + 1


@given(st.data(), st.integers(1, 60))
def test_without_what_is_found_the_rest_passes_and_nothing_can_be_given_back(data: st.DataObject, count: int) -> None:
    group = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4)
    trials = Trials(data.draw(st.lists(group, min_size=1, max_size=5)))
    left_out = set(find_culprits(count, trials, 1_000))
    rest = set(range(count)) - left_out
    assert not trials.fails(rest)
    assert all(trials.fails(rest | {item}) for item in left_out)


@given(st.integers(2, 5_000))
def test_what_passes_when_it_is_tried_again_leaves_nothing_out(count: int) -> None:
    assert find_culprits(count, Trials([]), 1_000) == ()


@given(st.integers(1, 40), st.integers(200, 10_000))
def test_a_batch_that_fails_everywhere_is_given_up_early(most: int, count: int) -> None:
    trials = Trials([frozenset({item}) for item in range(count)])
    with pytest.raises(TooManyFailing) as caught:
        find_culprits(count, trials, most)
    assert len(caught.value.items) > most
    assert trials.groups <= 4 * most + 4
    assert trials.widest <= 2 * most


@given(st.integers(1, 2_000), st.data())
def test_a_sequence_that_stays_bad_turns_at_one_place_found_with_a_logarithm_of_questions(
    count: int, data: st.DataObject
) -> None:
    guilty = data.draw(st.integers(0, count - 1))
    asked: list[int] = []

    def is_bad(number: int) -> bool:
        asked.append(number)
        return number > guilty

    assert find_turning_point(count, is_bad) == guilty
    assert len(asked) <= ceil(log2(count))
    assert not {0, count} & set(asked)


@given(st.lists(st.booleans(), max_size=200))
def test_a_sequence_that_turns_several_times_is_answered_with_one_of_the_turns(states: list[bool]) -> None:
    states = [False, *states, True]
    at = find_turning_point(len(states) - 1, lambda number: states[number])
    assert not states[at]
    assert states[at + 1]


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 50))
def test_of_few_beginnings_the_first_that_is_bad_is_found_and_of_others_a_turn(states: list[bool], scan: int) -> None:
    states = [False, *states, True]
    at = find_early_turning_point(len(states) - 1, lambda size: states[size], scan=scan)
    assert not states[at]
    assert states[at + 1]
    if len(states) - 1 <= scan:
        assert at + 1 == states.index(True)


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 200))
def test_the_last_turn_is_one_and_the_last_of_all_where_the_end_is_reached(states: list[bool], stays: int) -> None:
    states = [False, *states, True]
    at = find_late_turning_point(len(states) - 1, lambda size: states[size])
    assert not states[at]
    assert states[at + 1]
    if not states[-2]:
        assert at == len(states) - 2
    # What turns once is found exactly.
    once = [False] * len(states) + [True] * stays
    asked: list[int] = []
    assert find_late_turning_point(len(once) - 1, lambda size: asked.append(size) or once[size]) == len(states) - 1  # type: ignore[func-returns-value]
    assert not {0, len(once) - 1} & set(asked)
    assert len(asked) <= 2 * ceil(log2(len(once))) + 1


@given(st.integers(1, 40), st.data())
def test_what_delta_debugging_leaves_is_bad_and_needs_each_of_its_members(count: int, data: st.DataObject) -> None:
    # Bad are the sets that hold one of these whole: nothing says that what is bad stays bad for fewer.
    causes = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1, max_size=4), min_size=1, max_size=3))

    def is_bad(chosen: Sequence[int]) -> bool:
        return any(cause <= set(chosen) for cause in causes)

    left, is_smallest = minimize_failing(range(count), is_bad, max_tries=10_000)
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

    left, is_smallest = minimize_failing(range(count), is_bad, max_tries=most)
    assert len(asked) <= most
    assert {0, count - 1} <= set(left)
    assert is_smallest <= (len(left) == 2)


@given(st.integers(1, 7), st.data())
def test_a_smallest_failing_set_is_no_larger_than_any_that_fails(count: int, data: st.DataObject) -> None:
    subsets = [subset for size in range(count) for subset in combinations(range(count), size)]
    failing = {*data.draw(st.sets(st.sampled_from(subsets))), tuple(range(count))}
    least = min(map(len, failing))
    tried = 0

    def is_bad(some: Sequence[int]) -> bool:
        nonlocal tried
        tried += 1
        return tuple(some) in failing

    left, is_smallest, is_minimal = find_smallest_failing(range(count), is_bad, max_tries=1 << count)
    assert tuple(left) in failing
    assert (len(left), is_smallest, is_minimal) == (least, True, True)
    most, tried = data.draw(st.integers(0, 20)), 0
    left, is_smallest, is_minimal = find_smallest_failing(range(count), is_bad, max_tries=most)
    assert tuple(left) in failing
    assert tried <= 2 * most + 1
    assert not is_smallest or len(left) == least
    if is_minimal:
        assert not any(tuple(item for item in left if item != out) in failing for out in left)
