"""Fixtures for tests of checkpoints: recorded ones, written by `tests.operations.from_spark.checkpoint.queries`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.operations.from_spark.checkpoint.queries import unpack


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that unpacks a recorded checkpoint by name, for this test only."""
    return lambda name: unpack(name, tmp_path / "checkpoints" / name)
