"""Aggregation before Spark's shuffle: same tables, times and counts as without, and when it is used."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import slackwater as sw
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from slackwater.errors import BadRecord
from slackwater.pipeline.batch.pre_aggregation import SHUFFLE_TASKS, Forecast, can_pre_aggregate, pre_aggregate
from slackwater.pipeline.batch.spark_engine import QUERY_SETTINGS, run_state_task
from slackwater.pipeline.batch.task import StateTask
from slackwater.pipeline.spark.plans import to_list
from slackwater.pipeline.spark.session import with_settings
from slackwater.pipeline.spark.user_errors import parse_query_error
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.event_time import Due, EventTimeScan, Lateness, Watermark
from slackwater.state.kinds.aggregate import Aggregate
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.kind import BoundState, Kind
from slackwater.state.next_version import TaskReport
from slackwater.state.step import Step, group_by_key
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

FLOATS = (0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
VALUES: Mapping[str, tuple[pa.DataType, tuple[object, ...]]] = {
    "flag": (pa.bool_(), (True, False)),
    "i8": (pa.int8(), (-128, 0, 127)),
    "i16": (pa.int16(), (-(2**15), 1)),
    "i32": (pa.int32(), (-(2**31), 2**31 - 1, 5)),
    "i64": (pa.int64(), (-(2**63), 2**63 - 1, -(2**62), 2**62, -1, 7)),
    "f32": (pa.float32(), FLOATS),
    "f64": (pa.float64(), FLOATS),
    "d10": (pa.decimal128(10, 2), (Decimal("99999999.99"), Decimal("-0.01"))),
    "d28": (pa.decimal128(28, 4), (Decimal("9" * 24 + ".9999"), Decimal("-1.0001"))),
    "text": (pa.string(), ("", "a", "ä", "b" * 20)),
    "bytes": (pa.binary(), (b"", b"\xff", b"\0")),
    "day": (pa.date32(), (date(1969, 12, 31), date(2026, 3, 1))),
    "at": (pa.timestamp("us", "UTC"), (datetime(1969, 12, 31, 23, tzinfo=UTC), NOON)),
    "local": (pa.timestamp("us"), (NOON.replace(tzinfo=None), NOON.replace(tzinfo=None, year=1969))),
}
ROWS = pa.schema([("k", pa.float64()), ("name", pa.string()), *((name, kind) for name, (kind, _) in VALUES.items())])
KEY = ("k", "name")
BYS = ("i8", "i16", "i32", "i64", "day", "at", "local")
row = st.fixed_dictionaries(
    {"k": st.none() | st.sampled_from(FLOATS[:5]), "name": st.sampled_from((None, "x", "y"))}
    | {name: st.none() | st.sampled_from(values) for name, (_, values) in VALUES.items()}
)
NUMBERS = [name for name, (kind, _) in VALUES.items() if kind not in (pa.bool_(), pa.string(), pa.binary())]
SUMS = [name for name in NUMBERS if name not in ("day", "at", "local")]


def everything() -> dict[str, Aggregate]:
    """Return every aggregate of every supported type, except sums of `i64`, which nearly always overflow."""
    made = {"n": sw.count()}
    for name in VALUES:
        by = BYS[len(made) % len(BYS)]
        made |= {f"count_{name}": sw.count(name), f"min_{name}": sw.min(name), f"max_{name}": sw.max(name)}
        made |= {f"first_{name}": sw.first(name, by=by), f"last_{name}": sw.last(name, by=by)}
    for name in SUMS:
        made |= {f"sum_{name}": sw.sum(name), f"mean_{name}": sw.mean(name)} if name != "i64" else {}
    return made


def table_of(bound: BoundState, key: tuple[str, ...], rows: pa.Schema) -> Table:
    keys = tuple(Column(name, from_arrow(rows.field(name).type)) for name in key)
    return Table(keys, tuple(Column(field.name, from_arrow(field.type)) for field in bound.values), 2)


def task_of(
    bound: BoundState, key: tuple[str, ...], rows: pa.Schema, folder: str = "/nowhere", **more: Any
) -> StateTask:
    resources = WorkerResources("app", "stage", folder, {}, (Path(folder, "cache"), 1 << 30), 10)
    version = more.pop("version", 1)
    decides = {name: more.pop(name) for name in ("lateness", "due") if name in more}
    step = Step(table_of(bound, key, rows), bound, version, 0, **decides)
    return StateTask(resources, "w", version, (), step, more.pop("ssts", ()), **more)


def spark() -> SparkSession:
    session = SparkSession.getActiveSession()
    assert session is not None
    return session


def frame_of(rows: pa.Table, parts: int = 3) -> DataFrame:
    return spark().createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)).repartition(parts)


def plain(value: object) -> object:
    """Return the value, with NaN replaced by a value that equals itself."""
    return "NaN" if isinstance(value, float) and isnan(value) else value


def merged(rows: pa.Table, state: BoundState) -> dict[tuple[object, ...], dict[str, object]] | str:
    """Return the state's rows by key for rows that have only `_hash`, or the error if a sum overflows."""
    rows, groups = group_by_key(rows, KEY)
    keys = rows.select(list(KEY)).take(pa.array(groups.starts))
    old = pa.table([pa.nulls(groups.num, field.type) for field in state.values], schema=state.values)
    try:
        values = state.merge(rows.select([*KEY, *state.needed_columns]), groups, keys, old).values
    except BadRecord as error:
        return error.message
    return {
        tuple(map(plain, key.values())): {name: plain(value) for name, value in each.items()}
        for key, each in zip(keys.to_pylist(), values.to_pylist(), strict=True)
    }


