"""The search for items that fail, against its definition: the rest passes, and no item can be given back."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.fold.culprit import Items, TooMany, culprits


class Trials:
    """Groups of items, of which some fail by themselves and some together."""

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
    assert culprits(count, trials, 1_000) == tuple(sorted(poison))
    deep = math.ceil(math.log2(count))
    assert trials.rounds <= deep + 1
    assert trials.groups <= 2 * len(poison) * deep + 1


@given(st.data(), st.integers(1, 60))
def test_without_what_is_found_the_rest_passes_and_nothing_can_be_given_back(data: st.DataObject, count: int) -> None:
    group = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4)
    trials = Trials(data.draw(st.lists(group, min_size=1, max_size=5)))
    left_out = set(culprits(count, trials, 1_000))
    rest = set(range(count)) - left_out
    assert not trials.fails(rest)
    assert all(trials.fails(rest | {item}) for item in left_out)


@given(st.integers(2, 5_000))
def test_what_passes_when_it_is_tried_again_leaves_nothing_out(count: int) -> None:
    assert culprits(count, Trials([]), 1_000) == ()


@given(st.integers(1, 40), st.integers(200, 10_000))
def test_a_batch_that_fails_everywhere_is_given_up_early(most: int, count: int) -> None:
    trials = Trials([frozenset({item}) for item in range(count)])
    with pytest.raises(TooMany) as caught:
        culprits(count, trials, most)
    assert len(caught.value.found) > most
    assert trials.groups <= 4 * most + 4
    assert trials.widest <= 2 * most
