"""Messages of a schema registry decoded into columns, beside confluent-kafka's deserialisers: same bytes, one core.

The readers of `sw.decode` convert a batch from one Arrow array to another, as in a Spark task. confluent-kafka's
deserialisers convert one message at a time to a dict; turning the dicts into columns is not included. Both sides know
the schema already. The figure is CPU time of all threads.
"""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..support.row import Row

MESSAGES = 200_000
QUICK_MESSAGES = 20_000
ROUNDS = 5
ASKED = 200_000
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "country", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "paid", "type": "boolean"},
        {"name": "discount", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def rows(folder: Path, quick: bool) -> list[Row]:
    """Decode Avro with both sides. `folder` is not used."""
    from confluent_kafka.schema_registry import Schema as TheirSchema
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from slackwater.pipeline.messages.decode import open_reader, read_batch
    from slackwater.pipeline.messages.registry import Schema

    text = json.dumps(ORDER)
    client = SchemaRegistryClient.new_client({"url": "mock://bench"})
    number = client.register_schema("orders-value", TheirSchema(text, "AVRO"))
    messages = _messages(number, QUICK_MESSAGES if quick else MESSAGES)
    schema = Schema("AVRO", text)
    reader, array = open_reader(schema), pa.array(messages, pa.binary())

    def ours() -> Any:
        values, bad = read_batch(array, reader, "AVRO", lambda _number: schema)
        assert not bad
        return values

    theirs = AvroDeserializer(client)
    context = SerializationContext("orders", MessageField.VALUE)
    assert ours()[7].as_py() == theirs(messages[7], context)
    mine = len(messages) / _seconds(ours)
    peer = len(messages) / _seconds(lambda: [theirs(message, context) for message in messages])
    return [
        Row.at_least(
            f"decode of Avro, {len(array.buffers()[2]) / len(messages):.0f} bytes and {len(ORDER['fields'])} fields a "
            f"record, asked: {ASKED:,} records/s a core",
            f"{mine:,.0f} records/s",
            f"confluent-kafka's AvroDeserializer: {peer:,.0f} records/s",
            mine / ASKED,
            1,
        )
    ]


def _messages(number: int, count: int) -> list[bytes]:
    import fastavro

    schema = fastavro.parse_schema(json.loads(json.dumps(ORDER)))
    made = []
    for n in range(count):
        order = {
            "number": n,
            "customer": f"customer-{n % 5000}",
            "country": ("de", "fr", "it")[n % 3],
            "cents": n * 7919 % 100_000,
            "paid": n % 2 == 0,
            "discount": None if n % 3 else n / 7,
            "at": 1_700_000_000_000_000 + n,
            "note": None if n % 5 else "leave at the door",
        }
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        made.append(b"\0" + struct.pack(">I", number) + out.getvalue())
    return made


def _seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best
