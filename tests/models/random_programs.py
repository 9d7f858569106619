"""Random programs of one stage, some of them nondeterministic, and versions that they committed.

A number determines the program: the kind of state, what the function does with the records, and, in every other
program, a planted dependence. No streaming query runs, and no broker is needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from random import Random
from uuid import uuid4

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.operations.debugging.check.arrangements import Arrangement, original_order
from slackwater.operations.debugging.check.check import FunctionRunner, Reason, record_origins
from slackwater.operations.debugging.replay.program import LoadedProgram
from slackwater.operations.debugging.replay.stage_replay import StageReplay
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.batch.task import IS_PROBE, StateTask
from slackwater.state.event_time import BatchTimes, EventTimeScan, Lateness, due_span_after
from slackwater.state.next_version import BatchResult, ProtocolOutcome, next_version
from slackwater.state.records import Position
from slackwater.state.step import Step
from slackwater.store.objects.local import LocalStore
from slackwater.store.sst import sorted_runs
from slackwater.store.versions import commit
from slackwater.store.versions.entries import hash_ranges
from slackwater.store.versions.manifest import Input, Manifest
from slackwater.testing import MemoryKafka, Record

from tests.state.event_time.falling import InMemory

SCHEMA = "k long, seq long, tie long, x long, f double, s string, at timestamp"
SECOND = "k long, y long, at timestamp"
PARTITIONS, RECORDS, KEYS = 3, 60, 6
BEGAN_MS = 1_767_000_000_000
BOUND_MS = 253_402_300_799_999
Change = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Plant:
    """Planted nondeterministic dependence, and the reason that `check` must report for it."""

    name: str
    reason: Reason
    change: Change | None = None
    """Change of the stage's function."""
    update: Callable[[pa.Table, pa.Table], pa.Table] | None = None
    """Update function that computes `x`, one value for each key."""
    kind: str = ""
    """Kind of state that has this plant; empty for any kind that reads `x`."""
    or_else: Reason | None = None
    """Other possible reason, if `reason` does not show in every batch."""


@dataclass(frozen=True)
class RandomProgram:
    """A program, with its planted dependence; None if it is deterministic."""

    app: sw.App
    words: str
    planted: Plant | None


def _x(value: object) -> Change:
    return lambda rows: rows.withColumn("x", value() if callable(value) else value)  # type: ignore[operator]


def _udf(function: Callable[[int], int]) -> Change:
    # Without Arrow in the name, Spark uses the type hints, and warns if they are not pandas types.
    return lambda rows: rows.withColumn("x", F.udf(function, "long", useArrow=False)("x"))


def _in_arrow(function: Callable[[pa.RecordBatch], pa.Array]) -> Change:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            at = batch.schema.get_field_index("x")
            yield batch.set_column(at, "x", function(batch).cast(pa.int64()))

    return lambda rows: rows.mapInArrow(work, rows.schema)


def _less_mean(values: pd.Series) -> pd.Series:
    return values - int(values.mean())


def _last_by_arrival(rows: pa.Table, state: pa.Table) -> pa.Table:
    last = np.zeros(state.num_rows, np.int64)
    last[rows["_key"].to_numpy()] = rows["x"].to_numpy()
    return pa.array(last)


def _now(_value: int) -> int:
    return int(datetime.now(UTC).timestamp())


