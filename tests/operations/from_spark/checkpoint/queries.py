"""Checkpoints of plain Spark queries, one per stateful operator.

Small recorded checkpoints are in `tests/operations/from_spark/checkpoint/recorded`; `python -m
tests.operations.from_spark.checkpoint.queries FOLDER` records them again with the installed Spark. Names that end in
`-spark3` are checkpoints of Spark 3.5.8, which has no `StatefulProcessor`.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from tests.support.running import eventually

BATCHES = 5
_ROWS = 12
_STATE = "org.apache.spark.sql.execution.streaming.state"
_SETTINGS = "spark.sql.streaming.stateStore"
_CHANGELOG = f"{_SETTINGS}.rocksdb.changelogCheckpointing.enabled"
PROVIDERS = {
    "hdfs": {f"{_SETTINGS}.providerClass": f"{_STATE}.HDFSBackedStateStoreProvider"},
    "rocksdb": {f"{_SETTINGS}.providerClass": f"{_STATE}.RocksDBStateStoreProvider", _CHANGELOG: "false"},
    "changelog": {f"{_SETTINGS}.providerClass": f"{_STATE}.RocksDBStateStoreProvider", _CHANGELOG: "true"},
    "format2": {
        f"{_SETTINGS}.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
        _CHANGELOG: "true",
        f"{_SETTINGS}.checkpointFormatVersion": "2",
    },
}
"""Settings of each state store provider."""

RECORDED = Path(__file__).parent / "recorded"
READ_SINCE = {"format2": (4, 1), "transform": (4, 2)}
"""First Spark version whose own reader can read recordings that have this part in their name."""
_PLACE = b"file:/recorded/"
"""Location that is written into a packed checkpoint."""


def write_input(folder: Path) -> None:
    """Write one file per batch, with events ten minutes apart."""
    random = Random(1)
    folder.mkdir()
    for batch in range(BATCHES):
        begin = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=10 * batch)
        rows = [
            {
                "k": random.choice("abcdef") if random.random() < 0.95 else None,
                "v": random.randrange(100),
                "d": random.random(),
                "t": (begin + timedelta(minutes=random.randrange(10))).isoformat(),
                "o": random.randrange(5),
            }
            for _ in range(_ROWS)
        ]
        file = folder / f"{batch}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1000 + batch, 1000 + batch))


def _aggregate(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(
        F.count("*"), F.sum("v"), F.min("v"), F.max("d"), F.avg("v"), F.first("v"), F.last("v"), F.stddev("d")
    )


def _approximate(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k", "o").agg(F.approx_count_distinct("v"), F.sum(F.col("v").cast("decimal(10, 2)")))


def _collected(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.struct("k", "o").alias("both")).agg(F.collect_list("v"), F.collect_set("v"))


def _total(rows: DataFrame) -> DataFrame:
    return rows.agg(F.count("*"), F.sum("v"))


def _window(rows: DataFrame) -> DataFrame:
    return _timed(rows).groupBy(F.window("t", "10 minutes", "5 minutes"), "k").agg(F.count("*"), F.sum("v"))


def _session(rows: DataFrame) -> DataFrame:
    return _timed(rows).groupBy(F.session_window("t", "3 minutes"), "k").agg(F.count("*"), F.sum("v"))


def _distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k", "o"])


def _distinct_in_time(rows: DataFrame) -> DataFrame:
    return _timed(rows).dropDuplicatesWithinWatermark(["k", "o"])


def _joined(rows: DataFrame) -> DataFrame:
    return _pairs(rows, "leftOuter")


def _pairs(rows: DataFrame, how: str) -> DataFrame:
    left = _timed(rows.where("v % 2 = 0")).select(*(F.col(name).alias(f"left_{name}") for name in "kvt"))
    right = _timed(rows.where("v % 2 = 1")).select(*(F.col(name).alias(f"right_{name}") for name in "kvt"))
    near = "left_k = right_k AND right_t BETWEEN left_t - INTERVAL 5 MINUTES AND left_t + INTERVAL 5 MINUTES"
    return left.join(right, F.expr(near), how)


def _pandas(rows: DataFrame) -> DataFrame:
    def count(key: Any, pieces: Any, state: Any) -> Iterator[pd.DataFrame]:
        seen = (state.get[0] if state.exists else 0) + sum(map(len, pieces))
        if seen > 15:
            state.remove()
        else:
            state.update((seen, "text"))
        yield pd.DataFrame({"k": [key[0]], "n": [seen]})

    return rows.groupBy("k").applyInPandasWithState(
        count, "k string, n long", "n long, w string", "update", "NoTimeout"
    )


class Everything(StatefulProcessor):
    """A processor with every kind of state variable, with and without time to live, and timers."""

    def init(self, handle: Any) -> None:
        ttl_ms = 3_600_000
        self._handle = handle
        self._total = handle.getValueState("total", "n long, w string")
        self._seen = handle.getListState("seen", "v long")
        self._by_o = handle.getMapState("by_o", "o long", "c long, s string")
        self._total_ttl = handle.getValueState("total_ttl", "n long", ttl_ms)
        self._seen_ttl = handle.getListState("seen_ttl", "v long", ttl_ms)
        self._by_o_ttl = handle.getMapState("by_o_ttl", "o long", "n long", ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        total = self._total.get()[0] if self._total.exists() else 0
        for piece in rows:
            total += len(piece)
            for v, o in zip(piece.v, piece.o, strict=True):
                self._seen.appendValue((int(v),))
                self._seen_ttl.appendValue((int(v),))
                self._by_o.updateValue((int(o),), (int(v), "text"))
                self._by_o_ttl.updateValue((int(o),), (int(v),))
        if total > 9:
            self._total.clear()
            self._seen.put([(-1,)])
            self._by_o.clear()
        else:
            self._total.update((total, "text"))
        self._total_ttl.update((total,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 100_000_000)
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        yield pd.DataFrame({"k": [key[0]], "n": [0]})

    def close(self) -> None: ...


def _transform(rows: DataFrame) -> DataFrame:
    rows = rows.where("k IS NOT NULL")
    return rows.groupBy("k").transformWithStateInPandas(Everything(), "k string, n long", "Update", "ProcessingTime")


def _two(rows: DataFrame) -> DataFrame:
    return _timed(rows).dropDuplicates(["k", "t"]).groupBy(F.window("t", "10 minutes"), "k").count()


def _sessions_of_their_own_gap(rows: DataFrame) -> DataFrame:
    gap = F.when(F.col("k") == "a", "1 minute").when(F.col("k") == "b", "2 minutes").otherwise("5 minutes")
    return _timed(rows).groupBy(F.session_window("t", gap), "k").count()


def _windows_of_windows(rows: DataFrame) -> DataFrame:
    counts = _timed(rows).groupBy(F.window("t", "5 minutes"), "k").count()
    return counts.groupBy(F.window(F.window_time("window"), "15 minutes"), "k").agg(F.count("*"), F.sum("count"))


def _windows_of_pairs(rows: DataFrame) -> DataFrame:
    pairs = _pairs(rows, "inner")
    return pairs.groupBy(F.window("left_t", "10 minutes"), "left_k").count()


class LastSeen(StatefulProcessor):
    """A processor that reports an idle key, again and again while the key stays idle."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "at timestamp, note string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        newest = max(piece.t.max() for piece in rows)
        if not self._last.exists() or self._last.get()[0] < newest:
            for timer in self._handle.listTimers():
                self._handle.deleteTimer(timer)
            self._last.update((newest, None))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 100)
        yield pd.DataFrame({"k": [key[0]], "n": [0]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 200)
        yield pd.DataFrame({"k": [key[0]], "n": [1]})

    def close(self) -> None: ...


def _last_seen(rows: DataFrame) -> DataFrame:
    rows = rows.where("k IS NOT NULL")
    return rows.groupBy("k").transformWithStateInPandas(LastSeen(), "k string, n long", "Update", "ProcessingTime")


def _limited(rows: DataFrame) -> DataFrame:
    return rows.limit(30)


def _timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("t", "15 minutes")


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "aggregate": (_aggregate, "update"),
    "approximate": (_approximate, "update"),
    "collected": (_collected, "update"),
    "total": (_total, "update"),
    "window": (_window, "append"),
    "session": (_session, "append"),
    "distinct": (_distinct, "append"),
    "distinct-in-time": (_distinct_in_time, "append"),
    "join": (_joined, "append"),
    "pandas": (_pandas, "update"),
    "transform": (_transform, "update"),
    "two": (_two, "append"),
    "limit": (_limited, "append"),
    # Those that the guide to Structured Streaming has besides.
    "full-outer": (lambda rows: _pairs(rows, "fullOuter"), "append"),
    "semi": (lambda rows: _pairs(rows, "leftSemi"), "append"),
    "gaps": (_sessions_of_their_own_gap, "append"),
    "windows-of-windows": (_windows_of_windows, "append"),
    "windows-of-pairs": (_windows_of_pairs, "append"),
    "last-seen": (_last_seen, "update"),
}
"""Queries by name, each with its output mode."""
OF_CLASSES = ("transform", "last-seen")
"""Queries that use `transformWithState`, which the HDFS provider does not support."""
_ENCODED = {"last-seen": "avro"}
"""State encoding of these queries' classes, if it is not Spark's default. With Avro, the schema may change."""
_ENDLESS = OF_CLASSES
"""Queries that run batches without input because of their timers, and therefore never finish."""