def both(rows: list[dict[str, object]], state: Kind) -> tuple[object, object]:
    """Return the state's result for rows, and its result for the pre-aggregated rows."""
    table = pa.Table.from_pylist(rows, schema=ROWS)
    bound = state.bind([ROWS], KEY)
    task, frame = task_of(bound, KEY, ROWS), frame_of(table)
    assert can_pre_aggregate(task, frame.schema)
    parts, over = pre_aggregate(frame, task)
    with with_settings(spark(), {SHUFFLE_TASKS: "1"}):
        found = parts.toArrow()
    assert found.num_rows <= table.num_rows
    hashed = table.append_column("_hash", pa.array(hash_keys(table, KEY)))
    return merged(hashed, bound), merged(found, over.step.state)


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@settings(max_examples=2, phases=(Phase.generate,))
@given(st.lists(row, min_size=60, max_size=120))
def test_pre_aggregated_rows_give_the_same_state(rows: list[dict[str, object]]) -> None:
    of_rows, of_parts = both(rows, sw.aggregate(**everything()))
    assert of_parts == of_rows


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@settings(max_examples=6, phases=(Phase.generate,))
@given(st.lists(row, min_size=1, max_size=12))
def test_sums_of_long_integers_are_exact_or_refused_with_and_without_pre_aggregation(
    rows: list[dict[str, object]],
) -> None:
    of_rows, of_parts = both(rows, sw.aggregate(sum=sw.sum("i64"), mean=sw.mean("i64")))
    assert of_parts == of_rows


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_a_sum_may_overflow_in_one_task_if_the_total_does_not() -> None:
    rows = [{"k": 1.0, "i64": value} for value in (2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 5)]
    of_rows, of_parts = both(rows, sw.aggregate(sum=sw.sum("i64")))
    assert of_parts == of_rows == {(1.0, None): {"sum": 3}}
    of_rows, of_parts = both(rows[:2], sw.aggregate(sum=sw.sum("i64")))
    assert of_parts == of_rows
    assert f"sum of key k=1.0, name=None would be {2**64 - 2}," in str(of_rows)


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@pytest.mark.parametrize(("kind", "few_keys"), [("decimal(38, 0)", None), ("long", None), ("long", True)])
def test_an_overflowing_sum_stops_the_stage_and_names_its_key(tmp_path: Path, kind: str, few_keys: bool | None) -> None:
    value, arrow = (2**62, pa.int64()) if kind == "long" else (Decimal(9 * 10**37), pa.decimal128(38, 0))
    schema = pa.schema([("wallet", pa.string()), ("wei", arrow)])
    rows = pa.Table.from_pylist([{"wallet": each, "wei": value} for each in ("a", "c", "c", "c")], schema=schema)
    bound = sw.aggregate(total=sw.sum("wei")).bind([schema], ("wallet",))
    task = task_of(bound, ("wallet",), schema, str(tmp_path))
    with pytest.raises(Exception, match="wallet") as caught:
        run_state_task(frame_of(rows), task, few_keys=few_keys)
    error = parse_query_error("wallets", str(caught.value))
    said = f"total of key wallet='c' would be {3 * int(value)}, which does not fit a {kind}"
    assert str(error) == f"stage 'wallets': {said}"
    assert 'on_error="reject"' in error.hint


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_batches_at_different_times_reuse_the_same_generated_code() -> None:
    rows = pa.Table.from_pylist([{"k": 1.0, "at": NOON}], schema=ROWS)
    bound = sw.aggregate(n=sw.count()).bind([ROWS], KEY)
    codes = []
    for bound_ms in (ms(NOON), ms(NOON) + 12_345):
        times = EventTimeScan((Watermark(("at",), 0, ("in",)),), bound_ms)
        # Other tests leave a session active in which queries are interpreted.
        compiled = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
        with with_settings(spark(), QUERY_SETTINGS | compiled):
            parts, _ = pre_aggregate(frame_of(rows), task_of(bound, KEY, ROWS, times=times))
            stages = to_list(parts._jdf.queryExecution().debug().codegenToSeq())
        codes.append([str(stage._2()) for stage in stages])
    assert codes[0] == codes[1] != []


