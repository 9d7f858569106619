"""Checks of user input: numbers, known words and program files.

Numbers are checked at input, because stored JSON is decoded strictly by type: a count stored as 64000000.0 or an
infinite ratio could not be read back.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path

from ..errors import NotFound, Usage


def nearest_hint(word: str, choices: Iterable[str]) -> str:
    """Return a suggestion to append to an error about an unknown word: `; the nearest is 'hourly'`; empty if none."""
    matches = get_close_matches(word, tuple(choices), n=1, cutoff=0.4)
    return f"; the nearest is {matches[0]!r}" if matches else ""


def check_whole(subject: str, value: object, minimum: int, maximum: int | None = None, *, hint: str = "") -> int:
    """Return the value if it is a whole number (Python's or numpy's) from `minimum` to `maximum`; None is no limit.

    Otherwise raises `Usage`, with a message that begins with `subject` and ends with `hint` or a more specific hint.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and _is_within(int(value), minimum, maximum):
        return int(value)
    limit = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
    only_written_so = isinstance(value, float) and value.is_integer() and _is_within(value, minimum, maximum)
    raise Usage(
        f"{subject} is {value!r}; expected a whole number, {limit}",
        hint=f"write it without a fraction: {value:.0f}" if only_written_so else hint,
    )


def check_finite(subject: str, value: object, minimum: float, maximum: float | None = None) -> float:
    """Return `value` as a float. Raises `Usage` unless it is a finite number from `minimum` to `maximum`.

    A `maximum` of None is no limit; numpy's numbers are accepted. The message begins with `subject`.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int that no float can hold
            number = float(value)
            if math.isfinite(number) and _is_within(number, minimum, maximum):
                return number
    limit = f"{minimum:g} or more" if maximum is None else f"{minimum:g} to {maximum:g}"
    raise Usage(
        f"{subject} is {value!r}; expected a finite number, {limit}",
        hint="for no limit, use a large number such as 1e9" if value == math.inf else "",
    )


def _is_within(number: float, minimum: float, maximum: float | None) -> bool:
    return number >= minimum and (maximum is None or number <= maximum)


def expand_home(subject: str, path: str) -> Path:
    """Return the path with a `~` or `~user` at its start replaced by the home folder.

    Raises `Usage`, with a message that begins with `subject`, if this machine does not know the user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise Usage(
            f"{subject} is {path!r}: this machine knows no home folder of that user", hint="name the absolute path"
        ) from None


def find_program_file(code: str | Path) -> Path:
    """Return the path of the program file that `code` names, as `FILE` or `FILE:FUNCTION`.

    Raises `NotFound` if there is no such file, and `Usage` for a folder.
    """
    file = Path(code)
    if not file.exists() and (colon := str(code).rpartition(":")[0]):
        file = Path(colon)
    if file.is_dir():
        programs = ", ".join(sorted(path.name for path in file.glob("*.py"))[:8]) or "none"
        raise Usage(
            f"{file} is a folder; expected a Python file that declares a slackwater.App",
            hint=f"name the file; the Python files in it: {programs}",
        )
    if not file.is_file():
        folder = file.absolute().parent
        raise NotFound("Python file", str(file), [path.name for path in folder.glob("*.py")])
    return file
