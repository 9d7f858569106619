"""Tools for tests of an app: run it on given rows without Kafka and S3, or replay a batch of its history.

`run` and `replayed` need Spark on this machine; `MemoryKafka` needs nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..common import runtime
from ..common.extras import require_extras
from ..errors import NotFound, Usage
from ..pipeline.kafka.memory import MemoryKafka
from ..pipeline.kafka.protocol import Record
from ..store.versions.keys import is_source

if TYPE_CHECKING:
    import pyarrow as pa

    from ..client.app import StoredApp
    from ..client.moment import Moment
    from ..operations.debugging.replay.compare import Comparison
    from ..pipeline.api.app import App
    from .table_sinks import PublishedRows

__all__ = ["MemoryKafka", "Ran", "Record", "Replayed", "load", "replayed", "run"]

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of replaying a batch. A NaN is always the object `math.nan`, so that rows with NaN compare equal."""

    keys: tuple[tuple[tuple[object, ...], Row | None], ...]
    """Keys that the original batch or the replay changed, each with its row after the replay, or None."""
    sent: dict[str, list[Row]]
    """Rows that the replay sent, by channel, sorted by `repr`."""
    comparison: Comparison

    @property
    def same(self) -> bool:
        """True if the replay equals the committed version."""
        return self.comparison.same

    def row(self, *key: object) -> Row | None:
        """Return a key's row after the replay; None if it has no row.

        Raises `NotFound` if neither the original batch nor the replay changed the key.
        """
        for candidate, row in self.keys:
            if candidate == key:
                return row
        raise NotFound("changed key", repr(key), (repr(candidate) for candidate, _ in self.keys))


def replayed(bundle: str | os.PathLike[str], program: str | os.PathLike[str] | None = None) -> Replayed:
    """Replay a batch with a program, on a local Spark session. Neither Kafka nor the app's store is needed.

    Uses the Spark session of this process, or starts one for this call.

    Args:
        bundle: File written by `slackwater replay --bundle`.
        program: Python file that declares the app; default the program in the bundle.

    Raises:
        NotFound: The file does not exist, or the program has no such stage.
        Refused: The file is no bundle; or the program does not run, or cannot replay the batch.
    """
    require_extras("spark", "a replay")
    from ..operations.debugging.replay.bundle import read
    from ..operations.debugging.replay.bundled import open_bundle
    from ..operations.debugging.replay.compare import compare
    from ..operations.debugging.replay.expectation import sorted_rows
    from ..operations.debugging.replay.literals import with_canonical_nan

    with open_bundle(read(Path(bundle)), None if program is None else Path(program)) as opened:
        comparison = compare(*opened)
    keys = (
        (
            tuple(map(with_canonical_nan, change.key.values())),
            None if change.after is None else with_canonical_nan({**change.key, **change.after}),
        )
        for change in comparison.keys or ()
    )
    return Replayed(
        tuple(keys), {channel.name: sorted_rows(channel.replayed) for channel in comparison.channels}, comparison
    )


