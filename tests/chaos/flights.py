"""Input for an app under chaos, and checks of its tables, snapshots and sink against SQL over that input."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import duckdb
import pyarrow as pa
from confluent_kafka import Producer
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.pipeline.publish.reader import committed
from tests.support.running import Ledger
from tests.support.static import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from feed import events, flight_messages

FLIGHTS = ROOT / "examples" / "flights.py"
ALERTS = "knock-on"
GARBAGE = b"not a flight"
_PARTITIONS = 3

LEGS = """
SELECT time::TIMESTAMP AS time, carrier, flight, tailnum, origin, dep_delay::DOUBLE AS dep_delay,
    arr_delay::DOUBLE AS arr_delay
FROM raw WHERE tailnum IS NOT NULL AND arr_delay IS NOT NULL
"""
TOLD = """
WITH ordered AS (
    SELECT *, lag(time) OVER legs AS time_before, lag(arr_delay) OVER legs AS late_before FROM legs
    WINDOW legs AS (PARTITION BY tailnum ORDER BY time, flight)
)
SELECT *, CASE WHEN time - time_before < INTERVAL 12 HOUR
    THEN greatest(least(late_before, dep_delay), 0.0) ELSE 0.0 END AS inherited
FROM ordered
"""
TABLES = {
    "aircraft": (
        "SELECT tailnum, epoch(max(time))::BIGINT, arg_max(arr_delay, (time, flight)), count(*) FROM told "
        "GROUP BY tailnum",
        "SELECT tailnum, epoch(last_time)::BIGINT, last_arr_delay, legs FROM aircraft",
    ),
    "carriers": (
        "SELECT carrier, count(*), sum(arr_delay), avg(arr_delay), max(arr_delay), sum(inherited), "
        "epoch(max(time))::BIGINT FROM told GROUP BY carrier",
        "SELECT carrier, flights, delay, mean_delay, worst, inherited, epoch(last_flight)::BIGINT FROM carriers",
    ),
}
"""For each table, the SQL for its expected rows from `legs` and `told`, and the SQL for its actual rows."""


@dataclass
class Flights(Ledger):
    """The app of `examples/flights.py`, its feeder, and access to a judge that checks its state."""

    garbage: int = 0
    """Number of messages sent that are not flights."""

    def __post_init__(self) -> None:
        self.program, self.topic, self.app = FLIGHTS, "flights", "flights"
        super().__post_init__()
        self.kafka.create_topics({ALERTS: 2})

    @contextmanager
    def flowing(self, per_second: int, chance: Random) -> Iterator[None]:
        """Send flights, and occasionally a malformed message, while the block runs."""
        stop, errors = threading.Event(), list[str]()

        def feed() -> None:
            # The records of an aircraft stay in order even if the broker is killed, and no record is sent twice.
            settings = {"enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 20, "log_level": 0}
            producer = Producer({**self.kafka.properties, **settings})
            flights, began = events(), time.monotonic()
            messages = flight_messages(flights, self.topic, 0, len(flights))
            while not stop.wait(0.1):
                for _ in range(int((time.monotonic() - began) * per_second) - self.sent):
                    flight = next(messages, None)
                    if flight is None:
                        break
                    partition = flight.partition % _PARTITIONS
                    producer.produce(self.topic, flight.value, flight.key, partition, on_delivery=note)
                    self.sent += 1
                if chance.random() < 0.002:
                    producer.produce(self.topic, GARBAGE, partition=chance.randrange(_PARTITIONS), on_delivery=note)
                    self.garbage += 1
                producer.poll(0)
            if producer.flush(300):
                errors.append("the broker did not take all flights")

        def note(error: object, _message: object) -> None:
            if error is not None:
                errors.append(str(error))

        thread = threading.Thread(target=feed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(330)
        assert not errors, errors[:3]

    def judge(self) -> Judge:
        """Read the whole input, and return a judge that compares the app's state with it."""
        rows: list[dict[str, object]] = []
        garbage = 0
        for partition, end in enumerate(self.kafka.offset_bounds(self.topic)[1]):
            for messages in self.kafka.read(self.topic, partition, 0, end, patience_s=60):
                for message in messages:
                    value = message.value() or b""
                    if value == GARBAGE:
                        garbage += 1
                    else:
                        rows.append({"_partition": partition, "_offset": message.offset(), **json.loads(value)})
        assert (len(rows), garbage) == (self.sent, self.garbage), "Kafka has what was sent, once"
        return Judge(self, pa.Table.from_pylist(rows))


