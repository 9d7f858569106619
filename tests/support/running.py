"""Apps that run as users run them: by `slackwater run` in a separate process, with a real broker."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import slackwater as sw
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from slackwater.cli import main
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka, Offsets
from slackwater.pipeline.listener import BatchReport, Callbacks, Listener
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.program import load_app
from slackwater.pipeline.run.runner import run
from slackwater.pipeline.run.stopping import StopEvent, StopRequested
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import Snapshot, cut_of_snapshot, read_snapshot
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take.capture import read_captured
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.apps import folder_of
from typer.testing import CliRunner

APPS = Path(__file__).parents[1] / "apps"
LEDGER, DIAMOND, PAIR, SPLIT = APPS / "ledger.py", APPS / "diamond.py", APPS / "pair.py", APPS / "split.py"
SLACKWATER = Path(sys.executable).parent / "slackwater"
TWO_STAGES = ("--stage", "entries", "--stage", "accounts")
"""Two stages of the ledger: one that reads a topic, and one with state. More stages would make tests slower."""
PATIENCE_S = 120.0
UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark settings for a few rows: compiling a query takes longer than interpreting it."""

EXPECTED = {
    LEDGER: {
        "accounts": "SELECT account, count(*) n, sum(amount)::BIGINT balance FROM raw GROUP BY account",
        "latest": "SELECT account, max(seq) seq, arg_max(branch, seq) branch, arg_max(amount, seq) amount FROM raw "
        "GROUP BY account",
        "branches": "SELECT branch, count(*) n, sum(amount)::BIGINT total, avg(amount) average, min(amount) low, "
        "max(account) high, arg_min(account, seq) opened_by, arg_max(account, seq) touched_by FROM raw "
        "GROUP BY branch",
    },
    DIAMOND: {
        "debits": "SELECT account, count(*) n, sum(amount)::BIGINT balance FROM raw WHERE amount < 0 GROUP BY account",
        "deposits": "SELECT account, count(*) n, sum(amount)::BIGINT balance FROM raw WHERE amount >= 0 "
        "GROUP BY account",
        "branches": "SELECT branch, count(*) FILTER (amount < 0) debits, count(*) FILTER (amount >= 0) credits, "
        "coalesce(sum(amount) FILTER (amount < 0), 0)::BIGINT debited, "
        "coalesce(sum(amount) FILTER (amount >= 0), 0)::BIGINT credited FROM raw GROUP BY branch",
    },
    SPLIT: {
        "paid": "SELECT account, count(*) n, sum(amount)::BIGINT total FROM raw WHERE amount < 0 GROUP BY account",
        "earned": "SELECT branch, count(*) n, sum(amount)::BIGINT total, max(seq) seq FROM raw WHERE amount >= 0 "
        "GROUP BY branch",
        "bands": 'SELECT account, count(*) FILTER (amount < -50) "large", count(*) FILTER (amount >= -50) "small", '
        "coalesce(sum(amount) FILTER (amount < -50), 0)::BIGINT lost FROM raw WHERE amount < 0 GROUP BY account",
    },
    PAIR: {
        "accounts": "SELECT account, count(*) n, sum(amount)::BIGINT balance FROM raw GROUP BY account",
        "branches": "SELECT branch, count(*) n, sum(amount)::BIGINT total FROM raw GROUP BY branch",
    },
}
"""Each table of the apps as SQL over the raw input."""