WINDOWED = pa.schema(
    [
        ("hour", pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])),
        ("station", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("mm", pa.int64()),
    ]
)
HOURLY = ("hour", "station")


def readings(random: np.random.Generator, count: int) -> pa.Table:
    """Return readings of a day around noon. Some have no time, and some are from the year 2500."""
    minutes = random.integers(-720, 720, count)
    rows = []
    for minute, odd in zip(minutes.tolist(), random.integers(0, 50, count).tolist(), strict=True):
        at = datetime(2500, 1, 1, tzinfo=UTC) if odd == 0 else NOON + timedelta(minutes=minute)
        start = at.replace(minute=0)
        hour = {"start": start, "end": start + timedelta(hours=1)}
        rows.append(
            {"hour": hour, "station": f"s{minute % 3}", "at": None if odd == 1 else at, "mm": None if odd == 2 else odd}
        )
    return pa.Table.from_pylist(rows, schema=WINDOWED)


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def kept(folder: str, ssts: tuple[Sst, ...]) -> list[dict[str, object]]:
    """Return all rows of some SSTs."""
    return [row for sst in ssts for row in pq.read_table(Path(folder) / sst.object).to_pylist()]


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@pytest.mark.parametrize("few_keys", [True, pytest.param(False, marks=pytest.mark.ci)])
def test_windows_late_rows_and_times_are_the_same_with_pre_aggregation(tmp_path: Path, few_keys: bool) -> None:
    random = np.random.default_rng(7)
    state = FinalKind(sw.aggregate(n=sw.count(), mm=sw.sum("mm"), low=sw.min("mm"), newest=sw.last("mm", by="at")))
    bound = state.bind([WINDOWED], HOURLY)
    told: dict[bool, list[object]] = {True: [], False: []}
    ssts: dict[bool, tuple[Sst, ...]] = {True: (), False: ()}
    bound_ms = ms(NOON + timedelta(days=30))
    for number in range(2):
        rows = frame_of(readings(random, 400)).cache()
        watermark_ms = ms(NOON - timedelta(hours=6 - 4 * number))
        for adds_up in (False, True):
            folder = str(tmp_path / str(adds_up))
            task = task_of(
                bound,
                HOURLY,
                WINDOWED,
                folder,
                version=number + 1,
                ssts=ssts[adds_up],
                lateness=Lateness(("hour",), watermark_ms, bound_ms),
                times=EventTimeScan((Watermark(("at",), 0, ("r",)),), bound_ms),
                due=Due(watermark_ms, pending=number > 0),
            )
            results = run_state_task(rows, task, None, few_keys if adds_up else None)
            made = sorted((sst for result in results for sst in result.ssts), key=lambda sst: sst.partition)
            ssts[adds_up] = (*made, *ssts[adds_up])
            told[adds_up].append(
                (
                    sum(result.rows_in for result in results),
                    sum(result.late for result in results),
                    sum(result.seen.ahead for result in results),
                    max(at for result in results if (at := result.seen.latest_ms[0]) is not None),
                    min(at for result in results if (at := result.next_due_ms) is not None),
                )
            )
            assert (sum(result.partials for result in results) > 0) == adds_up
            assert len(results) == (1 if adds_up and few_keys else 2)
    assert told[True] == told[False]
    assert told[True][0][0] == 400
    assert min(told[True][0][1:3]) > 0, "some are late, and some too far ahead"
    assert kept(str(tmp_path / "True"), ssts[True]) == kept(str(tmp_path / "False"), ssts[False])


