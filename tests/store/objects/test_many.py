"""Concurrent requests return answers in order."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.store.objects.many import map_concurrently


@given(things=st.lists(st.integers(), max_size=40), workers=st.integers(1, 4), ahead=st.integers(0, 8))
def test_answers_are_in_order_and_only_a_bounded_number_waits_to_be_consumed(
    things: list[int], workers: int, ahead: int
) -> None:
    taken: list[int] = []

    def asked() -> Iterator[int]:
        for number, thing in enumerate(things):
            assert number - len(taken) <= ahead + 1
            yield thing

    for thing, answer in zip(
        things, map_concurrently(lambda thing: thing + 1, asked(), workers, max_unread=ahead), strict=True
    ):
        assert answer == thing + 1
        taken.append(answer)


def test_an_error_is_raised_at_its_position() -> None:
    answers = map_concurrently(lambda thing: 6 // thing, [1, 2, 0, 3])
    assert [next(answers), next(answers)] == [6, 3]
    with pytest.raises(ZeroDivisionError):
        next(answers)
