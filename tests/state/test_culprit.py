"""Searches for failing items: the other items pass, and none of the found items can be added back."""

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
    """Groups of items. Some items fail alone, and some only together."""

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
def test_all_items_that_fail_alone_are_found_in_logarithmically_many_rounds(data: st.DataObject, count: int) -> None:
    poison = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=12))
    trials = Trials([frozenset({item}) for item in poison])
    assert find_culprits(count, trials, 1_000) == tuple(sorted(poison))
    deep = ceil(log2(count))
    assert trials.rounds <= deep + 1
    assert trials.groups <= 2 * len(poison) * deep + 1


@given(st.data(), st.integers(1, 60))
def test_without_the_found_items_the_rest_passes_and_none_can_be_added_back(data: st.DataObject, count: int) -> None:
    group = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4)
    trials = Trials(data.draw(st.lists(group, min_size=1, max_size=5)))
    left_out = set(find_culprits(count, trials, 1_000))
    rest = set(range(count)) - left_out
    assert not trials.fails(rest)
    assert all(trials.fails(rest | {item}) for item in left_out)


@given(st.integers(2, 5_000))
def test_nothing_is_found_if_all_items_pass_on_retry(count: int) -> None:
    assert find_culprits(count, Trials([]), 1_000) == ()


@given(st.integers(1, 40), st.integers(200, 10_000))
def test_a_batch_with_too_many_failing_items_is_given_up_early(most: int, count: int) -> None:
    trials = Trials([frozenset({item}) for item in range(count)])
    with pytest.raises(TooManyFailing) as caught:
        find_culprits(count, trials, most)
    assert len(caught.value.items) > most
    assert trials.groups <= 4 * most + 4
    assert trials.widest <= 2 * most


@given(st.integers(1, 2_000), st.data())
def test_a_turning_point_to_bad_is_found_with_logarithmically_many_evaluations(count: int, data: st.DataObject) -> None:
    guilty = data.draw(st.integers(0, count - 1))
    asked: list[int] = []

    def is_bad(number: int) -> bool:
        asked.append(number)
        return number > guilty

    assert find_turning_point(count, is_bad) == guilty
    assert len(asked) <= ceil(log2(count))
    assert not {0, count} & set(asked)


@given(st.lists(st.booleans(), max_size=200))
def test_of_several_turning_points_one_is_found(states: list[bool]) -> None:
    states = [False, *states, True]
    at = find_turning_point(len(states) - 1, lambda number: states[number])
    assert not states[at]
    assert states[at + 1]


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 50))
def test_the_first_turning_point_is_found_among_few_items_and_any_among_many(states: list[bool], scan: int) -> None:
    states = [False, *states, True]
    at = find_early_turning_point(len(states) - 1, lambda size: states[size], scan=scan)
    assert not states[at]
    assert states[at + 1]
    if len(states) - 1 <= scan:
        assert at + 1 == states.index(True)


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 200))
def test_the_late_search_finds_a_turning_point_and_always_one_at_the_end(states: list[bool], stays: int) -> None:
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
def test_the_minimum_of_delta_debugging_is_bad_and_needs_each_of_its_items(count: int, data: st.DataObject) -> None:
    # A set is bad if it contains one of these completely: a subset of a bad set need not be bad.
    causes = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1, max_size=4), min_size=1, max_size=3))

    def is_bad(chosen: Sequence[int]) -> bool:
        return any(cause <= set(chosen) for cause in causes)

    left, is_smallest = minimize_failing(range(count), is_bad, max_tries=10_000)
    assert is_smallest
    assert is_bad(left)
    assert list(left) == sorted(set(left))
    assert not any(is_bad([each for each in left if each != one]) for one in left)


@given(st.integers(2, 40), st.integers(0, 5))
def test_delta_debugging_stops_after_its_maximum_of_tries_and_reports_that(count: int, most: int) -> None:
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
