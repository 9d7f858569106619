"""A `StatefulProcessor` class and a pandas function give the same rows as Spark's own operators, batch by batch."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyspark
import pytest
import slackwater as sw
from pyspark import cloudpickle
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.state.kinds.kind import Kind, with_input_metadata

from tests.state.event_time.falling import DELAY, Stage
from tests.state.kinds import spark_model
from tests.state.kinds.spark_model import OPS, OUTPUT, STATE, TIMER_OPS, Commanded, CommandedFrames, CommandedFunction
from tests.state.kinds.test_processor import BEGIN_MS, ROWS, by_key
from tests.support.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

KEYS = 60
"""Number of keys, each with its own schedule."""
SCHEMA = "k string, at timestamp, at_ms long, op string, n long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


Event = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """A batch of Spark: its time in Spark's log, its input and its output."""

    step: int
    wall_ms: int
    watermark_ms: int
    rows: Sequence[Event]
    given: Sequence[Any]


@contextmanager
def by_value() -> Iterator[SparkSession]:
    """Return a session for Spark's own operators that pickles classes by value."""
    cloudpickle.register_pickle_by_value(spark_model)  # type: ignore[no-untyped-call]
    active = SparkSession.getActiveSession()
    assert active is not None
    # One for all tests of this process: its settings are not for them.
    spark = active.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        yield spark
    finally:
        cloudpickle.unregister_pickle_by_value(spark_model)  # type: ignore[no-untyped-call]


def in_spark(
    folder: Path, steps: Sequence[Sequence[Event]], operator: Callable[[DataFrame], DataFrame], *, wait_ms: int = 0
) -> list[Batch]:
    """Return Spark's batches: one for the rows of each step, and the batches without rows between them.

    With processing time, Spark runs batches without rows continually. Therefore this waits for `wait_ms` after each
    step.
    """
    given: dict[int, list[Row]] = defaultdict(list)
    source, log = folder / "in", folder / "checkpoint"
    source.mkdir(parents=True)
    with by_value() as spark:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
        made = operator(rows.withWatermark("at", f"{DELAY} minutes"))
        query = (
            made.writeStream.outputMode("update")
            .foreachBatch(lambda frame, number: given[number].extend(frame.collect()))
            .option("checkpointLocation", str(log))
            .start()
        )
        try:
            for number, step in enumerate(steps):
                text = "\n".join(json.dumps({**row, "at": utc(row["at_ms"])}) for row in step)
                (folder / "next").write_text(text)
                (folder / "next").rename(source / f"{number:03}.json")
                if not wait_ms:
                    query.processAllAvailable()
                    continue

                def is_over(number: int = number) -> bool:
                    if (error := query.exception()) is not None:
                        raise error
                    known = batches_of(log, steps, given)
                    begun = [batch.wall_ms for batch in known if batch.step == number]
                    return bool(begun) and known[-1].wall_ms >= begun[0] + wait_ms

                eventually(is_over, f"the batches of step {number}")
        finally:
            query.stop()
        return batches_of(log, steps, given)


def batches_of(log: Path, steps: Sequence[Sequence[Event]], given: Mapping[int, list[Row]]) -> list[Batch]:
    """Return Spark's finished batches, according to its logs."""
    found: list[Batch] = []
    seen = -1
    ended = [int(path.name) for path in (log / "commits").glob("*") if path.name.isdigit()]
    for number in sorted(ended):
        _, times, source = (log / "offsets" / str(number)).read_text().splitlines()
        about, step = json.loads(times), json.loads(source)["logOffset"]
        rows = steps[step] if step != seen else []
        found.append(Batch(step, about["batchTimestampMs"], about["batchWatermarkMs"], rows, given.get(number, [])))
        seen = step
    return found


def utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat()


def schedule(seed: int, ops: Sequence[str], *, steps: int, soon_ms: int) -> list[list[Event]]:
    """Return random rows of random keys for each step."""
    random = Random(seed)
    found: list[list[Event]] = []
    for number in range(steps):
        keys = [f"k{key}" for key in range(KEYS) for _ in range(random.choice((0, 1, 2, 4)))]
        minutes = [random.randint(10 * number, 10 * number + 30) for _ in keys]
        found.append(
            [
                {"k": k, "at_ms": BEGIN_MS + at * 60_000, "op": random.choice(ops), "n": random.randint(1, soon_ms)}
                for k, at in zip(keys, minutes, strict=True)
            ]
        )
    return found


