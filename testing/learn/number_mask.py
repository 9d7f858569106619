"""Pseudonyms of numbers, with equal sign, number of digits and order. Different numbers get different pseudonyms."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from decimal import Decimal

_JSON = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_MAX_PLAIN = 10**16
"""Absolute value from which on whole floats are written with an exponent."""
_FLOAT_DIGITS = 15
"""Number of digits up to which all decimal numbers are different floats."""
_Form = tuple[int, int, int]
"""Sign, number of digits, and exponent of the last digit."""


@dataclass
class NumberMask:
    """Pseudonyms of numbers. They are final once `pseudonym` has been called for all numbers."""

    _numbers: dict[_Form, list[Decimal]] = field(default_factory=dict)
    """Sorted absolute values by form."""

    def pseudonym(self, number: float) -> float:
        """Return the pseudonym of a number. Numbers of a single digit, infinities and NaN are not changed.

        The pseudonyms of numbers of one form are evenly distributed over this form, in the order of the numbers.
        """
        if isinstance(number, float) and not math.isfinite(number):
            return number
        exact = _decimal(number)
        sign, length, exponent = form = _form(exact)
        if length == 1:
            return number
        others, own = self._numbers.setdefault(form, []), exact.copy_abs()
        rank = bisect_left(others, own)
        if rank == len(others) or others[rank] != own:
            insort(others, own)
        # With a point or an exponent, the last digit is not 0: otherwise the number would have a shorter form.
        available = 9 * 10 ** (length - 1) if exponent == 0 else 81 * 10 ** (length - 2)
        place = rank * available // len(others)
        digits: int = 10 ** (length - 1) + (place if exponent == 0 else place // 9 * 10 + place % 9 + 1)
        if isinstance(number, int):
            return -digits if sign else digits
        result = float(f"{'-' * sign}{digits}e{exponent}")
        return result if math.isfinite(result) else number


def number_of_text(text: str) -> float | None:
    """Return the number that a text contains in JSON's format; None for other text, such as 007."""
    if _JSON.fullmatch(text) is None:
        return None
    try:
        number: float = json.loads(text)
    except ValueError:
        return None
    return number if json.dumps(number) == text else None


def _decimal(number: float) -> Decimal:
    """Return a number as a decimal with the shortest digits; whole numbers have no decimal point."""
    if isinstance(number, int) or (number.is_integer() and abs(number) < _MAX_PLAIN):
        return Decimal(int(number))
    return Decimal(repr(number))


def _form(number: Decimal) -> _Form:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101  the number is finite
    more = max(len(digits) - _FLOAT_DIGITS, 0) if exponent != 0 else 0
    return sign, len(digits) - more, exponent + more
