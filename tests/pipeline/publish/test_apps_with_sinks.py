"""A real app delivers results exactly once, to a topic and to functions, and its clones publish nothing."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
import slackwater as sw
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.client.app import StoredApp
from slackwater.errors import NotFound
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.json_rows import encode_objects
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.run.program import load_app
from slackwater.snapshot.change.stages import request_retry
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.status.overview import overview
from slackwater.store.objects.open import open_store

from tests.pipeline.publish.reader import committed
from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def declared(
    ledger: Ledger, alerts: str, tell: Callable[[str, str, int, pa.Table], None], *more: str, table: str = "counts"
) -> sw.App:
    """Return an app with a stateless and a stateful stage.

    They write different rows to a channel, a topic, a function and a table.
    """
    app = sw.App(ledger.app)
    counts = sw.delta(f"{ledger.store}-lake/{table}", key="account", name="table")

    @app.stage(
        reads=sw.topic(ledger.topic),
        writes=[
            sw.repartition("by-account", "account", partitions=2),
            sw.sink(alerts, key="account", headers={"branch": "office"}),
            sw.foreach_version(tell, name="told"),
        ],
    )
    def entries(raw: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
        entry = F.from_json(F.col("value").cast("string"), "seq long, account string, branch int, amount long")
        rows = raw.select(entry.alias("e")).select("e.*")
        alert = rows.where("amount < 0").select("seq", "account", F.col("branch").cast("string").alias("office"))
        return rows, alert, rows.select("seq")

    @app.stage(reads="by-account", state=sw.aggregate(n=sw.count()), writes=[*map(sw.sink, more), counts])
    def accounts(rows: DataFrame) -> DataFrame:
        return rows

    return app


def published(ledger: Ledger, topic: str) -> list[dict[str, object]]:
    return [json.loads(message.value() or b"") for message in committed(ledger.kafka, topic)]


@pytest.mark.usefixtures("one_spark")
def test_each_row_is_published_once_and_a_clone_publishes_only_where_told(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    ledger = Ledger(kafka.bootstrap, tmp_path)
    alerts, counts, staging = (f"{name}-{uuid4().hex[:6]}" for name in ("alerts", "counts", "staging"))
    told: list[tuple[str, str, int, list[int]]] = []

    def tell(app: str, stage: str, version: int, rows: pa.Table) -> None:
        told.append((app, stage, version, rows["seq"].to_pylist()))

    app = declared(ledger, alerts, tell, counts)

    def run(program: sw.App) -> None:
        program.run(store=ledger.store, kafka=kafka.bootstrap, until_caught_up=True, max_records=700)

    ledger.send(500)
    with pytest.raises(NotFound, match=f"no Kafka topic named '{alerts}'"):
        run(app)
    store = open_store(ledger.store)
    assert not list(store.list(""))
    ledger.kafka.create_topics({alerts: 3, counts: 1, staging: 1})
    ledger.send(1_500)
    run(app)
    raw = ledger.raw().to_pylist()
    expected = sorted((row["seq"], row["account"]) for row in raw if row["amount"] < 0)
    records = list(committed(ledger.kafka, alerts))
    values = [json.loads(message.value() or b"") for message in records]
    assert sorted((value["seq"], value["account"]) for value in values) == expected
    branches = {row["seq"]: str(row["branch"]).encode() for row in raw}
    for message, value in zip(records, values, strict=True):
        assert (message.key(), message.headers()) == (value["account"].encode(), [("branch", branches[value["seq"]])])
    assert sorted(seq for *_, seqs in told for seq in seqs) == list(range(2_000))
    versions = [version for _, _, version, _ in told]
    assert versions == sorted(set(versions))
    assert {(name, stage) for name, stage, _, _ in told} == {(ledger.app, "entries")}
    # What the state emits: the newest count of each account is the last.
    last = {value["account"]: value["n"] for value in published(ledger, counts)}
    assert last == dict(Counter(row["account"] for row in raw))
    table = DeltaTable(f"{ledger.store}-lake/counts")
    assert {row["account"]: row["n"] for row in table.to_pyarrow_table().to_pylist()} == last
    assert table.to_pyarrow_table().num_rows == len(last)
    # No sink holds records back: all are published, and may be deleted.
    found = overview(store, ledger.app, lambda _topic: None)
    assert {sink.rows for stage in found.stages for sink in stage.sinks} == {0}
    collect(store, ledger.app, Retention(versions=1), by="test", dry_run=True)

    clone(
        store,
        ledger.app,
        "staging",
        topics={},
        sinks={alerts: staging},
        channels=KafkaChannels(ledger.kafka),
        by="test",
    )
    ledger.send(400)
    before = len(told)
    copy = declared(ledger, alerts, tell, counts)
    copy.name = "staging"
    run(copy)
    assert {value["seq"] for value in published(ledger, staging)} == {
        row["seq"] for row in ledger.raw().to_pylist() if row["amount"] < 0 and row["seq"] >= 2_000
    }
    assert (len(told), len(published(ledger, alerts))) == (before, len(values))

    # The previous run published everything, so the sink may be removed.
    other = f"other-{uuid4().hex[:6]}"
    ledger.kafka.create_topics({other: 1})
    run(declared(ledger, other, tell, counts))
    assert len(published(ledger, other)) == len(published(ledger, staging))


@pytest.mark.usefixtures("one_spark")
def test_the_documentations_program_forwards_a_records_headers(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    text = (Path(__file__).parents[3] / "docs" / "on-call.md").read_text(encoding="utf-8")
    code, run = text.partition("```python\n")[2].partition("```")[0], uuid4().hex[:6]
    for name in ("guard", "payments", "alerts", "balances"):
        code = code.replace(f'"{name}"', f'"{name}-{run}"')
    program = tmp_path / "guard.py"
    program.write_text(code, encoding="utf-8")
    brokers = open_kafka(kafka.bootstrap)
    traces = [f"00-{number:032x}-00f067aa0ba902b7-01".encode() for number in (1, 2)]
    brokers.create_topics({f"{name}-{run}": 1 for name in ("payments", "alerts", "balances")})
    sent = [("a", 5, traces[0]), ("a", 2_000_000, traces[1]), ("b", 7, None)]
    values = [json.dumps({"account": account, "cents": cents}).encode() for account, cents, _ in sent]
    headers = [[("traceparent", trace), ("from", b"till")] if trace else [] for *_, trace in sent]
    records = (Record(value, 0, headers=each) for value, each in zip(values, headers, strict=True))
    brokers.send(f"payments-{run}", records, patience_s=180)
    load_app(str(program)).run(store=str(tmp_path / "store"), kafka=kafka.bootstrap, until_caught_up=True)
    (alert,) = committed(brokers, f"alerts-{run}")
    assert (json.loads(alert.value() or b"")["cents"], alert.headers()) == (2_000_000, headers[1])
    # For an account with two records the newer record's trace is used; for one without a trace, none.
    newest = {message.key(): message.headers() for message in committed(brokers, f"balances-{run}")}
    assert newest == {b"a": [("traceparent", traces[1])], b"b": None}


@pytest.mark.usefixtures("one_spark")
def test_published_json_equals_sparks() -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    rows = spark.sql(
        """SELECT * FROM VALUES
        (1L, 'say "é"\\n', 1.5D, true, 1.10BD, TIMESTAMP '2026-11-22 18:00:00.123456Z', DATE '2026-11-22', X'00FF',
         array(1, NULL), named_struct('a', 1, 'b', 'x'), map('k', 2.50BD), TIMESTAMP_NTZ '1969-12-31 23:59:59.9999'),
        (NULL, '', double('NaN'), false, NULL, TIMESTAMP '1900-01-01 00:00:00Z', NULL, X'', array(),
         named_struct('a', NULL, 'b', NULL), map(), NULL),
        (-1L, NULL, double('-Infinity'), NULL, -3.00BD, NULL, DATE '0001-01-01', NULL, NULL,
         named_struct('a', NULL, 'b', ''), NULL, NULL)
        AS t(n, text, d, b, dec, at, day, bytes, list, st, m, local)"""
    )
    written = [row.json for row in rows.select(F.to_json(F.struct("*")).alias("json")).collect()]
    ours = [text.decode() for text in encode_objects(rows.toArrow()).to_pylist()]
    assert ours == written


@pytest.mark.usefixtures("one_spark")
def test_a_record_too_large_for_the_sinks_topic_is_rejected_and_published_after_the_limit_is_raised(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    broker, root = open_kafka(kafka.bootstrap), str(tmp_path / "store")
    docs, out = (f"{name}-{uuid4().hex[:6]}" for name in ("docs", "out"))
    broker.create_topics({docs: 1}, config={"max.message.bytes": "8000000"})
    broker.create_topics({out: 1}, config={"max.message.bytes": "1048588"})
    app = sw.App(f"big-{uuid4().hex[:6]}")
    by_id = sw.repartition("by-id", key="id", partitions=1)

    @app.stage(reads=sw.topic(docs), writes=by_id)
    def read(raw: DataFrame) -> DataFrame:
        return raw.selectExpr("cast(key AS string) AS id", "value AS text", "offset")

    @app.stage(
        reads=by_id,
        state=sw.upsert(by="offset"),
        writes=sw.sink(out, key="id", value="text", headers={"of": "id"}, on_error="reject"),
        table=sw.table(partitions=1),
    )
    def latest(rows: DataFrame) -> DataFrame:
        return rows

    def run() -> list[tuple[bytes | None, bytes | None]]:
        app.run(store=root, kafka=kafka.bootstrap, until_caught_up=True)
        return [(message.key(), message.value()) for message in committed(broker, out)]

    large = random.Random(5).randbytes(2_000_000)
    bodies = {b"small1": b"a", b"big": large, b"small2": b"b"}
    broker.send(docs, [Record(value, 0, key) for key, value in bodies.items()], patience_s=60)
    assert run() == [(b"small1", b"a"), (b"small2", b"b")]
    store = open_store(root)
    stored = sw.open(store=root).app(app.name)
    assert stored.at("now").query("SELECT id FROM latest ORDER BY ALL").fetchall() == [
        ("big",),
        ("small1",),
        ("small2",),
    ]
    (record,) = stored.rejected().records
    assert (record.stage, record.address, record.key, record.value) == (
        "latest",
        f"{out} v{record.version}+0",
        b"big",
        large,
    )
    headers = stored.at("now").query("SELECT headers FROM latest_rejected").fetchall()
    assert headers == [([{"name": "of", "value": b"big"}],)]
    said = f"sink '{out}' at v{record.version}: the record with key 'big' of 2,000,"
    assert record.message.startswith(said)
    assert record.message.endswith("bytes exceeds the topic's max.message.bytes (1,048,588)")
    verify_app(stored)

    # As long as the topic takes no record of this size, it waits; then it is published, once.
    request_retry(store, app.name, "latest", by="test", now_ms=1)
    assert len(run()) == 2
    (record,) = stored.rejected().records
    assert (record.attempts, record.retried) == (2, None)
    most = ConfigEntry("max.message.bytes", "3000000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource("topic", out, incremental_configs=[most])
    admin = AdminClient(dict(broker.properties))
    admin.incremental_alter_configs([topic])[topic].result(30)
    request_retry(store, app.name, "latest", by="test", now_ms=2)
    assert run() == [(b"small1", b"a"), (b"small2", b"b"), (b"big", large)]
    assert run()[2:] == [(b"big", large)]
    assert stored.rejected().records == ()
    verify_app(stored)


def verify_app(app: StoredApp) -> None:
    assert app.at("now").verify().differences == ()
