"""One case for all tests of reports."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache

import pytest
from slackwater.client.show.report import ReportInput
from slackwater.store.read.cache import SstCache

from tests.client.show.report.cases import real_case


@pytest.fixture(scope="package")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], ReportInput]]:
    """Return a function that returns the case; a fixture with the case itself would be printed by hypothesis."""
    with closing(SstCache(tmp_path_factory.mktemp("cache"), 1 << 30)) as kept:
        yield cache(lambda: real_case(kept))


@pytest.fixture
def case(case_of: Callable[[], ReportInput]) -> ReportInput:
    return case_of()
