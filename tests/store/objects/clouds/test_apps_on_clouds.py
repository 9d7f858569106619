"""Apps whose state is in Google Cloud Storage or Azure Blob Storage, on emulators."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.ci, pytest.mark.usefixtures("one_spark")]


@pytest.mark.parametrize("cloud", ["azure", "google"])
def test_an_app_runs_and_continues_on_a_cloud(
    cloud: str, kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment: dict[str, str] = request.getfixturevalue(f"{cloud}_server")
    root: str = request.getfixturevalue(f"{cloud}_root")
    spark = SparkSession.getActiveSession()
    assert spark is not None
    # Spark started before: this is how its Python processes get variables of their own.
    for name, value in environment.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    ledger = Ledger(kafka.bootstrap, tmp_path, store=f"{root}/{tmp_path.name}")
    for _ in range(2):
        ledger.send(600)
        ledger.catch_up("entries", "accounts", max_records=300)
    ledger.check_tables()
