"""A stage whose batches have few keys, then many, then few again, with one failing record."""

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import slackwater as sw
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.pipeline.batch import pre_aggregation, spark_engine
from slackwater.pipeline.batch.task import StateTask
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka

from tests.support.running import Ledger

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.usefixtures("one_spark")]
BATCH = 40


def sums(raw: DataFrame) -> DataFrame:
    return raw.select(F.col("key").cast("string").alias("k"), F.col("value").cast("string").cast("long").alias("v"))


@pytest.mark.ci
def test_batches_with_few_keys_are_pre_aggregated_and_the_table_is_the_same(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    name, topic = (f"{what}-{uuid4().hex[:8]}" for what in ("few", "rows"))
    open_kafka(kafka.bootstrap).create_topics({topic: 1})
    ledger = Ledger(kafka.bootstrap, tmp_path, topic=topic, app=name)
    few, many = [f"k{n % 3}" for n in range(BATCH)], [f"m{n}" for n in range(3 * BATCH)]
    keys = [*few * 3, *many, *few * 3]
    poison = 8 * BATCH + 7
    producer = Producer(ledger.kafka.properties)
    for at, key in enumerate(keys):
        producer.produce(topic, b"seven" if at == poison else json.dumps(at).encode(), key.encode())
    assert producer.flush(30) == 0

    added_up: list[int] = []

    def noted(rows: DataFrame, task: StateTask) -> Any:
        added_up.append(task.version)
        return pre_aggregation.pre_aggregate(rows, task)

    monkeypatch.setattr(spark_engine, "pre_aggregate", noted)
    monkeypatch.setattr(pre_aggregation, "_MIN_ROWS", BATCH // 2)
    app = sw.App(name)
    state = sw.aggregate(n=sw.count(), total=sw.sum("v"), newest=sw.last("v", by="v"))
    app.stage(reads=sw.topic(topic), key="k", state=state, on_error="reject", table=sw.table(partitions=2))(sums)
    versions: list[int] = []
    app.run(
        store=ledger.store,
        kafka=ledger.bootstrap,
        until_caught_up=True,
        max_records=BATCH,
        on_commit=lambda report: versions.append(report.version) if report.rows_in else None,
    )

    assert [versions.index(version) for version in added_up] == [1, 2, 3, 7, 8]
    found = {row["k"]: (row["n"], row["total"], row["newest"]) for row in ledger.table("sums").to_pylist()}
    counts, totals, newest = Counter[str](), Counter[str](), dict[str, int]()
    for at, key in enumerate(keys):
        if at != poison:
            counts[key] += 1
            totals[key] += at
            newest[key] = at
    assert found == {key: (counts[key], totals[key], newest[key]) for key in counts}
    (rejected,) = ledger.table("sums_rejected").to_pylist()
    assert (rejected["partition"], rejected["offset"], rejected["value"]) == (0, poison, b"seven")
    ledger.verify(name)
