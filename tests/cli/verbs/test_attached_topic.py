"""Verbs on an app that follows a topic: `attach`, and the history that it gives a KTable."""

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater

pytestmark = pytest.mark.usefixtures("isolated")

TOPIC = "shop-totals-changelog"
WRONG = "SELECT key FROM totals WHERE cents > 1e6"


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryKafka:
    """Return a Kafka in memory, which verbs use by default, with a compacted topic of one partition."""
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    monkeypatch.setenv("SLACKWATER_KAFKA", kafka.address)
    kafka.create_topics({TOPIC: 1}, config={"cleanup.policy": "compact"})
    return kafka


def send(kafka: MemoryKafka, **rows: dict[str, object] | None) -> None:
    values = ((key, None if row is None else json.dumps(row).encode()) for key, row in rows.items())
    kafka.send(TOPIC, [Record(value, 0, key.encode(), [("by", b"test")]) for key, value in values], patience_s=5)


def attach(*words: str) -> str:
    return done("attach", f"kafka:{TOPIC}", "--app", "shop", "--once", *words)


def followed(kafka: MemoryKafka) -> None:
    """Follow three rounds. c3 is deleted; c1 becomes wrong by the second of the two records at offset 6."""
    send(kafka, c1={"orders": 1, "cents": 7}, c2={"orders": 2, "cents": 9}, c3={"orders": 3, "cents": 1})
    attach()
    send(kafka, c1={"orders": 2, "cents": 8}, c3=None)
    attach()
    send(kafka, c1={"orders": 3, "cents": 9})
    send(kafka, c1={"orders": 4, "cents": 9_000_000_000})
    attach()


def test_attach_says_what_it_would_do_and_each_version(kafka: MemoryKafka) -> None:
    send(kafka, c1={"orders": 1, "cents": 7})
    planned = done("attach", f"kafka:{TOPIC}", "--app", "shop", "--dry-run")
    assert f"would attach the topic {TOPIC} as shop/totals; nothing was changed" in planned
    assert "orders int64, cents int64\n" in planned
    assert "history begins with the newest row of each key" in planned
    text = attach()
    assert "shop/totals@v2  1 row changed" in text
    assert f"shop/totals: 1 version more, up to {TOPIC}[0] 1" in text
    assert "all records have versions" in done("attach", f"kafka:{TOPIC}", "--app", "shop", "--dry-run")
    assert from_json("attach", f"kafka:{TOPIC}", "--app", "shop", "--dry-run")["formats"] == {
        "key": "string",
        "value": "json",
    }


WITHOUT_SPARK = """
import sys
sys.modules |= dict.fromkeys(("pyspark", "py4j"))
from slackwater.cli.main import app
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
kafka = MemoryKafka.named("memory://alone")
kafka.create_topics({"totals": 1}, config={"cleanup.policy": "compact"})
kafka.send("totals", [Record(b'{"orders": 1}', 0, b"c1")], patience_s=5)
app(["attach", "kafka:totals", "--app", "shop", "--once", "--kafka", "memory://alone"])
"""


@pytest.mark.ci
def test_spark_is_not_needed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, check=False)
    assert "shop/totals: 1 version more, up to totals[0] 1" in done.stdout, done.stderr


def test_a_topic_is_queried_compared_and_searched_as_any_table(kafka: MemoryKafka) -> None:
    followed(kafka)
    assert rows_of("shop", "SELECT key, orders FROM totals ORDER BY key") == [
        {"key": "c1", "orders": 4},
        {"key": "c2", "orders": 2},
    ]
    (table,) = json.loads(slackwater("diff", "shop/totals@v2", "shop", "--json").stdout)["tables"]
    assert (table["added"], table["removed"], table["changed"]) == (0, 1, 1)
    changes = from_json("history", "shop/totals", "c1")["changes"]
    assert [change["record"] for change in changes] == [f"{TOPIC}[0]@6", f"{TOPIC}[0]@3", f"{TOPIC}[0]@0"]
    deleted, _ = from_json("history", "shop/totals", "c3")["changes"]
    assert (deleted["change"], deleted["record"]) == ("removed", f"{TOPIC}[0]@4")
    assert f"{TOPIC}[0]@6" in done("history", "shop/totals", "c1")
    assert f"{TOPIC} 0" in done("status", "shop")
    log = done("log", "shop")
    assert f"{TOPIC}[0] 3..5" in log
    assert "consistent" in done("verify", "shop", "--deep")
    done("snapshot", "take", "shop", "before")
    assert rows_of("shop@before", "SELECT count(*) AS n FROM totals") == [{"n": 2}]


def test_bisect_names_the_record_that_wrote_the_wrong_row(kafka: MemoryKafka) -> None:
    followed(kafka)
    found = from_json("bisect", "shop", "--where", WRONG)
    cause, record = found["cause"], found["record"]
    assert (cause["class"], cause["record"], cause["proved"]) == ("record", f"{TOPIC}[0]@6", False)
    assert "1 of the commit's earlier records have the same key" in cause["sentence"]
    assert json.loads(bytes.fromhex(record["value"])) == {"orders": 4, "cents": 9_000_000_000}
    assert record["headers"] == [{"name": "by", "value": b"test".hex()}]
    send(kafka, c2={"orders": 3, "cents": 9_000_000_000})
    attach()
    second = from_json("bisect", "shop", "--where", "SELECT key FROM totals WHERE key = 'c2' AND cents > 1e6")
    assert second["cause"]["proved"]
    assert second["cause"]["sentence"] == f"{TOPIC}[0]@7 wrote the row that turned bad"


