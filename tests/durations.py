"""Durations of test files, recorded in `tests/durations.json`, to run the longest file first and keep workers busy.

`pytest --record-durations` updates the record for the files that ran. Files without a record come first. A file in
which only some tests need servers has two entries, since each half of `make test` runs a part of it.
"""

import fcntl
import json
from collections import defaultdict
from math import inf
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
_LEAST_S = 1.0
"""Minimum duration for the record; the order of shorter files does not matter."""
_WITH_SERVERS = " with servers"
"""Suffix of the key for those tests of a file that need Kafka or Spark."""
_NEEDS_SERVERS = "needs servers"
"""Property that marks tests that need Kafka or Spark, because reports have no pytest markers."""


class Recorder:
    """Pytest plugin of the reporting process that sums up the durations of each file's tests and fixtures."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        half = _WITH_SERVERS if _NEEDS_SERVERS in dict(report.user_properties) else ""
        self.seconds[report.nodeid.partition("::")[0] + half] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Merge this run into the record file, which another pytest may write at the same time."""
        with FILE.open("r+" if FILE.exists() else "w+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            merged = json.loads(file.read() or "{}") | self.seconds
            kept = {
                key: round(s, 1)
                for key, s in merged.items()
                if s >= _LEAST_S and (FILE.parents[1] / key.removesuffix(_WITH_SERVERS)).exists()
            }
            file.seek(0)
            file.truncate()
            file.write(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def longest_first(items: list[pytest.Item]) -> None:
    """Sort selected items in place by the recorded duration of their file; items of one file keep their order."""
    recorded: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    keys: dict[Path, set[str]] = defaultdict(set)
    for item in items:
        half = ""
        if needs_servers(item):
            half = _WITH_SERVERS
            item.user_properties.append((_NEEDS_SERVERS, True))
        keys[item.path].add(item.nodeid.partition("::")[0] + half)
    seconds = {path: sum(recorded.get(key, inf) for key in of_file) for path, of_file in keys.items()}
    items.sort(key=lambda item: (-seconds[item.path], str(item.path)))


def needs_servers(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("kafka", "spark"))
