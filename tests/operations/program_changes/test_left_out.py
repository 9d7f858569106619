"""A record that waits to be retried is no part of the past: the app adds it to all columns when it is retried."""

from pathlib import Path

import pytest
import slackwater as sw
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.operations.program_changes.backfill_targets import BackfillTarget
from slackwater.operations.program_changes.scratch import left_out, scratch_program
from slackwater.pipeline.batch.transform import over
from slackwater.pipeline.reject.table import DeadLetter, RejectedTable, row_of
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import commit
from slackwater.store.versions.manifest import Input, Manifest, SideTable
from slackwater.store.versions.side_tables import REJECTED


def test_records_that_waited_then_are_found_through_the_stages_before(tmp_path: Path) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path, 1 << 30)

    def rejected(base: Manifest, *records: tuple[int, int], retried: int | None = None) -> dict[str, SideTable]:
        letters = [
            DeadLetter("t-as-read", *each, None, b"", (), "ValueError", "bad", "", "t", 0, 1) for each in records
        ]
        rows = [row_of(each, version=base.version, now_ms=1) | {"retried": retried} for each in letters]
        num = len(rows)
        changed = {"added": 0, "waiting": -num} if retried else {"added": num, "waiting": num}
        written = RejectedTable(store, cache, "app", "first")
        return {REJECTED: written.put(base, rows, base.version + 1, **changed)}

    def write(version: int, end: int, tables: dict[str, SideTable]) -> Manifest:
        read = {"t": Input("t-as-read", (end, end))}
        made = Manifest("app", "first", version, 1, "w", version, "batch", inputs=read, side_tables=tables)
        commit.commit(store, made)
        return made

    one = write(1, 0, {})
    two = write(2, 10, rejected(one, (0, 3), (0, 7), (1, 3), (1, 4)))
    three = write(3, 10, rejected(two, (1, 4), retried=3))
    four = write(4, 20, rejected(three, (0, 12)))
    stage = Manifest("app", "stage", 3, 3, "w", 3, "migration", inputs={"c": Input("c", (0,), "first", 3)})
    assert left_out(store, cache, stage) == {"t": {0: (3, 7), 1: (3,)}}
    assert left_out(store, cache, four) == {"t": {0: (3, 7, 12), 1: (3,)}}
    assert left_out(store, cache, replace(stage, inputs={"c": Input("c", (0,), "first", 1)})) == {}


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_the_program_never_sees_them() -> None:
    app = sw.App("shop")

    @app.stage(reads=sw.topic("t"), writes=sw.repartition("c", key="k"), on_error="reject", rejects="poison")
    def parsed(raw: DataFrame) -> DataFrame:
        # A filter of its own, which Spark may move about, and a function in Python.
        rows = raw.where("CAST(CAST(value AS STRING) AS INT) >= 0").select(F.expr("CAST(CAST(value AS STRING) AS INT)"))
        return rows.toDF("k").mapInPandas(lambda frames: frames, "k int")

    @app.stage(reads="c", state=sw.aggregate(n=sw.count(), m=sw.max("k")), on_error="reject", rejects="poison")
    def counted(rows: DataFrame) -> DataFrame:
        return rows.select("k")

    target = BackfillTarget("shop", "counted", 3, ("m",), (3,), {"t": (0, 0)}, {"t": (9, 9)}, begins=True)
    made = scratch_program(app, target, {"t": "t-elsewhere"}, {"t": {0: (1, 2), 1: (1,)}}, {})
    (stage,) = made.stages.values()
    assert (stage.on_error, stage.rejects, stage.writes, list(stage.inputs)) == ("stop", "", (), ["t-elsewhere"])
    spark = SparkSession.getActiveSession()
    assert spark is not None
    sent = [(0, 0, b"1"), (0, 1, b"poison"), (0, 2, b"2"), (1, 1, b"poison"), (1, 2, b"3"), (2, 1, b"4")]
    rows = spark.createDataFrame(sent, "partition int, offset long, value binary")
    (seen,) = over(stage, [rows])
    assert sorted(row.k for row in seen.collect()) == [1, 3, 4]
