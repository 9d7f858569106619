"""Fixtures of sources."""

from collections.abc import Callable
from pathlib import Path

import pytest
from slackwater.pipeline.api.topic import Topic

from tests.pipeline.kafka.sources.reading import OpenSource


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[Topic], OpenSource]:
    """Open a source over one store; a second call is another process."""
    return lambda topic: OpenSource(topic, tmp_path / "store")
