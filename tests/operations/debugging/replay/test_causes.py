"""Causes of bad commits: one app with a planted fault of each class, replayed on a real broker and Spark."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
import slackwater as sw
from confluent_kafka import Message, Producer
from slackwater.cli import main
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.listener import Listener
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.program import load_app
from slackwater.pipeline.run.runner import run
from typer.testing import CliRunner

from tests.support.running import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

PROGRAM = """
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("{app}")


@app.stage(reads=sw.topic("{app}"), writes=sw.repartition("by-k", key="k"))
def parse(messages: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "id long, k string, amount long, seq long, ts long").alias("o")
    rows = messages.select(order).select("o.*").where("k is not null")
    return rows.withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "1 minute")


@app.stage(
    reads="by-k",
    state=sw.aggregate(n=sw.count(), top=sw.max("amount"), low=sw.min("amount"), total=sw.sum("amount"),
                       fee=sw.max("fee"), last_seq=sw.max("seq"), last_ts=sw.max("ts")),
)
def totals(orders: DataFrame) -> DataFrame:
    return orders.withColumn("fee", F.expr("{fee}"))


@app.stage(reads="by-k", key="id", state=sw.aggregate(n=sw.count()))
def ids(orders: DataFrame) -> DataFrame:
    return orders


@app.stage(reads="by-k", key=["k", "w"], state=sw.aggregate(n=sw.count()), event_time=sw.event_time(late="table"))
def win(orders: DataFrame) -> DataFrame:
    return orders.withColumn("w", F.window("at", "1 minute"))


@app.stage(reads="by-k", state=sw.aggregate(n=sw.count()), table=sw.table(ttl="3 seconds"))
def recent(orders: DataFrame) -> DataFrame:
    return orders