def test_a_record_that_kafka_no_longer_has_is_still_named(kafka: MemoryKafka) -> None:
    followed(kafka)
    send(kafka, c1={"orders": 5, "cents": 1})
    kafka.compact(TOPIC)
    found = from_json("bisect", "shop", "--where", WRONG)
    assert found["cause"]["record"] == f"{TOPIC}[0]@6"
    assert "not known without Kafka" in found["cause"]["sentence"]


def test_a_clone_follows_the_topic_as_well(kafka: MemoryKafka) -> None:
    followed(kafka)
    assert f"slackwater attach kafka:{TOPIC} --app copy --stage totals" in done("clone", "shop", "copy")
    send(kafka, c9={"orders": 1, "cents": 1})
    assert "1 version more" in done("attach", f"kafka:{TOPIC}", "--app", "copy", "--stage", "totals", "--once")
    assert rows_of("copy", "SELECT count(*) AS n FROM totals") == [{"n": 3}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("kafka:nowhere", "--app", "shop"), "no Kafka topic named 'nowhere'"),
        ((f"kafka:{TOPIC}", "--app", "shop", "--value", "xml"), "--value 'xml' is no format"),
        ((f"kafka:{TOPIC}", "--app", "shop", "--value", "registry"), "needs the registry's URL"),
        ((f"kafka:{TOPIC}", "--app", "shop", "--value", "long"), f"{TOPIC}[0]@0 cannot be decoded: it has 25 bytes"),
        ((f"kafka:{TOPIC}", "--app", "shop", "--columns", "amount money"), "there is no type 'money'"),
        ((f"kafka:{TOPIC}", "--app", "shop", "--columns", "amount"), "--columns 'amount' cannot be read: expected a"),
        (
            ("checkpoint", "--app", "shop", "--key", "long"),
            "--key, --value, --columns and --registry belong to a topic",
        ),
    ],
)
def test_a_mistake_is_named(kafka: MemoryKafka, words: tuple[str, ...], message: str) -> None:
    send(kafka, c1={"orders": 1, "cents": 7})
    result = slackwater("attach", *words, "--once")
    assert result.exit_code
    assert message in result.stderr, result.output


def test_a_topic_without_records_has_no_columns_unless_they_are_named(kafka: MemoryKafka) -> None:
    refused = slackwater("attach", f"kafka:{TOPIC}", "--app", "shop", "--once")
    assert "has no record from which to infer the columns of its values" in refused.stderr
    assert "no record" in attach("--columns", "orders bigint")
    send(kafka, c1={"orders": 1})
    attach()
    assert rows_of("shop", "FROM totals") == [{"key": "c1", "orders": 1}]


@pytest.mark.ci
def test_a_type_that_stored_values_do_not_fit_needs_another_stage(kafka: MemoryKafka) -> None:
    followed(kafka)
    send(kafka, c1={"orders": 1, "cents": 7.5})
    stopped = slackwater("attach", f"kafka:{TOPIC}", "--app", "shop", "--once")
    assert f"the value of {TOPIC}[0]@7 cannot be decoded" in stopped.stderr
    refused = slackwater("attach", f"kafka:{TOPIC}", "--app", "shop", "--once", "--columns", "cents double")
    assert "column 'cents' is now double, but stored values are int64" in refused.stderr
    assert "attach the topic under another --stage" in refused.stderr
    done("attach", f"kafka:{TOPIC}", "--app", "shop", "--once", "--stage", "exact", "--columns", "cents double")
    assert rows_of("shop", "SELECT cents FROM exact WHERE key = 'c1'") == [{"cents": 7.5}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"A": 1, "a": 2}, "the topic's table cannot be stored: columns 'A' and 'a' differ only in case"),
        (json.loads('{"a": ' * 99 + "1" + "}" * 99), "cannot be a column of a state table"),
    ],
)
def test_columns_that_no_table_can_have_are_refused_before_there_is_an_app(
    kafka: MemoryKafka, value: dict[str, object], message: str
) -> None:
    send(kafka, c1=value)
    result = slackwater("attach", f"kafka:{TOPIC}", "--app", "shop", "--once")
    assert message in result.stderr
    assert "a decoder of yours can return other columns" in result.stderr
    assert "no app named 'shop'" in slackwater("log", "shop").stderr


def test_a_stage_follows_one_topic(kafka: MemoryKafka) -> None:
    followed(kafka)
    kafka.create_topics({"other": 1})
    kafka.send("other", [Record(b'{"a": 1}', 0, b"k")], patience_s=5)
    refused = slackwater("attach", "kafka:other", "--app", "shop", "--stage", "totals", "--once")
    assert f"shop/totals is attached to kafka:{TOPIC}, not to kafka:other" in refused.stderr


def test_a_decoder_of_ones_own_reads_the_values(kafka: MemoryKafka, tmp_path: Path) -> None:
    kafka.send(TOPIC, [Record(b"4;9", 0, b"c1")], patience_s=5)
    (tmp_path / "decode.py").write_text(
        "def total(data):\n"
        "    orders, cents = map(int, data.split(b';'))\n"
        "    return {'orders': orders, 'cents': cents}\n"
    )
    attach("--value", f"{tmp_path / 'decode.py'}:total")
    assert rows_of("shop", "FROM totals") == [{"key": "c1", "orders": 4, "cents": 9}]
    kafka.send(TOPIC, [Record(b"4", 0, b"c1")], patience_s=5)
    refused = slackwater("attach", f"kafka:{TOPIC}", "--app", "shop", "--once")
    assert f"the value of {TOPIC}[0]@1 cannot be decoded" in refused.stderr
    assert "decode.py:total raised ValueError: not enough values to unpack" in refused.stderr
