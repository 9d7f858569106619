"""Fixtures for tests of verbs over a real app."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import Ledger


@pytest.fixture
def ledger_environment(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Set the working folder and the variables that the module's `ledger` needs to run."""
    for name, value in ledger.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield
    os.environ["LEDGER_VARIANT"] = ""