def _same_for_all(value: Callable[[], int]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    return lambda _rows, state: pa.array(np.full(state.num_rows, value()))


PLANTS = (
    Plant("unix_timestamp()", "clock", _x(F.unix_timestamp)),
    Plant("the last that came", "order", update=_last_by_arrival, kind="update"),
    Plant(
        "rows of the batch",
        "batches",
        update=lambda rows, state: pa.array(np.bincount(rows["_key"], minlength=state.num_rows)),
        kind="update",
    ),
    Plant("rand()", "random", _x(lambda: (F.rand() * 1_000_000).cast("long"))),
    Plant("datetime.now() in a UDF", "clock", _udf(_now)),
    Plant(
        "rows of the batch, in Arrow", "batches", _in_arrow(lambda batch: pa.array([batch.num_rows] * batch.num_rows))
    ),
    Plant("equal times of an upsert", "batches", kind="upsert by tie"),
    Plant("spark_partition_id()", "partitions", _x(lambda: F.spark_partition_id().cast("long"))),
    Plant("current_date()", "clock", _x(lambda: F.unix_date(F.current_date()).cast("long"))),
    Plant("monotonically_increasing_id()", "order", _x(F.monotonically_increasing_id)),
    Plant("the mean of the batch", "batches", lambda rows: rows.withColumn("x", F.pandas_udf(_less_mean, "long")("x"))),
    Plant("time.time() in the function", "clock", _x(lambda: F.lit(int(time.time())))),
    Plant("random in a UDF", "random", _udf(lambda _: random.randrange(1 << 40))),
    Plant("the clock of an update", "clock", update=_same_for_all(lambda: int(time.time())), kind="update"),
    Plant("the last that came, of any", "order", _in_arrow(lambda batch: pa.array(np.arange(batch.num_rows)))),
    Plant("uuid()", "random", _x(lambda: F.xxhash64(F.expr("uuid()")) % 1_000_000)),
    Plant(
        "keys of the batch",
        "partitions",
        update=lambda _rows, state: pa.array(np.full(state.num_rows, state.num_rows)),
        kind="update",
        or_else="batches",
    ),
    Plant("random in an update", "random", update=_same_for_all(lambda: random.randrange(1 << 40)), kind="update"),
    Plant("equal times of last()", "batches", kind="aggregate by tie"),
    Plant("only what is of this year", "clock", lambda rows: rows.where(F.year("at") >= F.year(F.now()))),
    Plant("os.getpid() in a UDF", "process", _udf(lambda _: os.getpid())),
)

CHANGES: dict[str, Change] = {
    "as they come": lambda rows: rows,
    "some": lambda rows: rows.where("x % 3 <> 0"),
    "each twice": lambda rows: (
        rows.withColumn("i", F.explode(F.array(F.lit(0), F.lit(1)))).withColumn("seq", F.expr("seq * 2 + i")).drop("i")
    ),
    "a UDF": _udf(lambda x: x * 7),
    "a UDF of pandas": lambda rows: rows.withColumn("x", F.pandas_udf(lambda x: x + 1, "long")("x")),
    "whole batches": _in_arrow(lambda batch: pc.add(batch["x"], 1)),
    "an exchange": lambda rows: rows.repartition(3, "x"),
    "a table beside it": lambda rows: rows.join(
        rows.sparkSession.createDataFrame([(k, f"n{k}") for k in range(KEYS)], "k long, name string"), "k"
    ),
    "the seed of a hash": _x(lambda: F.xxhash64("seq", "s") % 1_000_000),
    "a time in the records": lambda rows: rows.withColumn("x", F.unix_timestamp("at")),
}
KINDS = ("aggregate", "upsert", "update", "window", "session", "join", "stateless", "rejecting")


def random_program(number: int) -> RandomProgram:
    """Return the program with this number. Programs with even numbers contain a `Plant`: they are nondeterministic."""
    chosen = Random(number)
    plant = None if number % 2 else PLANTS[number // 2 % len(PLANTS)]
    kind = (plant.kind if plant else "") or (KINDS[number // 2 % len(KINDS)] if plant is None else chosen.choice(KINDS))
    if plant is not None and kind == "join":
        kind = "stateless"  # `x` is in no pair that must be there
    name = "as they come" if plant is not None and plant.kind else chosen.choice([*CHANGES])
    if plant is not None and plant.reason == "partitions":
        name = chosen.choice([each for each in CHANGES if each not in ("an exchange", "a table beside it")])
    change = CHANGES[name]

    def function(raw: DataFrame) -> DataFrame:
        rows = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
        rows = change(rows)
        return plant.change(rows) if plant is not None and plant.change is not None else rows

    app = sw.App("a")
    _declare(app, kind, function, plant)
    return RandomProgram(app, f"{kind}, {name}, {plant.name if plant else 'nothing planted'}", plant)


def _sums(rows: pa.Table, state: pa.Table, planted: Plant | None) -> tuple[pa.Table, pa.Table]:
    each = rows.group_by("_key", use_threads=False).aggregate([("x", "sum"), ("f", "sum")])
    added = pa.table({"n": np.bincount(rows["_key"].to_numpy(), minlength=state.num_rows)})
    order = pc.sort_indices(each["_key"])
    n = pc.add(pc.fill_null(state["n"], 0), added["n"])
    total = pc.add(pc.fill_null(state["total"], 0), each["x_sum"].take(order))
    mass = pc.add(pc.fill_null(state["mass"], 0.0), each["f_sum"].take(order))
    if planted is not None and planted.update is not None:
        total = planted.update(rows, state)
    after = pa.table({"n": n, "total": total, "mass": mass})
    return after, pa.table({"k": state["k"], "n": n, "mass": mass})


def _declare(app: sw.App, kind: str, function: Change, plant: Plant | None) -> None:
    topic, out = sw.topic("t"), sw.repartition("out", key="k")
    some = sw.aggregate(
        n=sw.count(), total=sw.sum("x"), mass=sw.sum("f"), mean=sw.mean("f"), last=sw.last("x", by="seq")
    )

    def timed(raw: DataFrame) -> DataFrame:
        return function(raw).withWatermark("at", "10 minutes")

    three = sw.table(partitions=3)
    final = sw.event_time(emits="final")
    match kind:
        case "aggregate":
            app.stage(name="s", reads=topic, key="k", state=some, writes=out, table=three)(function)
        case "aggregate by tie":
            state = sw.aggregate(n=sw.count(), last=sw.last("x", by="tie"))
            app.stage(name="s", reads=topic, key="k", state=state)(function)
        case "rejecting":
            app.stage(name="s", reads=topic, key="k", state=some, on_error="reject")(function)
        case "upsert" | "upsert by tie":
            state = sw.upsert(by="tie" if kind.endswith("tie") else "seq")
            app.stage(name="s", reads=topic, key="k", state=state, writes=out, table=three)(function)
        case "update":
            state = sw.update(
                partial(_sums, planted=plant),
                state="n long, total long, mass double",
                emits="k long, n long, mass double",
                order_by=() if plant is not None and plant.reason == "order" else "seq",
            )
            app.stage(name="s", reads=topic, key="k", state=state, writes=out, table=three)(function)
        case "window":
            key = ["k", "w"]
            app.stage(name="s", reads=topic, key=key, state=some, writes=out, event_time=final, table=three)(
                lambda raw: timed(raw).withColumn("w", F.window("at", "5 minutes"))
            )
        case "session":
            app.stage(name="s", reads=topic, key=["k", "w"], state=some, writes=out, event_time=final)(
                lambda raw: timed(raw).withColumn("w", F.session_window("at", "3 minutes"))
            )
        case "join":

            def sides(raw: DataFrame, other: DataFrame) -> tuple[DataFrame, DataFrame]:
                rows = other.select(F.from_json(F.col("value").cast("string"), SECOND).alias("r")).select("r.*")
                right = rows.withColumnRenamed("at", "there").withWatermark("there", "10 minutes")
                return timed(raw), right

            how = sw.join("t", "u", within="2 minutes", how="left")
            app.stage(name="s", reads=(topic, sw.topic("u")), key="k", state=how, writes=out)(sides)
        case "stateless":
            app.stage(name="s", reads=topic, writes=out)(function)


def versions_of(
    made: RandomProgram, spark: SparkSession, folder: LocalStore, count: int, seed: int
) -> tuple[LoadedProgram, list[Manifest]]:
    """Return the program, and this many versions of its stage, as its batches would commit them."""
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    stage = made.app.stages["s"]
    shape = derive_schemas(made.app, spark)["s"]
    resources = InMemory("a", "s", "", {}, ("", 0, 0), 1.0)
    program = LoadedProgram(made.app, spark, {"s": shape}, resources.memory, resources.kept, kafka, folder)
    kafka.create_topics(dict.fromkeys(stage.inputs, PARTITIONS))
    inputs = {name: Input(name, (0,) * PARTITIONS) for name in stage.inputs}
    head = Manifest("a", "s", 1, 1, "w", BEGAN_MS, "claim", inputs, table=shape.table)
    commit.commit(resources.memory, head)
    found, numbers = [], Random(seed)
    for batch in range(count):
        for name in stage.inputs:
            kafka.send(name, list(_records(numbers, name, batch)), patience_s=1)
        head = _batch(program, head, resources)
        found.append(head)
    return program, found


def _records(numbers: Random, topic: str, batch: int) -> Iterator[Record]:
    """Yield the records of one batch; each key has records in each partition."""
    for at in range(RECORDS):
        seq = batch * RECORDS + at
        second = BEGAN_MS // 1000 + batch * 1800 + numbers.randrange(1800)
        when = datetime.fromtimestamp(second, UTC).isoformat()
        made: dict[str, object] = {"k": numbers.randrange(KEYS), "at": when}
        if topic == "t":
            made |= {"seq": seq, "tie": numbers.randrange(3), "x": numbers.randrange(1 << 20), "s": f"s{seq % 5}"}
            made |= {"f": numbers.uniform(-1e6, 1e6)}
        else:
            made |= {"y": numbers.randrange(100)}
        yield Record(json.dumps(made).encode(), partition=numbers.randrange(PARTITIONS), time_ms=BEGAN_MS + seq)


def _batch(program: LoadedProgram, base: Manifest, resources: InMemory) -> Manifest:
    """Commit a version that reads all available records, like the task of a batch."""
    shape = program.shapes["s"]
    ends = {name: Position(name, program.kafka.offset_bounds(name)[1]) for name in base.inputs}
    by = shape.due_by
    due = due_span_after(base.event_time, by, base.time_ms) if by is not None else None
    times = BatchTimes(0, BOUND_MS, due)

    def version(results: tuple[object, ...]) -> Manifest:
        outcome = ProtocolOutcome((), {}, {}, {}, changed=False)
        now_ms = base.time_ms + 60_000
        return next_version(
            base,
            ends,
            outcome,
            BatchResult(results),
            (),
            shape.time_rules,
            times,
            now_ms=now_ms,
            duration_ms=1,  # type: ignore[arg-type]
        )

    if shape.bound is None or base.table is None:
        made = version(())
    else:
        # The records that it reads do not depend on its results.
        replay = StageReplay(program, base, version(()) if not shape.watermarks else replace(base, **_read(base, ends)))
        every = original_order(record_origins(replay))
        (rows,) = FunctionRunner(replay, (base.time_ms, base.time_ms + 1)).compute_rows(
            Arrangement((every,)), base.time_ms
        )
        step = Step(
            base.table,
            shape.bound,
            base.version + 1,
            0,
            Lateness(shape.lateness_columns, base.watermark_ms, BOUND_MS) if shape.lateness_columns else None,
            due,
        )
        seen = EventTimeScan(shape.watermarks, BOUND_MS)
        task = StateTask(
            dataclasses.replace(resources, app="a"), "w", base.version + 1, (), step, base.ssts, times=seen
        )
        marked = rows
        if due is not None and due.pending:
            count = base.table.partitions
            hashes = [hash_ranges.hash_bounds(each, count)[1] for each in sorted_runs.by_partition(base.ssts, count)]
            marks = pa.Table.from_pylist([{"_hash": each} for each in hashes], schema=rows.schema)
            is_mark = pa.array([False] * rows.num_rows + [True] * marks.num_rows)
            marked = pa.concat_tables([rows, marks]).append_column(IS_PROBE, is_mark)
        made = version((replace(task._run(marked, "w.1"), seen=seen.scan(rows)),))
    commit.commit(resources.memory, made)
    return made


def _read(base: Manifest, ends: dict[str, Position]) -> dict[str, object]:
    inputs = {name: replace(base.inputs[name], offsets=ends[name].offsets, rows=1) for name in base.inputs}
    return {"inputs": inputs, "kind": "batch", "version": base.version + 1}
