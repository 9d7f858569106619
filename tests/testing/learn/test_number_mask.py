"""Pseudonyms of numbers keep sign, length and order."""

import json
import math
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from slackwater.testing.learn.number_mask import NumberMask, number_of_text

NUMBERS = st.integers() | st.integers(-500, 500) | st.floats(allow_subnormal=False) | st.floats(-99, 99).map(
    lambda number: round(number, 2)
)  # fmt: skip


def pseudonyms(numbers: list[float]) -> list[float]:
    mask = NumberMask()
    for number in numbers:
        mask.pseudonym(number)
    return [mask.pseudonym(number) for number in numbers]


def is_short(number: float) -> bool:
    if not math.isfinite(number):
        return True
    digits = str(int(number)) if number == int(number) and "e" not in repr(number) else repr(number)
    return len(Decimal(digits).as_tuple().digits) == 1


@given(st.lists(NUMBERS))
def test_pseudonyms_are_one_to_one_and_of_the_same_type_and_sign(numbers: list[float]) -> None:
    found = pseudonyms(numbers)
    assert len({*map(repr, found)}) == len({*map(repr, numbers)})
    for number, other in zip(numbers, found, strict=True):
        assert type(number) is type(other)
        assert math.copysign(1, number) == math.copysign(1, other)
        assert math.isfinite(number) == math.isfinite(other)


@given(st.lists(st.integers(1_000, 9_999)))
def test_numbers_of_equal_length_keep_their_order_and_length(numbers: list[int]) -> None:
    found = pseudonyms([*numbers])
    assert sorted({*found}) == [other for _, other in sorted({*zip(numbers, found, strict=True)})]
    assert {len(str(number)) for number in found} <= {4}


@given(NUMBERS)
def test_a_single_number_is_hidden_unless_it_has_one_digit(number: float) -> None:
    (found,) = pseudonyms([number])
    if is_short(number):
        assert repr(found) == repr(number)
    else:
        # The pseudonym depends on the form alone, so it is that of many numbers.
        assert {*str(found)} <= {*"-0123456789.e+"}
        assert {*str(found).partition("e")[0]} <= {*"-01."}


@given(NUMBERS.filter(math.isfinite))
def test_a_text_is_a_number_in_the_form_of_json_alone(number: float) -> None:
    text = json.dumps(number)
    assert number_of_text(text) == (None if "e" in text else number)
    for other in (f" {text}", f"+{text}", f"0{text}", f"{text}0" if "." in text else f"{text}.00"):
        assert number_of_text(other) is None
