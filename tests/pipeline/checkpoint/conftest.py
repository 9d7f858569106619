"""What tests of checkpoints share: recorded ones, which `tests.pipeline.checkpoint.queries` makes."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """The folder of a recorded checkpoint, by its name; one for the test alone."""

    def unpack(name: str) -> Path:
        folder = tmp_path / "checkpoints" / name
        with zipfile.ZipFile(RECORDED / f"{name}.zip") as packed:
            packed.extractall(folder)
        return folder

    return unpack
