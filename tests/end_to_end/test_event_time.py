"""Event time: `withWatermark` and `F.window` in a function, on a real broker and Spark."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import slackwater as sw
from confluent_kafka import Producer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from slackwater.errors import Refused
from slackwater.operations.debugging.replay.compare import compare, read_sent_rows
from slackwater.operations.debugging.replay.program import open_program
from slackwater.operations.debugging.replay.stage_replay import StageReplay
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.listener import BatchReport
from slackwater.snapshot.status.overview import overview
from slackwater.state.event_time import Watermark
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest

from tests.pipeline.publish.reader import committed
from tests.support.running import Ledger

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def ledger(kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Return an app in its own store. Its topic of readings has one partition, so that their order is fixed."""
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    app, topic = (f"{what}-{uuid4().hex[:8]}" for what in ("rain", "readings"))
    open_kafka(kafka.bootstrap).create_topics({topic: 1})
    return Ledger(kafka.bootstrap, tmp_path, topic=topic, app=app)


def send(ledger: Ledger, readings: Iterable[Mapping[str, object]]) -> None:
    producer = Producer(ledger.kafka.properties)
    for reading in readings:
        producer.produce(ledger.topic, json.dumps(reading).encode())
    assert producer.flush(30) == 0


def reading(station: str, minute: float) -> dict[str, object]:
    """Return a reading of a station, this many minutes after noon."""
    return {"station": station, "at": (NOON + timedelta(minutes=minute)).isoformat(), "mm": 1}


def minutes(after_noon: float) -> int:
    """Return ms since 1970 of this many minutes after noon."""
    return round((NOON + timedelta(minutes=after_noon)).timestamp() * 1000)


def readings(raw: DataFrame) -> DataFrame:
    reading = F.from_json(F.col("value").cast("string"), "station string, at timestamp, mm long")
    return raw.select(reading.alias("r")).select("r.*").withWatermark("at", "10 minutes").where("station is not null")


def hours(rows: DataFrame) -> DataFrame:
    return rows.withColumn("hour", F.window("at", "1 hour"))


def rain(name: str, topic: str) -> sw.App:
    app = sw.App(name)
    by_station = sw.repartition("by-station", "station", partitions=2)
    app.stage(reads=sw.topic(topic), writes=by_station)(readings)
    counted = sw.aggregate(n=sw.count(), mm=sw.sum("mm"))
    app.stage(reads=by_station, key=["hour", "station"], state=counted, table=sw.table(partitions=2))(hours)
    return app


@pytest.mark.ci  # the laws are state/event_time/test_progress.py and test_due.py
@pytest.mark.kafka
def test_a_watermark_is_in_the_manifests_of_all_stages_and_survives_a_restart(ledger: Ledger) -> None:
    name, store = ledger.app, open_store(ledger.store)
    reports: list[BatchReport] = []

    def run(*records: tuple[str, float]) -> tuple[int | None, int | None]:
        """Send readings by station and minute, and run until they are read."""
        send(ledger, (reading(*one) for one in records))
        app = rain(name, ledger.topic)
        app.run(store=ledger.store, kafka=ledger.bootstrap, until_caught_up=True, on_commit=reports.append)
        heads = [history.head(store, name, stage) for stage in ("readings", "hours")]
        first, second = (head.watermark_ms for head in heads if head is not None)
        return first, second

    assert run(("a", 0), ("b", 61)) == (minutes(51), minutes(51))
    far = 60 * 24 * 365 * 5_000
    assert run(("a", 30), ("b", far)) == (minutes(51), minutes(51)), "nor does one record from the year 7026 move it"
    assert {report.watermark_ms for report in reports} == {minutes(51)}
    each = {stage.stage: stage for stage in overview(store, name, lambda _topic: None).stages}
    assert {stage: (one.watermark_ms, one.ahead) for stage, one in each.items()} == {
        "readings": (minutes(51), 1),
        "hours": (minutes(51), 0),
    }


def hourly(rows: DataFrame) -> DataFrame:
    return hours(readings(rows))


