"""A pytest plugin for mutation testing that runs the fastest tests first.

Most mutants fail any test of the mutated function within milliseconds; in another order they would wait for a slow
test.
"""

import json
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the durations that mutmut measured on the original code; its first run has none."""
    measured = Path("mutmut-stats.json")
    if measured.exists():
        times = json.loads(measured.read_text(encoding="utf-8"))["duration_by_test"]
        items.sort(key=lambda item: float(times.get(item.nodeid, 0)))
