"""Arrow batches without Spark's check of bytes: for narrow rows only, and with the same results."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import slackwater as sw
from msgspec.structs import replace
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.pipeline.batch.spark_engine import SparkEngine
from slackwater.pipeline.batch.task import StateTask
from slackwater.pipeline.spark.row_width import is_wide_row_error, with_width_check
from slackwater.pipeline.spark.session import with_settings
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.next_version import TaskReport
from slackwater.state.step import Step
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.versions.manifest import Column, Table

pytestmark = pytest.mark.spark
ROWS = pa.schema([("name", pa.string()), ("n", pa.int64())])
SMALL_BATCHES = {"spark.sql.execution.arrow.maxBytesPerBatch": "65536"}
WIDE, NARROW = "w" * 2_000, "n" * 20
NUM_NARROW, NUM_WIDE = 8_000, 200
"""Number of narrow and of wide rows, each several hundred kilobytes in two tasks."""


class CountingTask(StateTask):
    """A task that also reports in how many Arrow batches it got its rows."""

    def run(self, rows: pa.Table, number: int) -> TaskReport:
        return replace(super().run(rows, number), partials=rows["_hash"].num_chunks)


def task_in(folder: Path) -> CountingTask:
    bound = sw.aggregate(total=sw.sum("n")).bind([ROWS], ("name",))
    values = tuple(Column(field.name, from_arrow(field.type)) for field in bound.values)
    table = Table((Column("name", "string"),), values, 2)
    resources = WorkerResources("app", "stage", str(folder), {}, (folder / "cache", 1 << 30), 10)
    return CountingTask(resources, "w", 1, (), Step(table, bound, 1, 0), ())


def frame_of(spark: SparkSession, prefix: str, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).select(
        F.concat(F.lit(prefix), F.col("id")).alias("name"), F.col("id").alias("n")
    )


def totals(folder: Path, reports: tuple[TaskReport, ...]) -> dict[str, int]:
    rows = [row for report in reports for sst in report.ssts for row in pq.read_table(folder / sst.object).to_pylist()]
    return {row["name"]: row["total"] for row in rows}


@contextmanager
def job_statuses(spark: SparkSession, group: str) -> Iterator[list[str]]:
    """Yield a list that gets the statuses of the block's Spark jobs when the block ends."""
    statuses: list[str] = []
    spark.sparkContext.setJobGroup(group, group)
    try:
        yield statuses
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        tracker = spark.sparkContext.statusTracker()
        infos = map(tracker.getJobInfo, sorted(tracker.getJobIdsForGroup(group)))
        statuses += [info.status for info in infos if info is not None]


def test_narrow_rows_come_in_batches_of_many_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame_of(spark, NARROW, NUM_NARROW)
    with with_settings(spark, SMALL_BATCHES):
        reports = SparkEngine(spark).run_tasks(rows, task_in(tmp_path))
    assert [report.partials for report in reports] == [1, 1]
    assert totals(tmp_path, reports) == {f"{NARROW}{n}": n for n in range(NUM_NARROW)}


def test_wide_rows_come_in_batches_of_limited_bytes(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = SparkEngine(spark)
    for group, num_failed in (("first", 1), ("second", 0)):
        with with_settings(spark, SMALL_BATCHES), job_statuses(spark, f"{tmp_path}-{group}") as statuses:
            reports = engine.run_tasks(frame_of(spark, WIDE, NUM_WIDE), task_in(tmp_path))
        assert statuses.count("FAILED") == num_failed
        assert min(report.partials for report in reports) > 1
        assert totals(tmp_path, reports) == {f"{WIDE}{n}": n for n in range(NUM_WIDE)}
    assert "raise_error" not in capfd.readouterr().err


@pytest.mark.parametrize(("extra", "fails"), [(0, False), (1, True)])
def test_strings_and_binaries_of_a_row_count_together(spark: SparkSession, extra: int, fails: bool) -> None:
    with with_settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": str((64 << 20) // 1_000)}):
        # Of 1,000 bytes, three columns take 16 each; ä has two bytes.
        columns = F.expr("repeat('ä', 400) AS a"), F.expr(f"CAST(repeat('b', {152 + extra}) AS binary) AS b")
        rows = spark.range(1).select(*columns, F.lit(None).cast("string").alias("c.d"))
        checked = with_width_check(F.lit(0), rows)
        assert checked is not None
        numbers = rows.select(checked.alias("number"))
        if not fails:
            assert numbers.collect()[0].number == 0
            return
        with pytest.raises(SparkRuntimeException) as caught:
            numbers.collect()
        assert is_wide_row_error(caught.value)


@pytest.mark.parametrize("kind", ["array<int>", "map<int, int>", "struct<a: string>"])
def test_rows_with_nested_values_keep_sparks_check(spark: SparkSession, kind: str) -> None:
    rows = spark.range(1).select(F.lit(None).cast(kind).alias("a"))
    assert with_width_check(F.lit(0), rows) is None


def test_batches_without_a_number_of_rows_keep_sparks_check(spark: SparkSession) -> None:
    with with_settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "0"}):
        assert with_width_check(F.lit(0), spark.range(1).toDF("a")) is None
