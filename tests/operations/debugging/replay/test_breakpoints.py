"""Breakpoints in user functions: they stop before the first line, with the arguments, and have no other effect."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import slackwater as sw
from slackwater.errors import Refused
from slackwater.operations.debugging.replay.program import insert_breakpoints
from slackwater.pipeline.api.stage import Stage

PROGRAM = '''
from __future__ import annotations


def passed_on(**options):
    return lambda function: function


@passed_on(
    first=1,
    second=2,
)
def legs(
    flights,
    weather=3,
):
    """Reads both."""
    total = flights + weather
    return total


def made(plus):
    def inner(rows, state):
        return rows + state + plus

    return inner


carriers = made(100)
short = lambda rows: rows
'''


@pytest.fixture
def program(tmp_path: Path) -> ModuleType:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("program", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record names, lines and variables at each breakpoint."""
    found: list[dict[str, Any]] = []

    def hook() -> None:
        frame = sys._getframe(1)
        found.append({"name": frame.f_code.co_name, "line": frame.f_lineno, **frame.f_locals})

    monkeypatch.setattr("sys.breakpointhook", hook)
    return found


def stage(transform: Any, update: Any = None) -> Stage:
    app = sw.App("flights")
    state = sw.update(update, state="n long") if update is not None else None
    reads = sw.topic("flights")
    app.stage(reads=reads, state=state, key="k" if state else None, writes=sw.repartition("out", "k"))(transform)
    return app.stages[transform.__name__]


def test_both_functions_stop_on_the_line_of_their_def(program: ModuleType, stops: list[dict[str, Any]]) -> None:
    assert insert_breakpoints(stage(program.legs, program.carriers)) == ("legs", "inner")
    assert program.legs(4) == 7
    assert program.carriers(1, 2) == 103
    lines = PROGRAM.splitlines()
    assert [lines[stop.pop("line") - 1].strip() for stop in stops] == ["def legs(", "def inner(rows, state):"]
    assert stops == [
        {"name": "legs", "flights": 4, "weather": 3},
        {"name": "inner", "rows": 1, "state": 2, "plus": 100},
    ]


def test_line_numbers_of_errors_do_not_change(program: ModuleType, stops: list[dict[str, Any]]) -> None:
    insert_breakpoints(stage(program.legs))
    with pytest.raises(TypeError) as raised:
        program.legs("text")
    assert PROGRAM.splitlines()[raised.traceback[-1].lineno].strip() == "total = flights + weather"
    assert program.legs.__doc__ == "Reads both."


def test_a_built_in_state_gets_no_breakpoint(program: ModuleType) -> None:
    app = sw.App("flights")
    app.stage(reads=sw.topic("flights"), key="k", state=sw.upsert(by="k"))(program.legs)
    assert insert_breakpoints(app.stages["legs"]) == ("legs",)


def test_a_function_without_source_is_refused(program: ModuleType) -> None:
    with pytest.raises(Refused, match="'<lambda>' is not found at line") as refused:
        insert_breakpoints(stage(program.legs, program.short))
    assert "by a function" in refused.value.hint
    with pytest.raises(Refused, match="has no Python source"):
        insert_breakpoints(stage(program.legs, len))
    Path(program.legs.__code__.co_filename).unlink()
    with pytest.raises(Refused, match="the source of 'legs' cannot be read"):
        insert_breakpoints(stage(program.legs))
