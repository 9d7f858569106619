"""Durations of test files, recorded in `tests/durations.json`: the longest run first, so that workers end together.

`pytest --record-durations` writes the file anew for the files that ran. Files that it lacks begin before all others.
"""

import fcntl
import json
from collections import defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
_LEAST_S = 1.0
"""Shorter files are not recorded, because their order does not matter."""


class Recorder:
    """Plugin of the reporting process that sums up the durations of each file's tests and fixtures."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Merge into the record, which another pytest may write at the same time."""
        with FILE.open("r+" if FILE.exists() else "w+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            merged = json.loads(file.read() or "{}") | self.seconds
            kept = {
                path: round(s, 1) for path, s in merged.items() if s >= _LEAST_S and (FILE.parents[1] / path).exists()
            }
            file.seek(0)
            file.truncate()
            file.write(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def longest_first(items: list[pytest.Item]) -> None:
    """Sort items in place by the duration of their file; items of one file keep their order."""
    recorded: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    root = FILE.parents[1]
    files = {item.path for item in items}
    order = {path: recorded.get(str(path.relative_to(root)), 0.0) for path in files if path.is_relative_to(root)}
    items.sort(key=lambda item: (-order.get(item.path, 0.0), str(item.path)))
