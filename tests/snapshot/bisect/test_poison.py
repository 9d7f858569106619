"""The search for items that fail, against its definition: the rest passes, and no item can be given back."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.bisect.poison import CHUNKS, Ranges, Search, TooMany, num_items, split, without


class Trials:
    """Choices of items, of which some fail by themselves and some together."""

    def __init__(self, bad: Sequence[frozenset[int]]) -> None:
        self.bad = bad
        self.asked = 0

    def __call__(self, choices: Sequence[Ranges]) -> int | None:
        self.asked += 1
        return next((place for place, one in enumerate(choices) if self.fails(one)), None)

    def fails(self, items: Ranges) -> bool:
        held = {item for first, last in items for item in range(first, last)}
        return any(group <= held for group in self.bad)


def found(count: int, trials: Trials, width: int, most: int = 1_000) -> tuple[int, ...]:
    return Search(trials, width, most).all(((0, count),))


@given(st.data(), st.integers(1, 5_000), st.integers(2, 16))
def test_items_that_fail_by_themselves_are_found_all_and_with_few_trials(
    data: st.DataObject, count: int, width: int
) -> None:
    poison = data.draw(st.sets(st.integers(0, count - 1), max_size=12))
    trials = Trials([frozenset({item}) for item in poison])
    assert found(count, trials, width) == tuple(sorted(poison))
    deep = math.ceil(math.log(-(-count // CHUNKS), width)) + 1
    assert trials.asked <= len(poison) * (deep + 2) + CHUNKS + 2


@given(st.data(), st.integers(1, 60), st.integers(2, 16))
def test_without_what_is_found_the_rest_passes_and_nothing_can_be_given_back(
    data: st.DataObject, count: int, width: int
) -> None:
    group = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4)
    trials = Trials(data.draw(st.lists(group, max_size=5)))
    left_out = found(count, trials, width)
    rest = without(((0, count),), left_out)
    assert not trials.fails(rest)
    assert all(trials.fails(without(((0, count),), set(left_out) - {item})) for item in left_out)


@given(st.integers(1, 400_000), st.data())
def test_one_item_among_many_takes_a_logarithm_of_trials(count: int, data: st.DataObject) -> None:
    item = data.draw(st.integers(0, count - 1))
    asked = []

    def fails(choices: Sequence[Ranges]) -> int | None:
        asked.append(choices)
        return next((n for n, one in enumerate(choices) if any(a <= item < b for a, b in one)), None)

    assert Search(fails, 16, 1).first(((0, count),)) == item
    assert len(asked) <= math.ceil(math.log(count, 16)) + 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))), st.integers(1, 9))
def test_pieces_hold_all_items_in_their_order(gaps: list[tuple[int, int]], pieces: int) -> None:
    at, items = 0, []
    for gap, size in gaps:
        items.append((at + gap + 1, at + gap + 1 + size))
        at = items[-1][1]
    cut = split(tuple(items), pieces)
    numbers = [n for piece in cut for first, last in piece for n in range(first, last)]
    assert numbers == [n for first, last in items for n in range(first, last)]
    assert len(cut) <= pieces
    assert all(num_items(piece) for piece in cut)


def test_a_batch_that_fails_everywhere_is_given_up_at_the_limit() -> None:
    trials = Trials([frozenset({item}) for item in range(10_000)])
    with pytest.raises(TooMany) as caught:
        found(10_000, trials, 16, most=50)
    assert len(caught.value.found) == 51
    assert trials.asked <= 51 * 6
