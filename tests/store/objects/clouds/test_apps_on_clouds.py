"""Apps whose state is in Google Cloud Storage or Azure Blob Storage, on emulators."""

from __future__ import annotations

from pathlib import Path

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.ci]


@pytest.mark.parametrize("cloud", ["azure", "google"])
def test_an_app_runs_and_continues_on_a_cloud(
    cloud: str, kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root: str = request.getfixturevalue(f"{cloud}_root")
    ledger = Ledger(kafka.bootstrap, tmp_path, store=f"{root}/{tmp_path.name}")
    # Each run has a process of its own: Spark's workers get the environment in which it started.
    run = ("run", str(ledger.program), "--app", ledger.app, "--master", "local[2]", "--until-caught-up")
    for _ in range(2):
        ledger.send(600)
        ledger.slackwater(*run, "--max-records", "300")
    ledger.check_tables()
