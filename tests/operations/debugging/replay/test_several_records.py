"""Several bad records in one batch, on a real broker and Spark: the first in the app's order, and a list of all."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import slackwater as sw
from confluent_kafka import Message, Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.common import instants
from slackwater.operations.debugging.replay.program import LoadedProgram, open_program
from slackwater.operations.debugging.replay.record import find_record, find_record_of_key
from slackwater.operations.debugging.replay.what_if import BadBatch
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import RecordPath, Verdict
from slackwater.snapshot.query.columns import parse_key
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

T0 = 1_760_000_000_000
ROW = "k string, n long, amount string, ts long, shop string"
EVEN = 3
"""Partitions of the topic in which all records have the same time."""


def parsed(messages: DataFrame) -> DataFrame:
    rows = messages.select(F.from_json(F.col("value").cast("string"), ROW).alias("r")).select("r.*")
    return rows.where("k is not null").withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "1 minute")


def shop(name: str, topic: str, *, beside: bool) -> sw.App:
    """Return an app with three hops: `parse`; tables of several kinds by `k`; and `enrich`, before a table by `shop`.

    With `beside`, it also has tables with side tables.
    """
    app = sw.App(name)
    app.stage(name="parse", reads=sw.topic(topic), writes=sw.repartition("by-k", key="k", partitions=2))(parsed)
    if beside:
        _tables_beside(app)
    app.stage(
        name="recent", reads="by-k", state=sw.aggregate(n=sw.count(), last_n=sw.max("n")),
        table=sw.table(ttl="45 seconds"),
    )(lambda rows: rows)  # fmt: skip
    app.stage(name="enrich", reads="by-k", writes=sw.repartition("by-shop", key="shop", partitions=2))(
        lambda rows: rows.withColumn("large", F.expr("try_cast(amount as long) > 1000"))
    )
    app.stage(name="shops", reads="by-shop", key="shop", state=sw.aggregate(n=sw.count(), most=sw.max("n")))(
        lambda rows: rows
    )
    return app


def _tables_beside(app: sw.App) -> None:
    """Add tables that have side tables: `win` with late rows, `sums` with rejected records."""
    app.stage(
        name="win", reads="by-k", key=["k", "w"], state=sw.aggregate(n=sw.count(), last_n=sw.max("n")),
        event_time=sw.event_time(late="table"),
    )(lambda rows: rows.withColumn("w", F.window("at", "1 minute")))  # fmt: skip
    app.stage(
        name="sums", reads="by-k", state=sw.aggregate(n=sw.count(), cents=sw.sum("cents")), on_error="reject"
    )(lambda rows: rows.withColumn("cents", F.expr("cast(amount as long)")))  # fmt: skip


@dataclass
class History:
    """An app that has processed records, and each record's position by its `n`."""

    bootstrap: str
    folder: Path
    partitions: int = 1
    name: str = field(default_factory=lambda: f"shop-{uuid4().hex[:8]}")
    at: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topic = f"{self.name}-orders"
        open_kafka(self.bootstrap).create_topics({self.topic: self.partitions})
        self.app = shop(self.name, self.topic, beside=self.partitions == 1)
        self.store = str(self.folder / "store")
        self.cache = SstCache(self.folder / "cache", 1 << 30)

    def send_and_run(self, rows: Sequence[dict[str, Any]]) -> None:
        """Send rows, and run all stages."""
        self.produce(rows)
        self.app.run(store=self.store, kafka=self.bootstrap, until_caught_up=True)

    def produce(self, rows: Sequence[dict[str, Any]]) -> None:
        """Send rows, each to the partition and with the time in its fields."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for row in rows:
            values = {"k": "k00", "amount": "5", "ts": T0, "shop": "s0"} | row

            def sent(_error: object, message: Message, n: int = row["n"]) -> None:
                self.at[n] = f"{message.topic()}[{message.partition()}]@{message.offset()}"

            producer.produce(
                self.topic, json.dumps(values).encode(), partition=row.get("partition", 0), on_delivery=sent,
                key=values["k"].encode(), timestamp=row.get("sent", T0 + row["n"]),
            )  # fmt: skip
        assert producer.flush(30) == 0

    def verdict(self, where: str, **ends: str) -> Verdict:
        return bisect(open_store(self.store), self.cache, self.name, where, **ends)

    @contextmanager
    def program(self) -> Iterator[LoadedProgram]:
        with open_program(self.app, open_store(self.store), self.cache, open_kafka(self.bootstrap)) as program:
            yield program

    def behind(self, where: str, **ends: str) -> RecordPath:
        with self.program() as program:
            return find_record(program, self.verdict(where, **ends), SqlPredicate(where))


def named(found: RecordPath) -> str:
    assert found.source_record is not None, found
    assert found.proved
    assert not found.reason
    return str(found.source_record.location)


def bad(found: RecordPath) -> list[str]:
    """Return the bad records, with an asterisk at each that is bad alone."""
    assert found.records is not None
    return [
        f"{row['topic']}[{row['partition']}]@{row['offset']}{'*' if row['alone'] else ''}"
        for row in found.records.to_pylist()
    ]


def small(n: int, k: int, minute: float, amount: str = "5", **more: Any) -> dict[str, Any]:
    return {"n": n, "k": f"k{k:02d}", "ts": T0 + int(minute * 60_000), "amount": amount, **more}


@pytest.fixture(scope="module")
def one_partition(kafka: EmbeddedKafka, one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> History:
    """Return an app that ran three times on one partition: with late rows, rejected records and expiring rows.

    Some rows of the third run have large values.
    """
    history = History(kafka.bootstrap, tmp_path_factory.mktemp("one"))
    with pytest.MonkeyPatch.context() as patch:
        history.send_and_run([small(n, n, n / 600) for n in range(100)])
        now_ms = instants.now_ms
        patch.setattr(instants, "now_ms", lambda: now_ms() + 60_000)
        history.send_and_run([small(100 + k, k, 10 + k / 600, "five" if k == 25 else "7") for k in range(40)])
        rows = [small(140 + n, n % 20, 11 + n / 600, "x" if n == 30 else "1") for n in range(60)]
        for n, k in ((5, 1), (7, 0), (15, 1), (19, 0), (25, 1)):
            rows[n] = small(140 + n, k, 0.1)
        for n in (41, 44, 52):
            rows[n] |= {"n": 10_000 + n, "sent": T0 + 140 + n, "shop": f"s{n}"}
        history.send_and_run(rows)
    return history


@pytest.mark.ci
def test_the_first_of_several_late_records_of_a_partition_is_named(one_partition: History) -> None:
    found = one_partition.behind("FROM win_late")
    assert named(found) == one_partition.at[145]
    assert [hop.stage for hop in found.hops] == ["win_late", "win", "parse"]
    assert bad(found) == [f"{one_partition.at[140 + n]}*" for n in (5, 7, 15, 19, 25)]


@pytest.mark.parametrize("table", ["shops", pytest.param("recent", marks=pytest.mark.ci)])
def test_the_first_of_several_large_records_over_two_or_three_hops_is_named(one_partition: History, table: str) -> None:
    found = one_partition.behind(f"FROM {table} WHERE {'most' if table == 'shops' else 'last_n'} >= 10000")
    assert named(found) == one_partition.at[10_041]
    assert len(found.hops) == (3 if table == "shops" else 2)
    assert bad(found) == [f"{one_partition.at[10_000 + n]}*" for n in (41, 44, 52)]
    assert found.others == 2
    assert found.is_complete


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("FROM sums_rejected", marks=pytest.mark.ci),
        pytest.param("SELECT error, count(*) AS c FROM sums_rejected GROUP BY error", marks=pytest.mark.ci),
        "SELECT s.k FROM sums s, sums_rejected r WHERE s.n > 0 AND r.error <> '' AND s.k = 'k25'",
    ],
)
def test_a_rejected_record_is_found_by_a_query_over_the_side_table(one_partition: History, where: str) -> None:
    found = one_partition.behind(where)
    assert named(found) == one_partition.at[125]
    assert bad(found)[0].startswith(one_partition.at[125])


@pytest.mark.ci
def test_other_rejected_records_of_the_batch_do_not_disturb_the_search(one_partition: History) -> None:
    # The value was 5 in the first run, and increases by 7 in the second run.
    found = one_partition.behind("SELECT k FROM sums WHERE k = 'k30' AND cents >= 12")
    assert named(found) == one_partition.at[130]


def test_expiring_rows_are_blamed_on_no_record(one_partition: History) -> None:
    where = "SELECT count(*) AS c FROM recent HAVING count(*) < 90"
    good = next(
        f"{one_partition.name}/recent@v{n}" for n in range(1, 20) if sum_of(one_partition, f"recent@v{n}") == 100
    )
    found = one_partition.behind(where, good=good)
    assert found.source_record is None
    assert found.recordless_batch is not None
    assert found.recordless_batch.by == "clock"
    assert found.recordless_batch.expired.num_rows == 100
    assert {row["k"] for row in found.recordless_batch.expired.to_pylist()} == {f"k{k:02d}" for k in range(100)}
    assert found.recordless_batch.stage == "recent"


def sum_of(history: History, ref: str) -> int:
    from slackwater.snapshot.cut.resolve import resolve
    from slackwater.snapshot.query.sql import connect, run_query

    store = open_store(history.store)
    with connect(store, history.cache, resolve(store, f"{history.name}/{ref}", now_ms=0)) as connection:
        return int(run_query(connection, "SELECT count(*) FROM recent").column(0)[0].as_py())


def test_a_change_of_a_key_counts_the_records_that_reach_the_key(one_partition: History) -> None:
    verdict = one_partition.verdict("SELECT k FROM recent WHERE k = 'k04' AND last_n > 139")
    with one_partition.program() as program:
        found = find_record_of_key(
            program, "recent", verdict.bad_version, parse_key("recent", verdict.bad.stages["recent"].table, ["k04"])
        )
    assert named(found) == one_partition.at[10_044]
    assert found.of_key == 3


def test_a_batch_made_bad_by_its_records_is_good_without_them(one_partition: History) -> None:
    where = SqlPredicate("FROM shops WHERE most >= 10000")
    verdict = one_partition.verdict(where.sql)
    with one_partition.program() as program:
        batch = BadBatch.open(program, where, verdict.bad, verdict.stage, verdict.keys)
        assert batch.find_effects_without_records() is None


@pytest.fixture(scope="module")
def partitions(kafka: EmbeddedKafka, one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> History:
    """Return an app that ran twice on three partitions.

    The second run's records have the same time, except those with `sent`.
    """
    history = History(kafka.bootstrap, tmp_path_factory.mktemp("three"), EVEN)
    history.send_and_run([small(n, n % 10, 0, partition=n % EVEN) for n in range(60)])
    later = {"sent": T0 + 1_000}
    rows = [small(100 + n, n % 10, 1, partition=n % EVEN, **later) for n in range(60)]
    # Records with the same time in two partitions; a third record is later in the order of its partition.
    for n in (30, 31, 36):
        rows[n] |= {"n": 10_000 + n, "k": "k77", "shop": "s7"}
    # By its own time, the second record came before the first.
    rows[50] |= {"n": 20_050, "k": "k88", "sent": T0 + 1_500}
    rows[58] |= {"n": 20_058, "k": "k88", "sent": T0 + 1_400, "partition": 0}
    # By its own time, it is earlier than a record before it in its partition.
    rows[52] |= {"n": 30_052, "k": "k99", "sent": T0 + 1_900}
    rows[55] |= {"n": 30_055, "k": "k99", "sent": T0 + 900}
    history.send_and_run(rows)
    return history


@pytest.mark.ci
def test_of_bad_records_with_the_same_time_in_several_partitions_one_is_named_as_tied(partitions: History) -> None:
    found = partitions.behind("FROM shops WHERE most BETWEEN 10000 AND 19999")
    first = {partitions.at[10_030], partitions.at[10_031]}
    assert {named(found), *map(str, found.tied)} == first
    assert {each.rstrip("*") for each in bad(found)} == {*first, partitions.at[10_036]}


def test_across_partitions_the_record_with_the_earlier_time_is_named(partitions: History) -> None:
    found = partitions.behind("FROM recent WHERE last_n BETWEEN 20000 AND 29999")
    assert named(found) == partitions.at[20_058]
    assert not found.tied


def test_within_a_partition_offsets_decide_whatever_the_times(partitions: History) -> None:
    found = partitions.behind("FROM recent WHERE last_n BETWEEN 30000 AND 39999")
    assert named(found) == partitions.at[30_052]


class FanIn(History):
    """Two stages with one topic each, and a table over both."""

    def __post_init__(self) -> None:
        self.store, self.cache = str(self.folder / "store"), SstCache(self.folder / "cache", 1 << 30)
        self.app = sw.App(self.name)
        for side in ("left", "right"):
            open_kafka(self.bootstrap).create_topics({f"{self.name}-{side}": 1})
            to = sw.repartition(f"by-{side}", key="k", partitions=1)
            self.app.stage(name=side, reads=sw.topic(f"{self.name}-{side}"), writes=to)(parsed)
        self.app.stage(
            name="mixed", reads=("by-left", "by-right"), key="k", state=sw.aggregate(n=sw.count(), most=sw.max("n"))
        )(lambda left, right: left.union(right))

    def send(self, side: str, records: Sequence[tuple[int, int]]) -> None:
        """Send records (`n` and time) to one side, and let that side's stage read them."""
        self.topic = f"{self.name}-{side}"
        self.produce([small(n, n % 3, 0, sent=time_ms) for n, time_ms in records])
        self.run(side)

    def run(self, *stages: str) -> None:
        self.app.run(store=self.store, kafka=self.bootstrap, until_caught_up=True, stages=stages)