def same(kind: Kind, batches: Sequence[Batch]) -> None:
    """Check that our stage gives the same rows as Spark for the same batches, at the same watermarks."""
    stage = Stage(kind.bind([with_input_metadata(ROWS, "t", "at")], ("k",)), ("k",), ROWS, kind.stored)
    for number, batch in enumerate(batches):
        assert (stage.head.watermark_ms or 0) == batch.watermark_ms
        ours = by_key(stage.batch([{**row, "at": row["at_ms"] * 1_000} for row in batch.rows], batch.wall_ms))
        theirs = by_key(list(batch.given))
        differ = [
            (number, *both) for key in {*ours, *theirs} if (both := (ours.get(key), theirs.get(key)))[0] != both[1]
        ]
        assert not differ, "\n".join(map(str, differ[0]))


@pytest.mark.parametrize(
    ("time_mode", "in_pandas", "ttl_ms"),
    [
        pytest.param("EventTime", False, None, marks=pytest.mark.ci),
        ("ProcessingTime", True, 1_500),
        pytest.param("None", False, None, marks=pytest.mark.ci),
    ],
)
def test_a_class_gives_the_rows_of_sparks_transform_with_state(
    tmp_path: Path, time_mode: str, in_pandas: bool, ttl_ms: int | None
) -> None:
    ops = OPS if time_mode == "None" else (*OPS, *TIMER_OPS, "timer")
    if pyspark.__version__.startswith("4.0."):
        # There a list with a null of a number ends Spark's own worker.
        ops = tuple(each for each in ops if each != "put")
    steps = schedule(7, ops, steps=4, soon_ms=2_000 if time_mode == "ProcessingTime" else 900_000)
    made = (CommandedFrames if in_pandas else Commanded)(time_mode, ttl_ms)

    if not in_pandas and not hasattr(GroupedData, "transformWithState"):
        pytest.skip("this Spark has transformWithStateInPandas alone")

    def operator(rows: DataFrame) -> DataFrame:
        keyed = rows.groupBy("k")
        run = keyed.transformWithStateInPandas if in_pandas else keyed.transformWithState
        return run(made, OUTPUT, "Update", time_mode)

    batches = in_spark(tmp_path, steps, operator, wait_ms=2_500 if time_mode == "ProcessingTime" else 0)
    assert sum("fired" in row.seen for batch in batches for row in batch.given) > 10 or time_mode == "None"
    same(sw.processor(made, OUTPUT, time_mode=time_mode, in_pandas=in_pandas), batches)


def test_a_function_gives_the_rows_of_sparks_apply_in_pandas_with_state(tmp_path: Path) -> None:
    timeout = "EventTimeTimeout"
    ops = ("value", "value", "value-null", "value-clear", "timer", "timer", "nothing")
    function = CommandedFunction(timeout)
    batches = in_spark(
        tmp_path,
        schedule(11, ops, steps=4, soon_ms=900_000),
        lambda rows: rows.groupBy("k").applyInPandasWithState(function, OUTPUT, STATE, "update", timeout),
    )
    assert sum("timed out" in row.seen for batch in batches for row in batch.given) > 10
    same(sw.pandas_state(function, OUTPUT, STATE, "EventTimeTimeout"), batches)


def test_a_stage_of_two_inputs_has_the_initial_state_in_the_second() -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    app, seen = sw.App("app"), sw.repartition("seen", "k")

    @app.stage(
        reads=(sw.topic("events"), sw.topic("old")),
        writes=seen,
        key="k",
        state=sw.processor(Commanded("EventTime"), OUTPUT, time_mode="EventTime", initial_state="old"),
    )
    def events(events: DataFrame, old: DataFrame) -> tuple[DataFrame, DataFrame]:
        event = F.from_json(F.col("value").cast("string"), SCHEMA).alias("e")
        began = F.from_json(F.col("value").cast("string"), "k string, n long").alias("o")
        return (
            events.select(event).select("e.*").withWatermark("at", "10 minutes"),
            old.select(began).select("o.*"),
        )

    app.stage(reads=seen, state=sw.aggregate(n=sw.count()), name="counts")(lambda rows: rows)
    shape = derive_schemas(app, spark)["events"]
    assert shape.lateness_columns == ("_0_at",)
    assert shape.inputs_with_watermark == {"events"}
    assert shape.table is not None
    assert [column.name for column in shape.table.values][-2:] == ["timers", "_due_at"]
