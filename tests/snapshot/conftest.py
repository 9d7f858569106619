"""What tests of snapshots share."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from slackwater.store.read.cache import SstCache


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SstCache]:
    """The local cache of SSTs of one test file."""
    with closing(SstCache(tmp_path_factory.mktemp("cache"), 1 << 30)) as cache:
        yield cache