def eventually(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until a condition is true, at most until a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def committed_offsets(kafka: Kafka, group: str, topic: str) -> Offsets:
    """Return the offsets of a topic that a consumer group committed, as Kafka's own tools see them."""
    # Answers never come after the client is gone.
    admin = AdminClient(dict(kafka.properties))
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    places = sorted(
        (place.partition, place.offset) for place in answer.result().topic_partitions if place.topic == topic
    )
    return tuple(offset for _, offset in places)


@dataclass
class Ledger:
    """An app with its own store, topic and cache."""

    bootstrap: str
    folder: Path
    store: str = ""
    topic: str = field(default_factory=lambda: f"ledger-{uuid4().hex[:8]}")
    app: str = field(default_factory=lambda: f"app-{uuid4().hex[:8]}")
    sent: int = 0
    program: Path = LEDGER
    variant: str = ""
    """Variant of the program; for a separate process."""
    retention: Retention = field(default_factory=Retention)
    """Retention; for a run in this process."""

    def __post_init__(self) -> None:
        self.store = self.store or str(self.folder / "store")
        self.kafka.create_topics({self.topic: 3})

    @property
    def last_stage(self) -> str:
        """The stage farthest from the topic: a record that reaches it has passed all others."""
        return "branches"

    @property
    def kafka(self) -> Kafka:
        return open_kafka(self.bootstrap)

    def send(self, count: int, *, raw: tuple[bytes, ...] = ()) -> None:
        """Send entries that their numbers determine, and then the values `raw` unchanged."""
        random = np.random.default_rng(self.sent)
        accounts, amounts = (
            random.integers(0, 500, count).tolist(),
            random.integers(-100, 100, count).tolist(),
        )
        producer = Producer({**self.kafka.properties, "linger.ms": 5})
        for seq, account, amount in zip(range(self.sent, self.sent + count), accounts, amounts, strict=True):
            entry = {"seq": seq, "account": f"a{account}", "branch": account % 7, "amount": amount}
            producer.produce(self.topic, json.dumps(entry).encode(), partition=seq % 3)
            producer.poll(0)
        for value in raw:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(30) == 0
        self.sent += count

    def empty_kafka(self) -> None:
        """Delete from Kafka all records that the app has read, and those between its stages."""
        for head in resolve(open_store(self.store), self.app, now_ms=0).stages.values():
            for at in head.inputs.values():
                for partition, end in enumerate(self.kafka.offset_bounds(at.topic)[1]):
                    self.kafka.delete_records(at.topic, end, partition)
                assert self.kafka.offset_bounds(at.topic)[0] == self.kafka.offset_bounds(at.topic)[1]

    @contextmanager
    def fed(self, rows: int = 100) -> Iterator[None]:
        """Send this many entries five times a second during the block."""
        stop = threading.Event()

        def feed() -> None:
            while not stop.wait(0.2):
                self.send(rows)

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def raw(self, offsets: tuple[int, ...] | None = None) -> pa.Table:
        """Return the valid entries in the topic, up to these offsets if given."""
        found = []
        earliest, ends = self.kafka.offset_bounds(self.topic)
        ends = offsets or ends
        for partition, (start, end) in enumerate(zip(earliest, ends, strict=True)):
            for messages in self.kafka.read(self.topic, partition, start, end, patience_s=180):
                found += [message.value() for message in messages]
        return pa.Table.from_pylist([json.loads(value) for value in found if value.startswith(b"{")])

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LEDGER_TOPIC": self.topic,
            "LEDGER_VARIANT": self.variant,
            "SLACKWATER_STORE": self.store,
            "SLACKWATER_KAFKA": self.bootstrap,
            "SLACKWATER_CACHE": str(self.folder / "cache"),
        }

    def slackwater(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a verb that ends by itself.

        `run` gets its own process; other verbs are called in this one, which is faster.
        """
        if words[0] == "run":
            command = [SLACKWATER, *words]
            done = subprocess.run(command, capture_output=True, text=True, env=self.environment(), timeout=PATIENCE_S)
        else:
            said = CliRunner().invoke(main.app, words, env=self.environment())
            done = subprocess.CompletedProcess(words, said.exit_code, said.stdout, said.stderr)
        assert not check or done.returncode == 0, done.stderr
        return done

    def catch_up(
        self, *stages: str, variant: str = "", max_records: int | None = None, accept_loss: bool = False
    ) -> None:
        """Run the app in this process and its Spark session until nothing remains to be read."""
        options = replace(self._options(stages, max_records), until_caught_up=True, accept_loss=accept_loss)
        run(self._loaded(variant), options, Listener())

    @contextmanager
    def running_here(self, *stages: str, max_records: int | None = None) -> Iterator[Callable[..., BatchReport]]:
        """Run the app in this process and its Spark session until the block ends.

        Yields a function that waits for the next commit, of a given stage or of any. Use this if a test needs no
        separate process, because starting one takes a CPU core for half a minute.

        If the app fails, the function raises the app's error. If the function is not called afterwards, the error is
        raised at the end of the block.
        """
        stop, commits = StopEvent(), queue.SimpleQueue[BatchReport | None]()
        app, options, told = self._loaded(), self._options(stages, max_records), list[BaseException]()

        def work() -> None:
            try:
                with suppress(StopRequested):
                    run(app, options, Callbacks(committed=commits.put), stop=stop)
            finally:
                commits.put(None)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)

            def await_commit(stage: str = "") -> BatchReport:
                while (commit := commits.get(timeout=PATIENCE_S)) is None or (stage and commit.stage != stage):
                    if commit is None:
                        ended = done.exception(PATIENCE_S)
                        told.append(ended or AssertionError(f"it ended before {stage} committed"))
                        raise told[-1]
                return commit

            try:
                yield await_commit
            finally:
                stop.set()
            if not told:
                done.result(PATIENCE_S)

    def _loaded(self, variant: str = "") -> sw.App:
        os.environ.update(LEDGER_TOPIC=self.topic, LEDGER_VARIANT=variant)
        return load_app(str(self.program), name=self.app)

    def _options(self, stages: tuple[str, ...], max_records: int | None) -> Options:
        return Options(
            store=self.store,
            kafka=self.kafka.properties,
            stages=stages,
            max_records=max_records,
            patience_s=180,
            cache_folder=self.folder / "cache" / "sst",
            retention=lambda _app: self.retention,
        )

    @contextmanager
    def running(self, *words: str, sabotage: str = "", for_people: bool = False) -> Iterator["Running"]:
        """Run the app in its own process until the block ends. For `sabotage`, see apps/sabotage.py.

        Commits are printed as JSON, so that tests can wait for them, or as text if `for_people`.
        """
        command = [
            SLACKWATER,
            "run",
            str(self.program),
            "--app",
            self.app,
            "--master",
            "local[2]",
            *(() if for_people else ("--json",)),
            *words,
        ]
        errors = self.folder / f"stderr-{uuid4().hex[:6]}"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self.environment() | {"SABOTAGE": sabotage},
                start_new_session=True,
            )
        running = Running(self, process, errors)
        try:
            yield running
        finally:
            running.kill()

    def table(self, name: str, ref: str | None = None) -> pa.Table:
        """Return a table as `slackwater query` does."""
        return self.sql(f'SELECT * FROM "{name}"', ref)

    def sql(self, query: str, ref: str | None = None) -> pa.Table:
        """Return the result of `slackwater query`."""
        store = open_store(self.store)
        cut = resolve(store, ref or folder_of(store, self.app), now_ms=time.time_ns() // 1_000_000)
        cache = SstCache(self.folder / "cache" / "query", 1 << 30)
        with connect(store, cache, cut) as connection:
            return run_query(connection, query)

    def has_caught_up(self) -> bool:
        """True if every stage has read all records available to it, and the topic has been read to its end."""
        store = open_store(self.store)
        heads = resolve(store, folder_of(store, self.app), now_ms=0).stages
        ends = self.kafka.offset_bounds(self.topic)[1]
        return all(
            read.rows_passed == heads[read.upstream].outputs[name].sent if read.upstream else read.offsets == ends
            for head in heads.values()
            for name, read in head.inputs.items()
        )

    def check_tables(self) -> None:
        """Check that every table equals the result of SQL over the raw input."""
        raw = self.raw()
        for name, sql in EXPECTED[self.program].items():
            expected = duckdb.connect().from_arrow(raw).query("raw", sql).to_arrow_table()
            found = self.table(name).select(expected.column_names)
            assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str), name

    def check_snapshot(self, name: str) -> Snapshot:
        """Check a snapshot.

        Every table, after the records in flight to it have arrived, must equal the result of SQL over the input that
        the snapshot has read.
        """
        self.verify(f"{self.app}@{name}")
        store = open_store(self.store)
        snapshot = read_snapshot(store, self.app, name)
        cut = cut_of_snapshot(store, snapshot)
        (source,) = (read for stage in cut.stages.values() for read in stage.inputs.values() if not read.upstream)
        raw = self.raw(source.offsets)
        for table, sql in EXPECTED[self.program].items():
            expected = duckdb.connect().from_arrow(raw).query("raw", sql).to_arrow_table()
            found = self.table(table, f"{self.app}@{name}").select(expected.column_names)
            late = [rows for kept in snapshot.channels if kept.receiver == table for rows in read_captured(store, kept)]
            if late:
                found = plus(self.program, table, found, pa.concat_tables(late, promote_options="default"))
            assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str), (name, table)
        return snapshot

    def verify(self, ref: str) -> Report:
        """Verify a moment twice: from manifests only, and with all bytes and Kafka's messages."""
        store, reader, now_ms = open_store(self.store), KafkaChannels(self.kafka), time.time_ns() // 1_000_000
        assert verify(store, ref, now_ms=now_ms).differences == ()
        report = verify(store, ref, now_ms=now_ms, deep=True, reader=reader, topics=reader)
        assert (report.differences, report.not_reread) == ((), ())
        return report


def plus(program: Path, table: str, state: pa.Table, late: pa.Table) -> pa.Table:
    """Return a table as it will be after its in-flight records have arrived.

    Only for tables that have in-flight records in tests.
    """
    assert (program, table) == (DIAMOND, "branches"), f"{table} has one input: nothing may be in flight"
    con = duckdb.connect()
    con.register("state", state)
    con.register("late", late)
    return con.query(
        f"WITH late AS ({EXPECTED[program][table].replace('FROM raw', 'FROM late')}) "
        "SELECT branch, coalesce(s.debits, 0) + coalesce(l.debits, 0) debits, "
        "coalesce(s.credits, 0) + coalesce(l.credits, 0) credits, "
        "coalesce(s.debited, 0) + coalesce(l.debited, 0) debited, "
        "coalesce(s.credited, 0) + coalesce(l.credited, 0) credited FROM state s FULL JOIN late l USING (branch)"
    ).to_arrow_table()


@dataclass
class Running:
    """A running `slackwater run`. A thread reads its output all the time, because a full pipe would block it."""

    ledger: Ledger
    process: subprocess.Popen[bytes]
    errors: Path
    _lines: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self._taking = threading.Thread(target=self._take, daemon=True)
        self._taking.start()

    def _take(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(b"")

    def await_commit(self, stage: str = "") -> dict[str, object]:
        """Wait for the next commit, of the given stage or of any."""
        deadline = time.monotonic() + PATIENCE_S
        while (left_s := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                line = self._lines.get(timeout=left_s)
                assert line, f"it ended:\n{self.errors.read_text()}"
                commit = json.loads(line)
                if stage in ("", commit["stage"]):
                    return dict(commit)
        raise AssertionError("no commit in time")

    def interrupt(self) -> tuple[int, float]:
        """Send Ctrl-C. Return the exit code, and the seconds until the process ended."""
        began = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(PATIENCE_S), time.monotonic() - began

    def kill(self) -> None:
        """Kill the runner and all its children with `kill -9`."""
        with_all = [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        with_all += [child for one in with_all for child in one.children(recursive=True)]
        for one in with_all:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(with_all, timeout=30)
        self.process.wait(30)
        self._taking.join(30)