class _TemporaryFolder:
    """Temporary folder that is removed with the last object that refers to it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="slackwater-run-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Ran(Mapping[str, "pa.Table"]):
    """Result of running an app on given rows: a mapping of table names to Arrow tables, with rows in key order.

    Tables of rejected and late rows are included: `<stage>_rejected`, `<stage>_late`.
    """

    def __init__(
        self, declared: App, app: StoredApp, kafka: MemoryKafka, folder: _TemporaryFolder, published: PublishedRows
    ) -> None:
        self.declared = declared
        self._published = published
        self.app = app
        """Stored app with its history: `ran.app.log()`, `ran.app.at("~1").get(…)`."""
        self.moment: Moment = app.at()
        """Final state of all stages: `ran.moment.query("FROM countries")`."""
        self.kafka = kafka
        self.folder = folder
        weakref.finalize(self, app._client.close)

    def __getitem__(self, table: str) -> pa.Table:
        tables = self.moment.tables
        if table not in tables:
            raise NotFound("table", table, tables)
        key = ", ".join(f'"{column.name}"' for column in tables[table] if column.key) or "ALL"
        return self.moment.query(f'FROM "{table}" ORDER BY {key}').to_arrow_table()

    def __iter__(self) -> Iterator[str]:
        return iter(self.moment.tables)

    def __len__(self) -> int:
        return len(self.moment.tables)

    @property
    def sent(self) -> dict[str, list[Record]]:
        """Records that the app wrote for others, by topic: output of sinks, and rejected records."""
        return {topic: _records(self.kafka, topic) for topic in _written_topics(self.declared)}

    def published(self, sink: str) -> pa.Table:
        """Return the rows for the table of a `delta(…)` or `iceberg(…)`, which is not written. Raises `NotFound`."""
        import pyarrow as pa

        if not self._published.get(sink):
            raise NotFound("table sink with rows", sink, self._published)
        return pa.concat_tables(self._published[sink], promote_options="default")

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table as dictionaries. Raises `NotFound` for an unknown table."""
        rows: list[Row] = self[table].to_pylist()
        return rows

    def row(self, table: str, *key: object) -> Row | None:
        """Return the row of a key; None if the table has no such key. Raises `NotFound` for an unknown table."""
        return self.moment.get(table, key)


def load(program: str | os.PathLike[str]) -> App:
    """Return the app that a Python file declares, for `run`.

    Raises `NotFound` if there is no such file, `Refused` if its code raises an error, and `Usage` unless it declares
    one app.
    """
    require_extras("spark", "running an app")
    from ..pipeline.run.program import load_app

    return load_app(os.fspath(program))


def run(
    app: App,
    topics: Mapping[str, Iterable[object]],
    *,
    partitions: int | Mapping[str, int] = 1,
    after: Ran | None = None,
    max_records: int | None = None,
    spark_conf: Mapping[str, str] | None = None,
) -> Ran:
    """Run an app until it has read all the given records, and return its tables. Needs neither Kafka nor S3.

    Otherwise the run is as in production: Spark plans and runs each batch, and the state is stored as SSTs. They are in
    a local folder that is removed together with the result. The first call starts a Spark session, unless the process
    has one; later calls and other tests reuse the session.

    Example:
        >>> ran = run(app, {"orders": [{"country": "DE", "cents": 7}, {"country": "DE", "cents": 5}]})
        >>> ran.row("countries", "DE")
        {'country': 'DE', 'orders': 2, 'cents': 12, 'largest': 7}

    Args:
        app: The app, as the program declares it.
        topics: Records of each topic that the app reads, in order. A record is given as its value (a dictionary or
            another JSON value, text, bytes or None), or as a `Record` with value, key, headers, partition and time in
            ms since 1970. A topic that is not listed is empty.
        partitions: Number of partitions of every topic, or a mapping with the number of each topic. A record without a
            partition is placed by its key; records without a key are placed round-robin.
        after: Result of an earlier run to continue from, possibly with another program.
        max_records: Maximum number of records of each input per batch. A lower number results in more batches.
        spark_conf: Settings of Spark, if this call starts it.

    Raises:
        NotFound: The app does not read a topic of this name.
        Usage: The app has no stage, or a record has another type.
        Refused: The app does not run, or a stage failed; with `after`, the program does not fit the stored app.
        KeyboardInterrupt: The process got SIGINT or SIGTERM before the end.
    """
    require_extras("spark", "running an app")
    from ..client.client import Client
    from ..pipeline.api.app import App
    from ..pipeline.listener import Listener
    from ..pipeline.run.options import Options
    from ..pipeline.run.program import run_app
    from ..pipeline.run.stopping import stop_signals
    from ..settings import Settings
    from .table_sinks import collect_rows

    if not isinstance(app, App):
        raise Usage(
            f"the app to run is a {type(app).__name__}; expected a slackwater.App",
            hint="pass module.app, not the module",
        )
    kafka = after.kafka if after is not None else MemoryKafka.named(f"memory://{runtime.random_hex()}")
    _send(kafka, app, topics, partitions)
    folder = after.folder if after is not None else _TemporaryFolder()
    settings = Settings(store=str(folder.path / "store"), brokers=kafka.address, cache=str(folder.path / "cache"))
    options = Options(
        store=settings.store_root(),
        kafka=kafka.properties,
        until_caught_up=True,
        cache_folder=folder.path / "cache",
        max_records=max_records,
        spark_conf=dict(spark_conf or {}),
        gc_every_ms=None,
    )
    _start_spark(options.spark_conf)
    published = {name: [*rows] for name, rows in after._published.items()} if after is not None else {}
    with stop_signals() as stop:
        run_app(collect_rows(app, published), options, Listener(), stop=stop)
    if stop.is_set():
        # Otherwise the run would end well, with tables of only some of the records, on which a test would fail.
        raise KeyboardInterrupt(f"the run of app {app.name!r} was stopped by a signal")
    return Ran(app, Client(settings).app(app.name), kafka, folder, published)


