"""Conditions of Python and Arrow report their outcomes, and the program's results stay the same."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from slackwater.testing.learn.branches import Branch, instrument

FILE = Path("program.py")
SOURCE = '''
"""A program."""
from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

if "outside of functions":
    pass


def scalar(x):
    """Return a word."""
    if x > 10 and x != 12:
        return "big"
    try:
        word = "odd" if 1 // (x % 2) else "even"
    except ZeroDivisionError:
        word = "none"
    return [y for y in [word] * x if y != "none"]


def matched(x):
    match x:
        case 1 | 2:
            return "few"
        case _:
            return "many"


def masks(rows):
    kept = rows.filter(pc.greater(rows["x"], 2))
    return pc.if_else(pc.equal(kept["x"], 3), 1, 0).to_pylist(), np.where(np.array([True, True]), 1, 2).tolist()


def text(rows):
    return rows.where("x is not null")


def nothing(words):
    return [*filter(None, words)]


class Sizes:
    def __of(self, x):
        return "large" if x > 99 else "small"

    def of(self, x):
        return self.__of(x)
'''


def reached(tmp_path: Path, call: Any) -> tuple[Any, dict[str, set[bool]]]:
    """Return what a call of the instrumented program returns, and the outcomes of each condition."""
    program, folder = instrument(SOURCE.encode(), FILE), tmp_path / "reached"
    folder.mkdir()
    names: dict[str, Any] = {}
    exec(program.compiled(folder), names)  # noqa: S102  the source above
    result = call(names)
    outcomes: dict[str, set[bool]] = {branch.text: set() for branch in program.branches}
    for branch in program.reached(folder):
        outcomes[branch.text].add(branch.outcome)
    return result, outcomes


def plain() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(SOURCE, "program.py", "exec", dont_inherit=True), names)  # noqa: S102  the source above
    return names


def test_every_condition_of_a_function_is_a_branch_in_two_outcomes() -> None:
    branches = instrument(SOURCE.encode(), FILE).branches
    assert {branch.text for branch in branches} == {
        "x > 10 and x != 12",
        "1 // (x % 2)",
        "the error is handled",
        "y != 'none'",
        "pc.greater(rows['x'], 2)",
        "pc.equal(kept['x'], 3)",
        "np.array([True, True])",
        "'x is not null'",
        "x > 99",
        "case 1 | 2",
        "case _",
    }
    assert len(branches) == 2 * 9 - 1 + 2
    assert min(branches) == Branch(14, 7, False, "x > 10 and x != 12")


def test_outcomes_of_python_are_reported(tmp_path: Path) -> None:
    for number, x in enumerate((11, 3, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        result, outcomes = reached(folder, lambda names, x=x: names["scalar"](x))
        assert result == plain()["scalar"](x)
        assert outcomes["x > 10 and x != 12"] == {x == 11}
        assert outcomes["the error is handled"] == ({True} if x == 2 else set())
        assert outcomes["1 // (x % 2)"] == ({True} if x == 3 else set())
        assert outcomes["y != 'none'"] == {11: set(), 3: {True}, 2: {False}}[x]
        assert outcomes["pc.equal(kept['x'], 3)"] == set()


def test_outcomes_of_masks_are_those_of_their_rows(tmp_path: Path) -> None:
    rows = pa.table({"x": [1, None, 3, 3]})
    result, outcomes = reached(tmp_path, lambda names: names["masks"](rows))
    assert result == plain()["masks"](rows) == ([1, 1], [1, 1])
    assert outcomes["pc.greater(rows['x'], 2)"] == {True, False}
    assert outcomes["pc.equal(kept['x'], 3)"] == {True}
    assert outcomes["np.array([True, True])"] == {True}


def test_cases_are_reported(tmp_path: Path) -> None:
    result, outcomes = reached(tmp_path, lambda names: names["matched"](3))
    assert result == plain()["matched"](3) == "many"
    assert (outcomes["case _"], outcomes["case 1 | 2"]) == ({True}, set())


def test_outcomes_of_methods_are_reported(tmp_path: Path) -> None:
    result, outcomes = reached(tmp_path, lambda names: names["Sizes"]().of(100))
    assert result == plain()["Sizes"]().of(100) == "large"
    assert outcomes["x > 99"] == {True}