def showers(rows: DataFrame) -> DataFrame:
    return readings(rows).withColumn("shower", F.session_window("at", "7 minutes"))


@pytest.mark.ci  # the laws are state/event_time/test_late.py and test_sessions.py, over the raw input
@pytest.mark.kafka
def test_windows_sessions_and_late_rows_equal_those_of_sparks_own_aggregation(ledger: Ledger, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    batches = [
        [
            {
                "station": f"s{random.integers(3)}",
                "at": (NOON + timedelta(minutes=float(random.integers(90 * number - 150, 90 * number)))).isoformat(),
                "mm": int(random.integers(9)),
            }
            for _ in range(40)
        ]
        for number in range(4)
    ]
    send(ledger, chain.from_iterable(batches))

    name, app = ledger.app, sw.App(ledger.app)
    counted, times = sw.aggregate(n=sw.count(), mm=sw.sum("mm")), sw.event_time(late="table")
    app.stage(reads=sw.topic(ledger.topic), key=["hour", "station"], state=counted, event_time=times)(hourly)
    over, once = sw.repartition("over", ["station", "shower"], partitions=1), sw.event_time(emits="final")
    app.stage(reads=sw.topic(ledger.topic), writes=over, key=["station", "shower"], state=counted, event_time=once)(
        showers
    )
    app.run(store=ledger.store, kafka=ledger.bootstrap, until_caught_up=True, max_records=40)

    found, late = (by_window(ledger.table(table).to_pylist(), "hour") for table in ("hourly", "hourly_late"))
    windows, sessions = sparks_own(batches, tmp_path)
    assert found == windows
    every: Counter[Window] = Counter()
    for record in chain.from_iterable(batches):
        at = datetime.fromisoformat(str(record["at"])).replace(minute=0)
        every[at, at + timedelta(hours=1), str(record["station"])] += 1
    missed = every - Counter({key: n for key, (n, _) in found.items()})
    assert missed == Counter({key: n for key, (n, _) in late.items()}), "no row is in neither, and none in both"
    head = history.head(open_store(ledger.store), name, "hourly")
    assert head is not None
    assert head.event_time is not None
    assert head.event_time.late_total == missed.total() > 0
    is_open = ledger.sql("SELECT station, unnest(shower, recursive := true) FROM showers")
    head = history.head(open_store(ledger.store), name, "showers")
    assert head is not None
    assert head.event_time is not None
    each = Counter({"ended": sum(n for n, _ in sessions.values()), "late": head.event_time.late_total})
    assert each.total() + pc.sum(is_open["n"]).as_py() == every.total(), "each reading is in one session, or late"
    assert min(each.values()) > 0
    ledger.verify(name)
    store, cache = open_store(ledger.store), SstCache(tmp_path / "cache" / "replay", 1 << 30)
    versions = history.iter_after(store, name, "hourly", 0)
    late, count = next((one, one.event_time.late) for one in versions if one.event_time and one.event_time.late)
    some = [
        one for one in history.iter_after(store, name, "showers", 0) if any(out.rows for out in one.outputs.values())
    ]
    most = max(some, key=lambda one: one.outputs["over"].rows)
    with open_program(app, store, cache, ledger.kafka) as program:
        sent = [read_sent_rows(StageReplay.for_version(program, one))["over"].rows for one in some]
        again, of_sessions = (
            compare(replay, read_sent_rows(replay))
            for replay in (StageReplay.for_version(program, one) for one in (late, most))
        )
    assert again.same, "a replay leaves the same rows out"
    assert [(one.name, one.replayed.num_rows) for one in again.channels] == [("hourly-late", count)]
    ended = pa.concat_tables(rows for rows in sent if rows is not None)
    assert by_window(ended.to_pylist(), "shower") == sessions, "each once"
    assert of_sessions.same, "and ends the same sessions"
    assert [one.replayed.num_rows for one in of_sessions.channels] == [most.outputs["over"].rows]


def quiet(rows: pa.Table, state: pa.Table) -> pa.Table:
    """Count a station's hours, and mark the station as silent half an hour after the last hour."""
    if not rows.num_rows:
        return state.set_column(state.schema.get_field_index("silent"), "silent", pa.array([True] * state.num_rows))
    each = rows.append_column("end", pc.struct_field(rows["hour"], "end")).group_by("_key")
    found = each.aggregate([("end", "count"), ("end", "max")]).sort_by("_key")
    until = pc.add(found["end_max"], pa.scalar(30 * 60_000_000, pa.duration("us")))
    hours = pc.add(pc.fill_null(state["hours"], 0), found["end_count"])
    return pa.table({"hours": hours, "until": until, "silent": pa.array([False] * state.num_rows)})


@pytest.mark.kafka
def test_windows_are_emitted_once_and_rows_fall_due_even_if_no_record_arrives(ledger: Ledger, tmp_path: Path) -> None:
    name, missed = ledger.app, f"missed-{uuid4().hex[:8]}"
    ledger.kafka.create_topics({missed: 1})
    app, closed = sw.App(name), sw.repartition("closed", "station", partitions=1)
    app.stage(
        reads=sw.topic(ledger.topic),
        writes=closed,
        key=["hour", "station"],
        state=sw.aggregate(n=sw.count(), mm=sw.sum("mm")),
        table=sw.table(partitions=2),
        event_time=sw.event_time(emits="final", late=sw.sink(missed, key="station")),
    )(hourly)
    watched = sw.update(quiet, state="hours long, until timestamp, silent boolean", due="until")
    app.stage(reads=closed, state=watched, table=sw.table(partitions=2), name="stations")(lambda rows: rows)

    def run(*records: tuple[str, float]) -> dict[str, tuple[int, bool]]:
        """Send readings by station and minute, run until done, and return the results by station."""
        send(ledger, (reading(*one) for one in records))
        app.run(store=ledger.store, kafka=ledger.bootstrap, until_caught_up=True)
        return {row["station"]: (row["hours"], row["silent"]) for row in ledger.table("stations").to_pylist()}

    assert run(("a", 0), ("b", 5), ("a", 10), ("a", 61), ("b", 75)) == {"a": (1, False), "b": (1, False)}
    assert run(("a", 200), ("b", 59)) == {"a": (2, True), "b": (2, True)}
    (late,) = committed(open_kafka(ledger.bootstrap), missed)
    assert (late.key(), json.loads(late.value() or b"")["at"]) == (b"b", "2026-03-01T12:59:00.000Z")
    ledger.verify(name)
    store, cache = open_store(ledger.store), SstCache(tmp_path / "cache" / "replay", 1 << 30)
    with open_program(app, store, cache, ledger.kafka) as program:
        for stage, sent, late_rows in (("hourly", [2, 2], [1]), ("stations", [], [])):
            batches = [one for one in history.iter_after(store, name, stage, 0) if one.kind == "batch"]
            assert [rows for one in batches for out in one.outputs.values() if (rows := out.rows)] == sent
            assert [rows for one in batches for sink in one.sinks.values() if (rows := sink.rows)] == late_rows
            replay = StageReplay.for_version(program, next(filter(without_records, reversed(batches))))
            assert compare(replay, read_sent_rows(replay)).same, "a replay lets the same rows fall due"


def without_records(version: Manifest) -> bool:
    return not any(read.rows for read in version.inputs.values())


Window = tuple[datetime, datetime, str]
"""Start, end and station."""


def by_window(rows: list[dict[str, Any]], column: str) -> dict[Window, tuple[int, int]]:
    each = ((*(row[column][name].astimezone(UTC) for name in ("start", "end")), row["station"]) for row in rows)
    found = dict(zip(each, ((row["n"], row["mm"]) for row in rows), strict=True))
    assert len(found) == len(rows)
    return found


def sparks_own(
    batches: list[list[dict[str, object]]], folder: Path
) -> tuple[dict[Window, tuple[int, int]], dict[Window, tuple[int, int]]]:
    """Return the results of Spark's `groupBy` over these batches: windows, and closed sessions."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    (folder / "in").mkdir()
    # One for all tests of this process: its settings are not for them.
    spark = spark.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "2")

    def start(window: Column, mode: str, note: Callable[[dict[Window, tuple[int, int]]], None]) -> StreamingQuery:
        return (
            spark.readStream.schema("station string, at timestamp, mm long")
            .json(str(folder / "in"))
            .withWatermark("at", "10 minutes")
            .groupBy(window.alias("window"), "station")
            .agg(F.count("*").alias("n"), F.sum("mm").alias("mm"))
            .writeStream.outputMode(mode)
            .foreachBatch(lambda rows, _: note(by_window([row.asDict(True) for row in rows.collect()], "window")))
            .option("checkpointLocation", str(folder / mode))
            .start()
        )

    windows: dict[Window, tuple[int, int]] = {}
    sessions: list[dict[Window, tuple[int, int]]] = []
    queries = [
        start(F.window("at", "1 hour"), "update", windows.update),
        start(F.session_window("at", "7 minutes"), "append", sessions.append),
    ]
    for number, batch in enumerate(batches):
        (folder / "writing").write_text("\n".join(map(json.dumps, batch)))
        (folder / "writing").rename(folder / "in" / f"{number}.json")
        for query in queries:
            query.processAllAvailable()
    for query in queries:
        query.stop()
    ended = {window: counts for each in sessions for window, counts in each.items()}
    assert len(ended) == sum(map(len, sessions)), "Spark, too, has each once"
    return windows, ended


def one_stage(function: object, **declared: object) -> sw.App:
    app = sw.App("app")
    app.stage(**{"name": "one", "reads": sw.topic("t"), "writes": sw.repartition("c", "key"), **declared})(function)  # type: ignore[arg-type, call-overload]
    return app


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda t: t.withWatermark("value", "1 hour"), "value.*TIMESTAMP"),
        (lambda t: t.withWatermark("nothing", "1 hour"), "nothing"),
        (lambda t: t.withWatermark("timestamp", "soon"), "soon"),
        (
            lambda t: t.withWatermark("timestamp", "1 hour").select("key"),
            "'timestamp', which its returned rows do not have",
        ),
        (lambda t: t.withWatermark("timestamp", "1 hour"), "lacks a window"),
        (lambda t: t, "lacks a watermark"),
    ],
)
def test_a_watermark_that_cannot_be_tracked_is_refused_with_one_sentence(function: object, said: str) -> None:
    late = {"event_time": sw.event_time(late=sw.repartition("late", "key"))} if "lacks" in said else {}
    spark = SparkSession.getActiveSession()
    assert spark is not None
    with pytest.raises(Refused, match=said) as refused:
        derive_schemas(one_stage(function, **late), spark)
    assert len(refused.value.message.splitlines()) == 1


def visits(raw: DataFrame) -> DataFrame:
    gap = F.when(F.col("partition") == 0, "5 minutes").otherwise("1 hour")
    timed = raw.withWatermark("timestamp", "1 minute").withColumn("session", F.session_window("timestamp", gap))
    return timed.withColumnRenamed("session", "s")


FINAL = sw.event_time(emits="final", late="table")


def test_sessions_are_not_in_the_tables_key_and_windows_only_if_emitted_or_late() -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    app, by_visit = sw.App("app"), sw.repartition("by-visit", ["s", "key"])
    app.stage(name="visits", reads=sw.topic("t"), writes=by_visit)(visits)
    counted, over = sw.aggregate(n=sw.count()), sw.repartition("over", ["s", "key"])
    app.stage(
        name="sessions", reads=by_visit, writes=over, key=["s", "key"], state=counted, event_time=FINAL, table=TWO_DAYS
    )(lambda rows: rows)
    app.stage(name="ended", reads=over, state=counted)(lambda rows: rows)
    known = derive_schemas(app, spark)
    tables = {name: shape.table for name, shape in known.items() if shape.table is not None}
    assert {name: [column.name for column in table.key] for name, table in tables.items()} == {
        "sessions": ["key"],
        "sessions_late": ["s", "key"],
        "ended": ["s", "key"],
    }
    assert [(one.name, one.type) for one in tables["sessions"].values] == [
        ("s", "list<struct<start: timestamp[us, tz=UTC], end: timestamp[us, tz=UTC], n: int64>>"),
        ("_due_at", "int64"),
    ]
    assert (known["sessions"].key, known["sessions"].lateness_columns, known["sessions"].due_by) == (
        ("key",),
        ("s",),
        "watermark",
    )


TWO_DAYS = sw.table(ttl="2 days")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({}, "emits sessions before they have ended. An emitted session could not be withdrawn"),
        ({"writes": ()}, "emits sessions before they have ended"),
        ({"event_time": sw.event_time(emits="final"), "key": "s"}, "'s' in its key, but no other column"),
        ({"event_time": sw.event_time(emits="final"), "key": ["key", "s", "s2"]}, "'s' in its key, and also 's2'"),
    ],
)
def test_sessions_that_could_not_become_final_are_refused_with_one_sentence(
    declared: dict[str, Any], said: str
) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None

    def twice(raw: DataFrame) -> DataFrame:
        rows = visits(raw)
        return rows.withColumn("s2", F.col("s"))

    app = one_stage(twice, **{"key": ["s", "key"], "state": sw.aggregate(n=sw.count()), **declared})
    with pytest.raises(Refused, match=said):
        derive_schemas(app, spark)


def test_sessions_without_a_watermark_are_refused_with_one_sentence() -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    app = one_stage(
        lambda raw: raw.withColumn("s", F.session_window("timestamp", "5 minutes")),
        key=["s", "key"],
        state=sw.aggregate(n=sw.count()),
        event_time=sw.event_time(emits="final"),
    )
    with pytest.raises(Refused, match="rows that fall due at the watermark, but no watermark"):
        derive_schemas(app, spark)


def test_watermarks_of_several_inputs_are_tracked_separately_if_possible() -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None

    def same(rows: object) -> object:
        return rows

    two = {
        "reads": (sw.topic("t"), sw.topic("u")),
        "key": "key",
        "state": sw.update(same, state="n long", emits="key binary, n long"),  # type: ignore[arg-type]
    }

    def each(t: DataFrame, u: DataFrame) -> tuple[DataFrame, DataFrame]:
        return t.withWatermark("timestamp", "1 hour"), u.withWatermark("timestamp", "1 minute")

    (shape,) = derive_schemas(one_stage(each, **two), spark).values()
    first, second = Watermark(("_0_timestamp",), 3_600_000, ("t",)), Watermark(("_1_timestamp",), 60_000, ("u",))
    assert (shape.watermarks, shape.inputs_with_watermark) == ((first, second), {"t", "u"})
    (shape,) = derive_schemas(one_stage(each, **two | {"key": "timestamp"}), spark).values()
    assert [(one.columns, one.part) for one in shape.watermarks] == [(("timestamp",), 0), (("timestamp",), 1)]
    (shape,) = derive_schemas(one_stage(lambda t, u: (each(t, u)[0], u), **two), spark).values()
    assert (shape.watermarks, shape.inputs_with_watermark) == ((first,), {"t"})
    (shape,) = derive_schemas(
        one_stage(lambda t, u: t.union(u).withWatermark("timestamp", "1 hour"), **two), spark
    ).values()
    assert shape.watermarks == (Watermark(("timestamp",), 3_600_000, ("t", "u")),)
    with pytest.raises(Refused, match="makes a union of DataFrames with watermarks"):
        derive_schemas(one_stage(lambda t, u: t.unionByName(each(t, u)[1]), **two), spark)
    named = derive_schemas(rain("rain", "readings"), spark)
    assert {name: shape.inputs_with_watermark for name, shape in named.items()} == {
        "readings": {"readings"},
        "hours": {"by-station"},
    }
