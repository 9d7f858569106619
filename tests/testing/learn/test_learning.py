"""Learned tests reach the branches of programs, pass, and fail once the program is changed."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from slackwater.errors import SlackwaterError
from slackwater.testing import Ran, load, run
from slackwater.testing.learn.learn import Learned, learn_tests

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

EXAMPLES = Path(__file__).parents[3] / "examples"


def time(minute: int) -> str:
    return f"2013-01-{1 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:00Z"


def flights(count: int) -> list[bytes]:
    """Return made-up flights like those of the example's topic; some did not arrive, and one breaks off."""
    random, events = Random(7), list[bytes]()
    for number in range(count):
        late = random.choice([-5.0, 0.0, 20.0, 90.0, 200.0])
        event: dict[str, Any] = {
            "time": time(20 * number), "carrier": random.choice(["UA", "DL"]), "flight": number,
            "tailnum": random.choice(["N14228", "N24211", "N619AA", None]), "origin": "EWR", "dest": "IAH",
            "dep_delay": late, "arr_delay": random.choice([late, late + 10, None]),
        }  # fmt: skip
        events.append(json.dumps(event).encode())
    events.insert(count // 2, events[0][:40])
    return events


def weather(count: int) -> list[bytes]:
    random = Random(8)
    return [
        json.dumps({
            "airport": random.choice(["EWR", "JFK", None]), "time": time(60 * number), "temp": 39.0, "wind_speed": 10.0,
            "precip": random.choice([0.0, 0.2]), "visib": random.choice([1.0, 10.0]),
        }).encode()
        for number in range(count)
    ]  # fmt: skip


def learned(program: Path, topics: dict[str, list[bytes]], out: Path, **how: Any) -> Learned:
    history: Ran = run(load(program), topics)
    return learn_tests(history.app, program, out, **how)


def passes(file: Path) -> dict[str, bool]:
    """Run the functions of a learned test file; return which pass."""
    names, passed = runpy.run_path(str(file)), dict[str, bool]()
    for name, function in names.items():
        if name.startswith("test_"):
            try:
                function()
                passed[name] = True
            except (AssertionError, SlackwaterError):
                passed[name] = False
    return passed


def run_pytest(file: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(file.parent), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600).stdout


def share(found: Learned) -> float:
    return len(found.reached) / (len(found.reached) + len(found.unreached))


FLIGHTS_CHANGES = (
    ("tailnum is not null and arr_delay is not null", "tailnum is not null"),
    ("tailnum is not null and arr_delay is not null", "arr_delay is not null"),
    ('{"mode": "FAILFAST"}', '{"mode": "PERMISSIVE"}'),
    ("np.append(first[1:], True)", "first"),
    ("key[1:] != key[:-1]", "key[1:] == key[:-1]"),
    ("12 * 3600", "0 * 3600"),
    ("pc.less(pc.subtract", "pc.greater(pc.subtract"),
    ("pc.max_element_wise(pc.min", "pc.min_element_wise(pc.min"),
    ('pc.min_element_wise(late_before, rows["dep_delay"])', "late_before"),
    ("inherited = pc.if_else(pc.fill_null(recent, False), owed, 0.0)", "inherited = owed"),
    ('pc.fill_null(state["legs"], 0), np.bincount(key)', 'pc.fill_null(state["legs"], 1), np.bincount(key)'),
    ("np.bincount(key))", "1)"),
    ("told.filter(pc.greater_equal(inherited, 60))", "told"),
    ("pc.greater_equal(inherited, 60)", "pc.less(inherited, 60)"),
    ("pc.greater_equal(inherited, 60)", "pc.greater_equal(inherited, 6000)"),
    ('state["last_arr_delay"].take(rows["_key"]), rows["arr_delay"].take(above)', "0.0, 0.0"),
    ("flights=sw.count()", 'flights=sw.max("arr_delay")'),
    ('delay=sw.sum("arr_delay")', 'delay=sw.max("arr_delay")'),
    ('worst=sw.max("arr_delay")', 'worst=sw.min("arr_delay")'),
    ('last_flight=sw.max("time")', 'last_flight=sw.min("time")'),
)  # fmt: skip


@pytest.mark.ci  # dozens of runs of the app
def test_branches_of_the_flights_are_reached_and_the_tests_pass_and_tell_a_change(tmp_path: Path) -> None:
    program = tmp_path / "flights.py"
    source = (EXAMPLES / "flights.py").read_text()
    program.write_text(source)
    found = learned(program, {"flights": flights(60)}, tmp_path / "learned")
    assert share(found) >= 0.9, found.unreached
    text = found.file.read_text()
    assert "N14228" not in text
    results = passes(found.file)
    assert len(results) == len(found.tests)
    assert all(results.values()), results
    # The same command writes the same file.
    assert learned(program, {"flights": flights(60)}, tmp_path / "learned").file.read_text() == text
    program.write_text(source.replace(*FLIGHTS_CHANGES[0]))
    assert not all(passes(found.file).values())


@pytest.mark.ci  # a Spark of its own
def test_pytest_runs_the_file_without_kafka(tmp_path: Path) -> None:
    found = learned(EXAMPLES / "flights.py", {"flights": flights(10)}, tmp_path / "learned")
    assert f"{len(found.tests)} passed" in run_pytest(found.file)


@pytest.mark.ci
def test_each_of_twenty_changes_makes_a_test_fail(tmp_path: Path) -> None:
    program = tmp_path / "flights.py"
    source = (EXAMPLES / "flights.py").read_text()
    program.write_text(source)
    found = learned(program, {"flights": flights(60)}, tmp_path / "learned")
    survived = []
    for before, after in FLIGHTS_CHANGES:
        assert source.count(before) >= 1, before
        program.write_text(source.replace(before, after))
        if all(passes(found.file).values()):
            survived.append(after)
    assert survived == []


@pytest.mark.ci
def test_branches_of_the_weather_are_reached(tmp_path: Path) -> None:
    topics = {"flights": flights(60), "weather": weather(30)}
    found = learned(EXAMPLES / "weather.py", topics, tmp_path / "learned")
    assert share(found) >= 0.9, found.unreached
    assert all(passes(found.file).values())
