"""What tests of checkpoints share: recorded ones, which `tests.operations.from_spark.checkpoint.queries` makes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.operations.from_spark.checkpoint.queries import unpack


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """The folder of a recorded checkpoint, by its name; one for the test alone."""
    return lambda name: unpack(name, tmp_path / "checkpoints" / name)