@pytest.mark.ci
def test_records_of_two_topics_are_ordered_by_commits_and_not_by_times(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    history = FanIn(kafka.bootstrap, tmp_path)
    # Three batches of the sources become one batch of the table. By their times, the records came in the opposite
    # order.
    history.send("left", [(1, T0 + 900), (2, T0 + 901)])
    history.send("right", [(3, T0 + 500), (10_004, T0 + 501)])
    history.send("left", [(10_005, T0 + 100), (6, T0 + 101)])
    history.run("mixed")
    where = SqlPredicate("FROM mixed WHERE most >= 10000")
    verdict = history.verdict(where.sql)
    assert {each.upstream for each in verdict.bad.stages["mixed"].inputs.values()} == {"left", "right"}
    with history.program() as program:
        found = find_record(program, verdict, where)
    assert named(found) == history.at[10_004]
    assert bad(found) == [f"{history.at[n]}*" for n in (10_004, 10_005)]


class Joined(FanIn):
    """Orders and refunds joined by number, and the largest refund of each customer."""

    def __post_init__(self) -> None:
        self.store, self.cache = str(self.folder / "store"), SstCache(self.folder / "cache", 1 << 30)
        self.app = sw.App(self.name)
        for side in ("left", "right"):
            open_kafka(self.bootstrap).create_topics({f"{self.name}-{side}": 1})
        left, right = (f"{self.name}-{side}" for side in ("left", "right"))
        pairs = sw.repartition("pairs", key="n", partitions=1)
        self.app.stage(
            name="join",
            reads=(sw.topic(left), sw.topic(right)),
            writes=pairs,
            key="n",
            state=sw.join(left, right, within="5 hours"),
        )(
            lambda orders, refunds: (
                parsed(orders).select("n", "k", "at"),
                parsed(refunds).select("n", F.col("ts").alias("refund"), F.col("at").alias("back_at")),
            )
        )
        self.app.stage(name="settled", reads=pairs, key="k", state=sw.aggregate(n=sw.count(), top=sw.max("refund")))(
            lambda rows: rows
        )

    def meet(self, side: str, *records: dict[str, Any]) -> None:
        """Send one record to each given side."""
        self.topic = f"{self.name}-{side}"
        self.produce(records)
        for record in records:
            self.at[record["n"] if side == "left" else -record["n"]] = self.at[record["n"]]


@pytest.mark.ci
def test_a_bad_refund_is_named_whether_it_or_its_order_came_first(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    history = Joined(kafka.bootstrap, tmp_path)
    ordered = [small(n, n, 0) for n in range(1, 6)]
    # The first pair is healthy. In the second pair the order comes last; the third order comes a batch after its
    # refund.
    history.meet("left", ordered[0])
    history.meet("right", small(1, 1, 0))
    history.run()
    history.meet("right", {**small(2, 2, 0), "ts": T0 + 7_000, "sent": T0 + 1})
    history.meet("left", {**ordered[1], "sent": T0 + 5})
    history.run()
    history.meet("right", {**small(3, 3, 0), "ts": T0 + 8_000, "sent": T0 + 11})
    history.run()
    history.meet("left", {**ordered[2], "sent": T0 + 15})
    history.run()
    for n in (2, 3):
        where = SqlPredicate(f"SELECT k FROM settled WHERE top >= {T0 + 5_000} AND k = 'k0{n}'")
        verdict = history.verdict(where.sql)
        with history.program() as program:
            found = find_record(program, verdict, where)
        assert named(found) == history.at[-n]
        assert [hop.stage for hop in found.hops] == ["settled", "join"]