"""
FEES = ("amount div 100", "case when k like 'd%' then amount else amount div 100 end")
"""Fee in the first and in the second release. The second is wrong for keys that begin with d."""
HUGE = 2_000_000
MINUTE_MS = 60_000


@dataclass
class Shop:
    """An app that has processed the sent records."""

    bootstrap: str
    folder: Path
    app: str = field(default_factory=lambda: f"shop-{uuid4().hex[:8]}")
    seq: int = 0
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000 - 3_600_000)
    at: dict[str, str] = field(default_factory=dict)
    """Positions of named records."""
    before_reset: str = ""
    """Last moment before the reset."""

    def send(self, *orders: dict[str, object]) -> None:
        """Send orders, which by default have ascending numbers and times a second apart."""
        producer = Producer(open_kafka(self.bootstrap).properties)
        for given in orders:
            name, order = str(given.get("name", "")), {key: each for key, each in given.items() if key != "name"}
            order = {"id": self.seq, "seq": self.seq, "ts": self.began_ms + 1000 * self.seq, "amount": 10} | order

            def delivered(_error: object, message: Message, name: str = name) -> None:
                self.at[name] = f"{message.topic()}[{message.partition()}]@{message.offset()}"

            value = json.dumps(order).encode()
            at_ms = self.began_ms + self.seq
            producer.produce(self.app, value, key=str(order["k"]), partition=0, timestamp=at_ms, on_delivery=delivered)
            self.seq += 1
        assert producer.flush(30) == 0

    def healthy(self, count: int) -> None:
        self.send(*({"k": f"a{number % 10}"} for number in range(count)))

    def program(self, release: int) -> Path:
        path = self.folder / f"v{release}.py"
        path.write_text(PROGRAM.format(app=self.app, fee=FEES[release - 1]))
        return path

    def run(self, release: int = 1, stages: tuple[str, ...] = ()) -> None:
        program = self.program(release)
        options = Options(
            store=str(self.folder / "store"),
            kafka=open_kafka(self.bootstrap).properties,
            stages=stages,
            until_caught_up=True,
            cache_folder=self.folder / "cache" / "sst",
            gc_every_ms=None,
        )
        run(load_app(str(program)), options, Listener())

    def verb(self, *words: str) -> tuple[int, str, str]:
        environment = {
            **os.environ,
            "SLACKWATER_STORE": str(self.folder / "store"),
            "SLACKWATER_KAFKA": self.bootstrap,
            "SLACKWATER_CACHE": str(self.folder / "cache"),
        }
        said = CliRunner().invoke(main.app, words, env=environment)
        return said.exit_code, said.stdout, said.stderr

    def cause(self, where: str, *words: str, releases: tuple[int, ...] = (2,)) -> dict[str, object]:
        """Return the cause that bisect finds when it is given the files of these releases."""
        codes = [word for release in releases for word in ("--code", str(self.folder / f"v{release}.py"))]
        code, out, error = self.verb("bisect", self.app, "--where", where, *codes, "--json", *words)
        assert code == 0, error
        cause: dict[str, object] = json.loads(out)["cause"]
        return cause


@pytest.fixture(scope="module")
def shop(kafka: EmbeddedKafka, one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("causes")
    shop = Shop(kafka.bootstrap, folder)
    before = Path.cwd()
    os.chdir(folder)
    open_kafka(shop.bootstrap).create_topics({shop.app: 1})
    shop.healthy(10)
    shop.send(
        {"k": "q"},
        {"k": "e"},
        {"k": "d1", "amount": 300},
        {"k": "twice", "id": 500, "seq": 7, "ts": shop.began_ms, "name": "original"},
        {"k": "soon"},
    )
    shop.run()
    expired_s = time.time() + 3.5
    statement = f"UPDATE totals SET top = {HUGE} WHERE k = 'e'"
    assert shop.verb("edit", f"{shop.app}/totals", "--sql", statement)[0] == 0
    eventually(lambda: time.time() > expired_s, "rows expire")
    shop.healthy(40)
    shop.send(
        {"k": "p", "amount": HUGE, "name": "bad"},
        {"k": "r1", "amount": -5, "name": "first"},
        {"k": "r2", "amount": -5, "name": "second"},
        {"k": "twice", "id": 500, "seq": 7, "ts": shop.began_ms, "name": "copy"},
        {"k": "ahead", "ts": shop.began_ms + 40 * MINUTE_MS, "name": "mover"},
    )
    shop.healthy(5)
    shop.run()
    shop.send({"k": "l", "name": "late"}, {"k": "l", "name": "later"}, {"k": "d1", "amount": 400})
    shop.healthy(20)
    shop.run(2)
    code, out, error = shop.verb("log", shop.app, "--limit", "0", "--json")
    assert code == 0, error
    shop.before_reset = next(
        f"{shop.app}/recent@v{each['version']}" for each in json.loads(out) if each["stage"] == "recent"
    )
    assert shop.verb("reset", shop.app, "--all-topics", "--to-earliest", "--message", "again")[0] == 0
    shop.run(2, stages=("parse", "totals"))
    yield shop
    os.chdir(before)


def test_one_bad_record_is_named(shop: Shop) -> None:
    cause = shop.cause("SELECT k FROM totals WHERE top >= 2000000 AND k <> 'e'", releases=(1,))
    assert (cause["class"], cause["proved"], cause["record"]) == ("record", True, shop.at["bad"]), cause
    assert cause["records"] == [shop.at["bad"]]
    assert cause["one_of"] is None


def test_the_first_of_several_bad_records_is_named_and_all_are_listed(shop: Shop, tmp_path: Path) -> None:
    where = "SELECT k FROM totals WHERE low < 0"
    cause = shop.cause(where, releases=(1,))
    assert (cause["class"], cause["proved"], cause["record"]) == ("records", True, shop.at["first"]), cause
    assert cause["records"] == [shop.at["first"], shop.at["second"]]
    out = tmp_path / "bad.csv"
    words = ("bisect", shop.app, "--where", where, "--code", str(shop.folder / "v1.py"), "--all", "--out", str(out))
    code, said, error = shop.verb(*words)
    assert code == 0, error
    assert said.index(shop.at["first"]) < said.index(shop.at["second"])
    assert len(out.read_text().splitlines()) == 3
    # The cause is known before Spark starts, regardless of the replay.
    assert error.index("is the first bad commit") < error.index("starting Spark for the replay")


def test_an_edit_is_named_without_a_replay(shop: Shop) -> None:
    cause = shop.cause("SELECT k FROM totals WHERE top >= 2000000 AND k = 'e'", "--no-replay")
    assert (cause["class"], cause["proved"], cause["record"], cause["records"]) == ("operation", True, None, [])
    evidence = cause["evidence"]
    assert isinstance(evidence, dict)
    assert evidence["kind"] == "edit"
    assert "UPDATE totals" in evidence["what"]


def test_a_deploy_is_proved_with_both_programs(shop: Shop) -> None:
    cause = shop.cause("SELECT k FROM totals WHERE fee BETWEEN 101 AND 1000", releases=(2, 1))
    assert (cause["class"], cause["proved"], cause["record"]) == ("deploy", True, None), cause
    evidence = cause["evidence"]
    assert isinstance(evidence, dict)
    assert evidence["stage"] == "totals"
    assert evidence["from"]["path"].endswith("v1.py")
    assert evidence["to"]["path"].endswith("v2.py")
    assert evidence["how"] == "both programs"


@pytest.mark.ci
@pytest.mark.parametrize(("release", "how"), [(2, "older batches"), (1, "the program before")])
def test_a_deploy_is_proved_with_either_program_alone(shop: Shop, release: int, how: str) -> None:
    cause = shop.cause("SELECT k FROM totals WHERE fee BETWEEN 101 AND 1000", releases=(release,))
    assert (cause["class"], cause["proved"], cause["record"]) == ("deploy", True, None), cause
    assert cause["evidence"]["how"] == how  # type: ignore[index]


def test_expired_rows_are_blamed_on_no_record(shop: Shop) -> None:
    where = "SELECT 1 WHERE NOT EXISTS (FROM recent WHERE k = 'soon')"
    cause = shop.cause(where, "--good", f"{shop.app}/recent@v2", "--bad", shop.before_reset, releases=(1,))
    assert (cause["class"], cause["proved"], cause["record"], cause["records"]) == ("time", True, None, []), cause
    assert cause["evidence"]["stage"] == "recent"  # type: ignore[index]


def test_late_rows_are_named_with_the_record_that_moved_the_watermark(shop: Shop) -> None:
    cause = shop.cause("FROM win_late WHERE k = 'l'")
    assert (cause["class"], cause["proved"], cause["record"]) == ("watermark", True, shop.at["late"]), cause
    evidence = cause["evidence"]
    assert isinstance(evidence, dict)
    assert (evidence["late"], evidence["moved_by"]) == (shop.at["late"], shop.at["mover"])
    assert evidence["moved_version"].startswith("parse@v")


@pytest.mark.ci
def test_a_key_without_new_records_names_no_record(shop: Shop) -> None:
    where = "SELECT k FROM totals WHERE k = 'q' AND last_seq < (SELECT max(last_seq) FROM totals) - 30"
    cause = shop.cause(where, releases=(1,))
    assert (cause["class"], cause["proved"], cause["record"], cause["records"]) == ("absence", True, None, []), cause
    evidence = cause["evidence"]
    assert isinstance(evidence, dict)
    assert evidence["keys"] == [{"k": "q"}]
    assert evidence["read_to"] == {f"{shop.app}[0]": 65}
    assert evidence["since"]["stage"] == "totals"


@pytest.mark.ci
def test_the_record_that_moved_a_maximum_is_named(shop: Shop) -> None:
    where = f"SELECT k FROM totals WHERE last_ts < (SELECT max(last_ts) FROM totals) - {30 * MINUTE_MS}"
    cause = shop.cause(where, releases=(1,))
    assert (cause["class"], cause["proved"], cause["record"]) == ("record", True, shop.at["mover"]), cause


def test_both_copies_of_a_duplicated_record_are_named(shop: Shop) -> None:
    cause = shop.cause("SELECT id FROM ids WHERE n > 1 AND id = 500", releases=(1,))
    assert (cause["class"], cause["proved"], cause["record"]) == ("duplicate", True, shop.at["copy"]), cause
    assert cause["records"] == [shop.at["original"], shop.at["copy"]]
    assert cause["evidence"]["original"] == shop.at["original"]  # type: ignore[index]


def test_records_read_again_after_a_reset_are_blamed_on_the_reset(shop: Shop) -> None:
    cause = shop.cause("SELECT k FROM totals WHERE k = 'q' AND n > 1")
    assert (cause["class"], cause["proved"], cause["record"], cause["records"]) == ("operation", True, None, []), cause
    evidence = cause["evidence"]
    assert isinstance(evidence, dict)
    assert (evidence["kind"], evidence["stage"]) == ("reset", "parse")
    assert "again" in evidence["what"]


def test_the_bad_commit_is_reported_even_if_the_replay_fails(shop: Shop) -> None:
    broken = shop.folder / "broken.py"
    broken.write_text("raise IndexError('no such thing')")
    where = "SELECT k FROM totals WHERE low < 0"
    code, out, error = shop.verb("bisect", shop.app, "--where", where, "--code", str(broken), "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["stage"] == "totals"
    assert (found["cause"]["class"], found["cause"]["record"]) == ("unknown", None)
    assert "no such thing" in found["cause"]["evidence"]["reason"]


@pytest.mark.ci
def test_a_notebook_shows_the_cause(shop: Shop) -> None:
    app = sw.open(store=str(shop.folder / "store"), kafka=shop.bootstrap).app(shop.app)
    found = app.bisect(where="SELECT k FROM totals WHERE low < 0", code=[shop.folder / "v1.py", shop.folder / "v2.py"])
    assert (found.cause.kind, str(found.cause.record)) == ("records", shop.at["first"])
    assert shop.at["second"] in repr(found)