def run_query(spark: SparkSession, name: str, provider: str, source: Path, checkpoint: Path) -> None:
    """Run a query over the files of `write_input`, with one batch for each."""
    query, mode = QUERIES[name]
    encoding = {f"{_SETTINGS}.encodingFormat": _ENCODED.get(name, "unsaferow")}
    for setting, value in {f"{_SETTINGS}.checkpointFormatVersion": "1", **encoding, **PROVIDERS[provider]}.items():
        spark.conf.set(setting, value)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rows = spark.readStream.schema("k string, v long, d double, t timestamp, o long")
    rows = query(rows.option("maxFilesPerTrigger", 1).json(str(source)))
    writer = rows.writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(checkpoint))
    running = writer.start() if name in _ENDLESS else writer.trigger(availableNow=True).start()
    try:
        if name in _ENDLESS:
            eventually(lambda: not running.isActive or (checkpoint / f"commits/{BATCHES}").exists(), "its batches")
        else:
            running.awaitTermination()
    finally:
        running.stop()
        # What Spark does beside queries would go on, and put a snapshot of the last batch there.
        spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


def pack(checkpoint: Path, into: Path) -> None:
    """Pack a checkpoint into one file, which does not depend on time and place."""
    with zipfile.ZipFile(into, "w") as packed:
        for file in sorted(each for each in checkpoint.rglob("*") if each.is_file() and each.suffix != ".crc"):
            entry = zipfile.ZipInfo(file.relative_to(checkpoint).as_posix())
            data = file.read_bytes().replace(f"file:{checkpoint}/".encode(), _PLACE)
            data = data.replace(f"file://{checkpoint.parent}/".encode(), b"file:///")
            packed.writestr(entry, data, zipfile.ZIP_DEFLATED)


