"""The bank that tests of this folder damage."""

import pytest
from slackwater.store.objects.memory import MemoryStore

from tests.support.fan_in import FanIn, bank


@pytest.fixture
def app() -> FanIn:
    return bank(MemoryStore())
