"""What tests of verbs over a real app share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import Ledger


@pytest.fixture
def ledger_environment(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The process is where the module's `ledger` would be run: its variables, and a folder of the test's own."""
    for name, value in ledger.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield
    os.environ["LEDGER_VARIANT"] = ""
