"""Key hashes and expiring rows in Spark: hashes equal ours, and tasks write rows that the store can read."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from slackwater.pipeline.api.update import parse_ddl
from slackwater.pipeline.batch.spark_engine import run_state_task
from slackwater.pipeline.batch.task import StateTask
from slackwater.pipeline.source.spark_types import arrow_schema_of
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.kinds.upsert import upsert
from slackwater.state.step import Step
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys, partition_of
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table, Ttl

pytestmark = pytest.mark.spark

DDL = (
    "k struct<s: string, inner: struct<x: double, d: decimal(38, 2), n: decimal(9, 0)>, at: timestamp, on: date, "
    "b: binary, t: tinyint>, at timestamp, tags array<struct<name: string>>, fares map<string, int>"
)
DAY = datetime(2013, 1, 31, tzinfo=UTC)
INNER = (
    None,
    (None, None, None),
    (0.0, Decimal("0.01"), Decimal(-1)),
    (-0.0, Decimal("0.01"), Decimal(-1)),
    (float("nan"), Decimal("9" * 36 + ".99"), None),
)
KEYS = [
    None,
    *(("é", inner, DAY, DAY.date(), b"\xff\0", -1) for inner in INNER),
    ("e\u0301", None, None, None, None, None),
    ("", (1.5, None, Decimal(7)), None, DAY.date(), b"", 127),
    ("x" * 40, None, DAY, None, b"x" * 40, 0),
]


def test_structs_hash_as_in_spark_and_tasks_write_rows_that_expire(one_spark: None, tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    schema = parse_ddl(DDL)
    rows = [
        (key, datetime(2013, 2, number + 1, tzinfo=UTC), [(str(number),), None], {"one way": number, "return": None})
        for number, key in enumerate(KEYS)
    ]
    frame = spark.createDataFrame(rows, schema)
    hashed = frame.selectExpr("*", "xxhash64(k) AS h", "xxhash64(at, k) AS two").toArrow()
    assert hashed["h"].to_pylist() == hash_keys(hashed, ["k"]).tolist()
    assert hashed["two"].to_pylist() == hash_keys(hashed, ["at", "k"]).tolist()

    arrow = arrow_schema_of(schema)
    bound = upsert(by="at").bind([arrow], ("k",))
    table = Table(
        (Column("k", from_arrow(arrow.field("k").type)),),
        tuple(Column(field.name, from_arrow(field.type)) for field in bound.values),
        2,
        ttl=Ttl(86_400_000, "at"),
    )
    resources = WorkerResources("app", "stage", str(tmp_path / "store"), {}, (tmp_path / "cache", 1 << 30), 10)
    store, cache = open_store(resources.store), SstCache(tmp_path / "mine", 1 << 30)

    def batch(ssts: tuple[Sst, ...], version: int, clock_ms: int) -> tuple[tuple[Sst, ...], int]:
        task = StateTask(resources, "w", version, (), Step(table, bound, version, clock_ms), ssts)
        results = run_state_task(frame, task)
        event_ms = max(result.event_ms for result in results if result.event_ms is not None)
        return (*(sst for result in results for sst in result.ssts), *ssts), event_ms

    ssts, event_ms = batch((), 1, 0)
    newest = datetime(2013, 2, len(KEYS), tzinfo=UTC)
    assert event_ms == newest.timestamp() * 1000
    assert sum(sst.rows for sst in ssts) == sum(sst.expiring for sst in ssts) == len(KEYS) - 1, "-0.0 is 0.0"
    keys = hashed.select(["k"])
    hashes = hash_keys(keys, ["k"])
    assert {sst.partition for sst in ssts} == set(partition_of(hashes, 2).tolist())
    found, there = multi_get(store, cache, ssts, table, hashes, keys, clock_ms=0)
    expected = [row[2] for row in rows]
    expected[3] = expected[4]  # the same key, and later
    assert [[name and (name["name"],) for name in tags] for tags in found["tags"].to_pylist()] == expected
    assert there.all()
    # By the clock that the batch left only what is of its last day is there; so the next batch begins anew.
    _, there = multi_get(store, cache, ssts, table, hashes, keys, clock_ms=event_ms)
    assert there.tolist() == [number == len(KEYS) - 1 for number in range(len(KEYS))]
    again, _ = batch(ssts, 2, event_ms)
    assert sum(sst.rows for sst in again) == 2 * (len(KEYS) - 1)
    assert pa.types.is_map(found["fares"].type)
