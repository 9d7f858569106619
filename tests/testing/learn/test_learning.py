"""Learned tests reach the branches of the examples, pass, and fail after a change of the program."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from slackwater.errors import SlackwaterError
from slackwater.testing import Ran, load, run
from slackwater.testing.learn.learn import Learned, learn_tests

# About sixty runs per example, each of several stages: minutes, and many on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.ci, pytest.mark.usefixtures("one_spark"), pytest.mark.timeout(7_200)]

EXAMPLES = Path(__file__).parents[3] / "examples"


def time(minute: int) -> str:
    return f"2013-01-{1 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:00Z"


def flights() -> list[bytes]:
    """Return invented flights like those of the example's topic. Some did not arrive, and one is cut off."""
    random, events = Random(7), list[bytes]()
    for number in range(30):
        late = random.choice([-5.0, 0.0, 20.0, 90.0, 200.0])
        event: dict[str, Any] = {
            "time": time(20 * number), "carrier": random.choice(["UA", "DL"]), "flight": number,
            "tailnum": random.choice(["N14228", "N24211", "N619AA", None]),
            "origin": random.choice(["EWR", "EWR", "EWR", None]), "dest": "IAH",
            "dep_delay": late, "arr_delay": random.choice([late, late + 10, None]),
        }  # fmt: skip
        events.append(json.dumps(event).encode())
    events.insert(15, events[0][:40])
    return events


def weather() -> list[bytes]:
    random = Random(8)
    return [
        json.dumps({
            "airport": random.choice(["EWR", "JFK", None]), "time": time(60 * number), "temp": 39.0, "wind_speed": 10.0,
            "precip": random.choice([0.0, 0.2]), "visib": random.choice([1.0, 10.0]),
        }).encode()
        for number in range(12)
    ]  # fmt: skip


def orders() -> list[bytes]:
    """Return orders of two customers; one amount is not a number."""
    amounts = [*range(100, 111), "seven"]
    return [
        json.dumps({"customer": ("Joan", "Ravi")[n % 2], "cents": cents}).encode() for n, cents in enumerate(amounts)
    ]


class Change(NamedTuple):
    before: str
    after: str
    condition: str = ""
    """The changed condition as `learn-tests` shows it, if the change concerns only one."""


WHOLE = "tailnum is not null and arr_delay is not null"


@dataclass(frozen=True)
class Example:
    """An example's program, its input, and changes of the program."""

    topics: Callable[[], Mapping[str, list[bytes]]]
    max_runs: int
    changes: tuple[Change, ...]


PROGRAMS = {
    "flights": Example(
        lambda: {"flights": flights()},
        12,
        (
            Change(WHOLE, "tailnum is not null", repr(WHOLE)),
            Change('{"mode": "FAILFAST"}', '{"mode": "PERMISSIVE"}'),
            Change("np.append(first[1:], True)", "first", "last"),
            Change("12 * 3600", "0 * 3600"),
            Change("pc.max_element_wise(pc.min", "pc.min_element_wise(pc.min"),
            Change(
                "pc.fill_null(recent, False), owed", "pc.fill_null(recent, True), owed", "pc.fill_null(recent, False)"
            ),
            Change("np.bincount(key))", "1)"),
            Change("greater_equal(inherited, 60)", "greater(inherited, 600)", "pc.greater_equal(inherited, 60)"),
            Change('worst=sw.max("arr_delay")', 'worst=sw.min("arr_delay")'),
            Change('delay=sw.sum("arr_delay")', 'delay=sw.max("arr_delay")'),
            Change('last_flight=sw.max("time")', 'last_flight=sw.min("time")'),
        ),
    ),
    "weather": Example(
        lambda: {"flights": flights(), "weather": weather()},
        4,
        (
            Change("origin is not null and time is not null", "time is not null"),
            Change("pc.or_(pc.is_valid(observed), gone_by)", "pc.is_valid(observed)"),
            Change("leaving, 0, waiting", "leaving, waiting, waiting"),
            Change('F.col("precip") > 0', 'F.col("precip") > 9', "rain"),
            Change('F.col("visib") < 3', 'F.col("visib") > 3', "fog"),
            Change('rows["dep_delay"], rows["arr_delay"])', 'rows["arr_delay"], rows["dep_delay"])'),
        ),
    ),
    "orders": Example(
        lambda: {"orders": orders()},
        8,
        (
            Change('{"mode": "FAILFAST"}', '{"mode": "PERMISSIVE"}'),
            Change('cents=sw.sum("cents")', 'cents=sw.max("cents")'),
            Change("orders=sw.count()", 'orders=sw.last("cents", by="cents")'),
        ),
    ),
}