def test_only_aggregates_that_spark_computes_alike_are_pre_aggregated() -> None:
    rows = ROWS.append(pa.field("d38", pa.decimal128(38, 2)))

    def adds_up(state: Kind, **more: Any) -> bool:
        bound = state.bind([rows], KEY)
        return can_pre_aggregate(task_of(bound, KEY, rows, **more), from_arrow_schema(rows))

    assert adds_up(sw.aggregate(**everything()))
    assert not adds_up(sw.aggregate(total=sw.sum("d38"))), "Spark has no room for its sums"
    assert adds_up(sw.aggregate(most=sw.max("d38")))
    assert not adds_up(sw.aggregate(x=sw.last("i64", by="f64"))), "NaN is not the largest time"
    assert not adds_up(sw.aggregate(x=sw.first("i64", by="text")))
    assert not adds_up(sw.upsert(by="at"))
    late = (sw.repartition("late", "k"), "topic", 1)
    assert not adds_up(sw.aggregate(n=sw.count()), late_output=(late, {})), "late rows go on as they are"


def reported(rows: int, keys: int, partials: int = 0) -> tuple[TaskReport, ...]:
    """Return the report of a batch's only task."""
    return (TaskReport("a", rows, (Sst("o", 0, 0, keys, 1, "", 0, 0, 1, 1, 0, "", 0),), partials=partials),)


def test_a_batch_is_pre_aggregated_if_that_would_have_shrunk_the_previous_batch() -> None:
    forecast = Forecast()
    assert forecast.few_keys is None, "of the first, nothing is known"
    forecast.learn(reported(400_000, 100))
    assert forecast.few_keys is True
    forecast.learn(reported(400_000, 100, 400))
    assert forecast.few_keys is True
    # Half of the rows are of one key, and the others of many.
    forecast.learn(reported(400_000, 164_000, 190_000))
    assert forecast.few_keys is False
    forecast.learn(reported(400_000, 273_000, 370_000))
    assert forecast.few_keys is None
    forecast.learn(reported(400_000, 100))
    assert forecast.few_keys is True, "few again"
    forecast.learn(reported(1_000, 100, 400))
    assert forecast.few_keys is None, "there is nothing to save"


def test_useless_pre_aggregation_is_not_retried_for_every_batch() -> None:
    forecast = Forecast()
    forecast.learn(reported(400_000, 100_000))
    assert forecast.few_keys is not None
    forecast.learn(reported(400_000, 100_000, 390_000))
    for _ in range(3):
        assert forecast.few_keys is None
        forecast.learn(reported(400_000, 100_000))
    forecast.learn(reported(400_000, 1_000))
    assert forecast.few_keys is not None
