"""What the tests of whole apps share."""

from pathlib import Path

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import Ledger


@pytest.fixture
def ledger(kafka: EmbeddedKafka, tmp_path: Path) -> Ledger:
    """An app in a store of its own, whose topic is empty."""
    return Ledger(kafka.bootstrap, tmp_path)
