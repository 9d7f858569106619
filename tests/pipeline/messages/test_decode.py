"""`decode` on Spark with a real registry: changing schemas, bad messages, an unavailable registry."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
import slackwater as sw
from confluent_kafka import Producer
from google.protobuf.message_factory import GetMessageClass
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slackwater.errors import NotFound, Refused, Usage
from slackwater.pipeline.batch.column_sources import trace_sources
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.listener import Listener
from slackwater.pipeline.messages import outgoing
from slackwater.pipeline.messages.decode import RegistryDecoder, default_topics
from slackwater.pipeline.messages.protobuf import _compile
from slackwater.pipeline.messages.registry import Schema, clear_latest_schemas
from slackwater.pipeline.reject.blame import record_failure
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.program import load_app
from slackwater.pipeline.run.runner import run
from slackwater.pipeline.spark.user_errors import parse_query_error

from tests.pipeline.messages.avro_messages import encoded, record
from tests.support.registries import EmbeddedRegistry

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("one_spark"),
    pytest.mark.skipif(not hasattr(F, "arrow_udf"), reason="Spark 4.0 has no scalar functions of Arrow: it is refused"),
]

SHOP = Path(__file__).parents[3] / "examples" / "shop.py"
FIELDS = [{"name": "number", "type": "int"}, {"name": "customer", "type": "string"}]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
WIDER = {
    **ORDER,
    "fields": [{"name": "number", "type": "long"}, *FIELDS[1:], {"name": "new", "type": "int", "default": 1}],
}


def topic(*values: bytes | None) -> DataFrame:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    rows = [(value, "orders", 3, 40 + n) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, "value binary, topic string, partition int, offset long")


def test_a_decoded_column_is_traced_to_its_message_field(registry: EmbeddedRegistry) -> None:
    """By such a trace, `forget` finds a person in stored messages."""
    number = registry.register("orders-value", ORDER)
    clear_latest_schemas()
    with default_topics(["orders"]):
        messages = topic()
        rows = messages.select(sw.decode("value", registry=registry.url).alias("o")).select("o.customer")
    (source,) = trace_sources(rows, {"orders": messages}, ["orders"])["customer"]
    assert (source.input, source.field, source.by) == ("orders", "$.customer", ())
    stored = [encoded(ORDER, number, number=1, customer=who) for who in ("ada", "bob")]
    parts, bad = RegistryDecoder(5).decoded(source.format, pa.array([*stored, b"\0\0\0\0\0x"], pa.binary()))
    ((values, at),) = parts
    assert [(row, value["customer"]) for row, value in zip(at.tolist(), values.to_pylist(), strict=True) if value] == [
        (0, "ada"),
        (1, "bob"),
    ]
    assert [*bad] == [2]


def test_the_readers_schema_stays_fixed_while_writers_evolve(registry: EmbeddedRegistry) -> None:
    first = registry.register("orders-value", ORDER)
    clear_latest_schemas()
    with default_topics(["orders"]):
        column = sw.decode("value", registry=registry.url)
    second = registry.register("orders-value", WIDER)
    messages = [
        encoded(ORDER, first, number=1, customer="ann"),
        None,
        encoded(WIDER, second, number=2, customer="bob", new=5),
    ]
    decoded = topic(*messages).select(column.alias("o")).select("o.*")
    assert decoded.schema.simpleString() == "struct<number:int,customer:string>"
    assert [tuple(row) for row in decoded.collect()] == [(1, "ann"), (None, None), (2, "bob")]
    with default_topics(["orders"]):
        again = sw.decode("value", registry=registry.url)
    assert topic().select(again).schema == topic().select(column).schema, "the app has not started anew"
    clear_latest_schemas()
    newest = sw.decode("value", registry=registry.url, subject="orders-value")
    assert [tuple(row) for row in topic(*messages).select(newest.alias("o")).select("o.*").collect()] == [
        (1, "ann", 1),
        (None, None, None),
        (2, "bob", 5),
    ]


def test_an_undecodable_message_stops_the_query_with_its_address_or_becomes_null(registry: EmbeddedRegistry) -> None:
    number = registry.register("payments-value", ORDER)
    messages = topic(encoded(ORDER, number, number=1, customer="ann"), b'{"number": 2}')
    strict = sw.decode("value", registry=registry.url, subject="payments-value")
    with pytest.raises(PythonException) as caught:
        messages.select(strict).collect()
    error = parse_query_error("orders", str(caught.value))
    blame = record_failure(caught.value)
    assert blame is not None
    assert (blame.kind, blame.message.split(":")[0]) == (
        "BadRecord",
        "the message at topic 'orders', partition 3, offset 41 cannot be decoded",
    )
    assert error.sentence.startswith("stage 'orders': the message at topic 'orders', partition 3, offset 41 cannot be")
    lenient = sw.decode(messages.value, registry=registry.url, subject="payments-value", mode="permissive")
    assert [row[0] and row[0].customer for row in messages.select(lenient).collect()] == ["ann", None]
    saying = sw.decode("value", registry=registry.url, subject="payments-value", mode="PERMISSIVE", reason="_why")
    said = messages.union(topic(None)).select(saying.alias("o")).select("o.*").collect()
    assert [tuple(row) for row in said] == [
        (1, "ann", None),
        (
            None,
            None,
            "it has no schema registry header (magic byte 0 and schema id): it begins with 7b 22 6e 75 6d 62 65 72",
        ),
        (None, None, None),
    ]


@pytest.mark.kafka
def test_the_example_sums_records_of_two_schema_versions(
    registry: EmbeddedRegistry, kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_REGISTRY", registry.url)
    open_kafka(kafka.bootstrap).create_topics({"orders": 1})
    sold = record("Sold", {"name": "country", "type": "string"}, {"name": "cents", "type": "int"})
    wider = record("Sold", {"name": "cents", "type": "int"}, {"name": "country", "type": "string", "default": "de"})
    numbers = registry.register("orders-value", sold), registry.register("orders-value", wider)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for n in range(30):
        producer.produce("orders", encoded((sold, wider)[n % 2], numbers[n % 2], country="de", cents=n))
    producer.produce("orders", b"{}")
    assert producer.flush(30) == 0
    app, store = load_app(str(SHOP)), str(tmp_path / "store")
    options = Options(
        store=store, kafka={"bootstrap.servers": kafka.bootstrap}, until_caught_up=True, cache_folder=tmp_path / "cache"
    )
    run(app, options, Listener())
    table = sw.open(store).app("shop").at().query("SELECT country, orders, cents, last FROM countries ORDER BY country")
    assert table.to_arrow_table().to_pylist() == [
        {"country": "?", "orders": 1, "cents": None, "last": 30},
        {"country": "de", "orders": 30, "cents": sum(range(30)), "last": 29},
    ]


def test_a_spark_without_arrow_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(F, "arrow_udf")
    with pytest.raises(Refused, match=r"which Spark has since 4\.1"):
        sw.decode("value", registry="http://localhost:1")


def test_invalid_arguments_are_refused_before_anything_runs(registry: EmbeddedRegistry) -> None:
    with pytest.raises(NotFound, match="no subject named 'nothing-value'"):
        sw.decode("value", registry=registry.url, subject="nothing-value")
    with pytest.raises(Usage, match="missing subject= of decode"):
        sw.decode("value", registry=registry.url)
    with pytest.raises(Usage, match="contains credentials") as caught:
        sw.decode("value", registry="http://me:hush@localhost:1", subject="s")
    assert "hush" not in str(caught.value)
    registry.register("modes-value", ORDER)
    modes: list[tuple[dict[str, Any], str]] = [
        ({"mode": "DROPMALFORMED"}, "neither FAILFAST nor PERMISSIVE"),
        ({"reason": "_why"}, "needs mode='PERMISSIVE'"),
        ({"mode": "permissive", "reason": "Customer"}, "is already a field of the schema"),
    ]
    for words, why in modes:
        with pytest.raises(Usage, match=why):
            sw.decode("value", registry=registry.url, subject="modes-value", **words)


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_unsigned_numbers_and_oneofs_of_protobuf_equal_googles(registry: EmbeddedRegistry, mode: Any) -> None:
    text = """syntax = "proto3"; package ln; message Chan {
      string name = 1; uint64 chan_id = 2; uint32 port = 3; oneof pay { string card = 4; int64 cash = 5; }
      map<string, int64> tags = 6; message Empty {} Empty gone = 7; }"""
    number = registry.register("chans-value", text, kind="PROTOBUF")
    clear_latest_schemas()
    google = GetMessageClass(_compile(Schema("PROTOBUF", text)).message_types_by_name["Chan"])
    large = google(name="large", chan_id=18114587244887524324, port=4294967295).SerializeToString()
    twice = (
        google(name="twice", card="x", tags={"k": 1}).SerializeToString()
        + google(cash=5, tags={"k": 2}).SerializeToString()
    )
    head = b"\0" + number.to_bytes(4, "big") + b"\0"
    column = sw.decode("value", registry=registry.url, subject="chans-value", mode=mode)
    rows = topic(head + large, head + twice).select(column.alias("o")).select("o.*").drop("gone").collect()
    assert [tuple(row) for row in rows] == [
        ("large", Decimal(18114587244887524324), 4294967295, None, None, {}),
        ("twice", Decimal(0), 0, None, 5, {"k": 2}),
    ]


def test_avro_records_of_a_sink_can_be_read_and_unsupported_columns_are_refused(
    registry: EmbeddedRegistry,
) -> None:
    rows = pa.table({"number": pa.array([1, None], pa.int64()), "customer": ["ann", "bob"], "tags": [["a"], []]})
    encoding = sw.sink("sold", value="avro", registry=registry.url).encoding
    outgoing.register_schema(encoding, rows.schema, 30)
    messages = outgoing.encode_records(rows, encoding, 30)["value"].to_pylist()
    clear_latest_schemas()
    column = sw.decode("value", registry=registry.url, subject="sold-value")
    found = topic(*messages).select(column.alias("o")).select("o.*").collect()
    assert [tuple(row) for row in found] == [(1, "ann", ["a"]), (None, "bob", [])]
    text = rows.set_column(0, "number", pa.array(["one", "two"]))
    # Confluent's registry has this rule from the start.
    rule = Request(f"{registry.url}/config/sold-value", b'{"compatibility": "BACKWARD"}', method="PUT")  # noqa: S310  the registry of the test
    rule.add_header("Content-Type", "application/json")
    urlopen(rule).close()  # noqa: S310
    with pytest.raises(Refused, match="rejects the columns of subject 'sold-value'") as caught:
        outgoing.register_schema(encoding, text.schema, 30)
    assert "subject=" in caught.value.hint
