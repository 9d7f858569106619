"""Checks of what programs and people give: numbers that are whole or finite, words that are known, what is installed.

Numbers are checked where they are given. What is stored is read by its type, and neither 64000000.0 for a count nor a
ratio that JSON has no word for would be taken back.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path

from ..errors import NotFound, Usage


def installing(extras: str) -> str:
    """The hint that says how to install what these extras bring. There is no release yet: it is done from a clone."""
    return f"in a clone of slackwater: pip install -c constraints.txt '.[{extras}]'"


def nearest(word: str, known: Iterable[str]) -> str:
    """`; the nearest is 'hourly'`, for the end of an error about a word that is not known; empty without one."""
    near = get_close_matches(word, tuple(known), n=1, cutoff=0.4)
    return f"; the nearest is {near[0]!r}" if near else ""


def whole(what: str, value: object, least: int, most: int | None = None) -> int:
    """The value, when it is a whole number (also one of numpy's) from `least` to `most`; None for no limit.

    Raises `Usage`, which begins with `what`, where it is something else, too small or too large.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and _lies(int(value), least, most):
        return int(value)
    limit = f"{least} or more" if most is None else f"{least} to {most}"
    only_written_so = isinstance(value, float) and value.is_integer() and _lies(value, least, most)
    raise Usage(
        f"{what} is {value!r}; expected a whole number, {limit}",
        hint=f"write it without a fraction: {value:.0f}" if only_written_so else "",
    )


def finite(what: str, value: object, least: float, most: float | None = None) -> float:
    """The value as a float, when it is a finite number (also one of numpy's) from `least` to `most`; None for no limit.

    Raises `Usage`, which begins with `what`, where it is something else, infinite, no number (NaN), too small or large.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int that no float can hold
            number = float(value)
            if math.isfinite(number) and _lies(number, least, most):
                return number
    limit = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
    raise Usage(
        f"{what} is {value!r}; expected a finite number, {limit}",
        hint="for no limit, write a number that is never reached, such as 1e9" if value == math.inf else "",
    )


def _lies(number: float, least: float, most: float | None) -> bool:
    return number >= least and (most is None or number <= most)


def program_file(code: str | Path) -> Path:
    """The file of a program, which `FILE`, or `FILE:FUNCTION`, names, as it was named.

    Raises `NotFound` where there is none, and `Usage` where it is a folder.
    """
    file = Path(code)
    if not file.exists() and (colon := str(code).rpartition(":")[0]):
        file = Path(colon)
    if file.is_dir():
        programs = ", ".join(sorted(each.name for each in file.glob("*.py"))[:8]) or "none"
        raise Usage(
            f"{file} is a folder; expected a Python file that declares a slackwater.App",
            hint=f"name the file; the Python files in it: {programs}",
        )
    if not file.is_file():
        folder = file.absolute().parent
        raise NotFound("Python file", str(file), [each.name for each in folder.glob("*.py")])
    return file