class LearnedExample(NamedTuple):
    name: str
    program: Path
    history: Ran
    learned: Learned


def learned(program: Path, history: Ran) -> Learned:
    max_runs = PROGRAMS[program.stem].max_runs
    return learn_tests(history.app, program, program.parent / "learned", max_runs=max_runs, on_progress=print)


@pytest.fixture(scope="module", params=[*PROGRAMS])
def example(
    request: pytest.FixtureRequest, one_spark: None, tmp_path_factory: pytest.TempPathFactory
) -> LearnedExample:
    """Return a copy of an example's program, and the tests that were learned for it."""
    name: str = request.param
    program = tmp_path_factory.mktemp(name) / f"{name}.py"
    program.write_bytes((EXAMPLES / program.name).read_bytes())
    history = run(load(program), PROGRAMS[name].topics(), max_records=20)
    return LearnedExample(name, program, history, learned(program, history))


def failing(found: Learned, *, all_of_them: bool = True) -> set[int]:
    """Run the functions of a learned test file. Returns the numbers of those that fail, or of one of them."""
    names, numbers = runpy.run_path(str(found.file)), set[int]()
    for number in range(len(found.tests), 0, -1):
        try:
            names[f"test_{number}"]()
        except (AssertionError, SlackwaterError):
            numbers.add(number)
            if not all_of_them:
                break
    return numbers


def test_nine_tenths_of_the_branches_are_reached_and_the_tests_pass(example: LearnedExample) -> None:
    found = example.learned
    assert len(found.reached) >= 0.9 * (len(found.reached) + len(found.unreached)), found.unreached
    assert failing(found) == set()


def test_values_are_hidden(example: LearnedExample) -> None:
    text = example.learned.file.read_text()
    for value in ("N14228", "Joan", "IAH"):
        assert value not in text


@pytest.mark.parametrize("example", ["orders"], indirect=True)
def test_the_same_command_writes_the_same_file(example: LearnedExample) -> None:
    text = example.learned.file.read_text()
    assert learned(example.program, example.history).file.read_text() == text


def test_a_change_of_the_program_makes_exactly_its_tests_fail(example: LearnedExample) -> None:
    source, survived, elsewhere = example.program.read_text(), list[str](), list[str]()
    try:
        for before, after, condition in PROGRAMS[example.name].changes:
            assert source.count(before) >= 1, before
            example.program.write_text(source.replace(before, after))
            failed = failing(example.learned, all_of_them=bool(condition))
            own = {
                number
                for number, test in enumerate(example.learned.tests, 1)
                if not condition or any(branch.text == condition for branch in test.branches)
            }
            if not failed:
                survived.append(after)
            elsewhere += [f"{after}: {example.learned.tests[number - 1]}" for number in failed - own]
    finally:
        example.program.write_text(source)
    assert (survived, elsewhere) == ([], [])


@pytest.mark.parametrize("example", ["orders"], indirect=True)
def test_pytest_runs_the_file_without_kafka(example: LearnedExample) -> None:
    file = example.learned.file
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(file.parent), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert f"{len(example.learned.tests)} passed" in done.stdout
