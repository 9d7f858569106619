"""Fixtures for tests of whole apps."""

from pathlib import Path

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import Ledger


@pytest.fixture
def ledger(kafka: EmbeddedKafka, tmp_path: Path) -> Ledger:
    """Return an app in its own store, with an empty topic."""
    return Ledger(kafka.bootstrap, tmp_path)