def _send(
    kafka: MemoryKafka, app: App, topics: Mapping[str, Iterable[object]], partitions: int | Mapping[str, int]
) -> None:
    for topic in topics:
        if topic not in app.topics:
            raise NotFound(f"topic that app {app.name!r} reads", topic, app.topics)
        if is_source(topic):
            raise Usage(f"{topic} gets no records here: it is read from the files that the program declares")
    counts = dict.fromkeys(sorted(app.topics), 1) | dict.fromkeys(_written_topics(app), 1)
    counts |= dict.fromkeys(app.topics, partitions) if isinstance(partitions, int) else partitions
    kafka.create_topics(counts)
    for topic, rows in topics.items():
        kafka.send(topic, _assign_in_turns([*map(_record, rows)], kafka.partition_counts()[topic]), patience_s=0)


_spark = ExitStack()
"""Stack that stops the Spark session of `run` when this process ends."""


def _start_spark(conf: Mapping[str, str]) -> None:
    from ..pipeline.spark.session import running_session, spark_session

    if running_session() is None:
        quiet = {"spark.ui.enabled": "false", **conf}
        _spark.enter_context(
            spark_session("slackwater.testing", master=quiet.pop("spark.master", "local[2]"), conf=quiet)
        )
        atexit.register(_spark.close)


def _written_topics(app: App) -> list[str]:
    stages = app.stages.values()
    sinks = {sink.name for stage in stages for sink in stage.sinks if sink.kind == "topic"}
    return sorted(sinks | {stage.rejects for stage in stages if stage.rejects})


def _records(kafka: MemoryKafka, topic: str) -> list[Record]:
    starts, ends = kafka.offset_bounds(topic)
    return [
        Record(message.value(), partition, message.key(), message.headers() or (), message.timestamp()[1])
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True))
        for chunk in kafka.read(topic, partition, start, end, patience_s=0)
        for message in chunk
    ]


def _record(row: object) -> Record:
    record = row if isinstance(row, Record) else Record(_value(row))
    return record._replace(value=_value(record.value))


def _value(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, dict | list | bool | int | float):
        raise Usage(
            f"a row is a {type(value).__name__}; expected a dictionary, text, bytes, None, or a Record of one of these",
            hint="a DataFrame of pandas: rows.to_dict('records'); a table of Arrow: rows.to_pylist()",
        )
    try:
        return json.dumps(value, default=_as_json).encode()
    except (TypeError, ValueError) as error:
        raise Usage(f"a row cannot be written as JSON: {error}", hint="give its bytes instead") from None


def _as_json(value: object) -> object:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _assign_in_turns(records: Sequence[Record], partitions: int) -> list[Record]:
    turns = cycle(range(partitions))
    return [
        record._replace(partition=next(turns)) if record.key is None and record.partition is None else record
        for record in records
    ]
