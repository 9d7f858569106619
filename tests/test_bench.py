"""What the benchmark's table says of a figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.row import Row

RATIOS = st.floats(0.01, 100)


@given(RATIOS, RATIOS)
def test_a_figure_is_reached_when_it_is_as_good_as_asked(ratio: float, limit: float) -> None:
    for row in (Row.at_least("", "", "", ratio, limit), Row.at_most("", "", "", ratio, limit)):
        assert row.against_asked is not None
        # Limits are shown with six digits.
        if abs(ratio - limit) > 1e-4 * limit:
            assert row.reached == (row.against_asked > 1)


@pytest.mark.parametrize(("asked", "against"), [(">= 2", 2), ("> 8", 0.5), ("<= 2", 0.5), ("< 8", 2), ("= 4", 1)])
def test_twice_as_good_as_asked_is_two(asked: str, against: float) -> None:
    assert Row("", "", "", 4, asked, True).against_asked == against


def test_what_is_asked_in_words_is_not_compared() -> None:
    assert Row("", "", "", 4, "at most the optimum", True).against_asked is None
