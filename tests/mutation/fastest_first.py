"""A pytest plugin for mutation testing that runs the fastest tests first.

Most mutants are found by any test of the mutated function within milliseconds. In another order, a slow test might come
first.
"""

import json
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the durations that mutmut measured on the original code. Its first run has no durations."""
    measured = Path("mutmut-stats.json")
    if measured.exists():
        times = json.loads(measured.read_text(encoding="utf-8"))["duration_by_test"]
        items.sort(key=lambda item: float(times.get(item.nodeid, 0)))