@dataclass
class Judge:
    """Compare tables, snapshots and the sink with DuckDB over the raw input."""

    flights: Flights
    raw: pa.Table
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)

    def _expected(self, offsets: tuple[int, ...] | None = None) -> duckdb.DuckDBPyConnection:
        """Return a connection with the tables `legs` and `told`, which hold the input up to these offsets."""
        connection = duckdb.connect()
        raw = connection.from_arrow(self.raw)
        if offsets is not None:
            ends = " OR ".join(f"(_partition = {part} AND _offset < {end})" for part, end in enumerate(offsets))
            raw = raw.filter(ends)
        raw.to_table("raw")
        connection.execute(f"CREATE TABLE legs AS {LEGS}")
        connection.execute(f"CREATE TABLE told AS {TOLD}")
        return connection

    def _compare(self, place: str, expected: Counter[object], found: Counter[object]) -> None:
        lost, doubled = expected - found, found - expected
        if lost or doubled:
            self.lost, self.doubled = self.lost + lost.total(), self.doubled + doubled.total()
            example = f"expected {list(lost)[:2]}, found {list(doubled)[:2]}"
            self.problems.append(f"{place}: {lost.total()} lost, {doubled.total()} doubled; {example}")

    def check_tables(self, ref: str, offsets: tuple[int, ...] | None = None) -> None:
        """Compare each table of a moment row by row. A differing row counts as one lost row and one duplicated row."""
        connection = self._expected(offsets)
        for table, (expected_sql, found_sql) in TABLES.items():
            found = Counter(tuple(row.values()) for row in self.flights.sql(found_sql, ref).to_pylist())
            self._compare(f"{ref}/{table}", Counter(connection.execute(expected_sql).fetchall()), found)

    def check_rejected(self) -> None:
        """Check that each malformed message was rejected exactly once."""
        found = self.flights.sql("SELECT count(*) AS n FROM legs_rejected").to_pylist() if self.flights.garbage else []
        count = found[0]["n"] if found else 0
        self._compare("legs_rejected", Counter(rejected=self.flights.garbage), Counter(rejected=count))

    def check_sink(self) -> int:
        """Compare the sink with the input, read by a `read_committed` consumer; returns the number of messages."""
        sql = "SELECT tailnum, flight, epoch(time)::BIGINT, inherited FROM told WHERE inherited >= 60"
        expected = Counter(self._expected().execute(sql).fetchall())
        told = pa.Table.from_pylist(
            [json.loads(message.value() or b"") for message in committed(self.flights.kafka, ALERTS)]
        )
        sql = "SELECT tailnum, flight, epoch(time::TIMESTAMPTZ)::BIGINT, inherited::DOUBLE FROM told"
        found = duckdb.connect().from_arrow(told).query("told", sql).fetchall() if len(told) else []
        self._compare(ALERTS, expected, Counter(found))
        return len(told)

    def check_moment(self, ref: str) -> None:
        """Compare a moment with the input that it has read.

        Rows are compared one by one, or only counted if records are in flight.
        """
        store = open_store(self.flights.store)
        cut = resolve(store, ref, now_ms=0)
        offsets = cut.stages["legs"].inputs[self.flights.topic].offsets
        waiting = sum(state.rows for state in in_flight(store, cut))
        if not waiting:
            self.check_tables(ref, offsets)
            return
        legs = self._expected(offsets).execute("SELECT count(*) FROM legs").fetchall()[0][0]
        counted = self.flights.sql("SELECT coalesce(sum(flights), 0)::BIGINT AS n FROM carriers", ref)
        self._compare(ref, Counter(legs=legs), Counter(legs=counted["n"][0].as_py() + waiting))

    def check_verified(self, ref: str) -> None:
        """Verify a moment: every byte, the whole history, and the in-flight records in Kafka."""
        store, reader = open_store(self.flights.store), KafkaChannels(self.flights.kafka)
        report = verify(store, ref, now_ms=time.time_ns() // 10**6, deep=True, reader=reader, topics=reader)
        self.problems += [f"{ref}: {difference.message}" for difference in report.differences]

    def check_app(self, folder: str) -> tuple[int, int]:
        """Check an app's newest moment and its snapshots; returns the numbers of snapshots and of versions."""
        store = open_store(self.flights.store)
        taken = [one.name for one in list_snapshots(store, folder) if one.kind != "clone"]
        for ref in (folder, *(f"{folder}@{snapshot}" for snapshot in taken)):
            self.check_verified(ref)
            self.check_moment(ref)
        return len(taken), self._count_versions(folder)

    def _count_versions(self, folder: str) -> int:
        store, count = open_store(self.flights.store), 0
        for stage in history.list_stages(store, folder):
            versions = sorted(history.list_versions(store, folder, stage))
            head = history.head(store, folder, stage)
            if head is None or versions[-1] != head.version:
                self.problems.append(f"{folder}/{stage}: {versions[-1]} is listed behind the newest version")
            count += versions[-1]
        return count