def unpack(name: str, folder: Path) -> Path:
    """Unpack a recorded checkpoint into the folder. Skips the test if this Spark cannot read files of 4.3."""
    for part, since in READ_SINCE.items():
        if part in name and tuple(map(int, pyspark.__version__.split(".")[:2])) < since:
            pytest.skip(f"what Spark 4.3 writes of {part}, Spark reads since {since[0]}.{since[1]}")
    with zipfile.ZipFile(RECORDED / f"{name}.zip") as packed:
        packed.extractall(folder)
    for file in folder.glob("state/*/_metadata/v2/*"):  # here Spark names files by their whole paths
        file.write_bytes(file.read_bytes().replace(_PLACE, f"file:{folder}/".encode()))
    return folder


def _record(into: Path, wanted: list[str]) -> None:
    work = into / "work"
    work.mkdir(parents=True)
    write_input(work / "input")
    spark = SparkSession.builder.master("local[2]").config(map=_settings(work)).getOrCreate()
    for name in QUERIES.keys() & set(wanted) if wanted else QUERIES:
        for provider in PROVIDERS:
            if name in OF_CLASSES and provider == "hdfs":
                continue  # Spark has none
            run_query(spark, name, provider, work / "input", work / f"{name}-{provider}")
            pack(work / f"{name}-{provider}", into / f"{name}-{provider}.zip")
    for name in {"bean", "kryo"}.intersection(wanted or ("bean", "kryo")):
        for setting, value in PROVIDERS["changelog" if name == "bean" else "hdfs"].items():
            spark.conf.set(setting, value)
        checkpoint = work / f"map-groups-{name}"
        getattr(spark._jvm.MapGroups, name)(spark._jsparkSession, str(work / "input"), str(checkpoint))
        pack(checkpoint, into / f"{checkpoint.name}.zip")
    spark.stop()


def _settings(work: Path) -> dict[str, str]:
    """Return the session's settings for Java queries: Python lacks mapGroupsWithState and flatMapGroupsWithState."""
    jars = Path(pyspark.__file__).parent / "jars"
    source = Path(__file__).with_name("MapGroups.java")
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(work), str(source)], check=True)
    return {
        "spark.driver.extraClassPath": str(work),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }


if __name__ == "__main__":
    _record(Path(sys.argv[1]), sys.argv[2:])
