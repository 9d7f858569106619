"""Records that exceed a topic's size limit: they are named in an error, or rejected by the sink."""

import os
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import BadRecord, TooMuch
from slackwater.pipeline.api.sink import sink
from slackwater.pipeline.batch.task import OutputTopic, WriteTask, separate_too_large
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import RowTooLarge, decode_rows, split_into_messages
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import MAX_RECORD_BYTES, Properties
from slackwater.pipeline.messages import outgoing
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.store.archive.columns import HEADERS

from tests.pipeline.batch.test_task import Message


def varint(number: int) -> bytes:
    """Encode a number as Protocol Buffers and Kafka do: zigzag, seven bits per byte."""
    zigzag, made = (number << 1) ^ (number >> 63), bytearray()
    while zigzag >= 128:
        made.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*made, zigzag])


def counted(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> bytes:
    """Return a record batch with one record in Kafka's format (v2), with zeros for its numeric header fields."""
    body = b"\0" + varint(0) + varint(0) + counted(key) + counted(value) + varint(len(headers))
    body += b"".join(counted(name.encode()) + counted(it) for name, it in headers)
    fixed = 8 + 4 + 4 + 1 + 4 + 2 + 4 + 8 + 8 + 8 + 2 + 4 + 4
    return bytes(fixed) + varint(len(body)) + body


LENGTHS = st.integers(0, 200) | st.sampled_from([62, 63, 64, 65, 8_100, 8_191, 8_192, 8_193, 1_048_570])
DATA = st.none() | LENGTHS.map(bytes)
NAMED = st.lists(st.tuples(st.text(max_size=4), DATA), max_size=3)


@given(st.lists(st.tuples(DATA, DATA, st.none() | NAMED), min_size=1, max_size=4))
def test_the_computed_size_of_a_record_is_that_of_a_batch_with_only_this_record(records: list[Any]) -> None:
    headers = [None if one is None else [{"key": name, "value": it} for name, it in one] for _, _, one in records]
    table = pa.table(
        {
            "key": pa.array([key for key, _, _ in records], pa.binary()),
            "value": pa.array([value for _, value, _ in records], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    expected = [len(batch(key, value, one or [])) for key, value, one in records]
    assert outgoing.single_batch_bytes(table).tolist() == expected
    assert outgoing.single_batch_bytes(table.slice(1)).tolist() == expected[1:]


def test_headers_from_columns_count_towards_the_size() -> None:
    rows = pa.table({"k": ["a", "b"], "body": [b"x" * 100, None], "trace": ["t" * 70, None]})
    records = outgoing.encode_records(rows, sink("t", key="k", value="body", headers={"id": "trace"}).encoding, 1)
    expected = [len(batch(b"a", b"x" * 100, [("id", b"t" * 70)])), len(batch(b"b", None, []))]
    assert outgoing.single_batch_bytes(records).tolist() == expected


class Sinks:
    """A sink on in-memory Kafka, whose topic has a size limit."""

    def __init__(self, limit: int, *, rejects: bool = False) -> None:
        self.kafka = open_kafka({"bootstrap.servers": f"memory://{uuid4().hex}"})
        self.kafka.create_topics({"out": 1}, config={"max.message.bytes": str(limit)})
        self.kafka.create_topics({"internal": 1, "channel": 2})
        self.target = OutputTopic("out", "internal", published_topic="out", rejects_too_large=rejects)


def records(*sizes: int) -> pa.Table:
    return pa.table({"key": [b"k%d" % size for size in sizes], "value": [os.urandom(size) for size in sizes]})


def test_a_record_too_large_for_the_sinks_topic_is_named() -> None:
    sinks, rows = Sinks(1_000), records(10, 2_000, 10)
    size = len(batch(b"k2000", bytes(2_000), []))
    said = rf"^sink 'out' at v7: the record with key 'k2000' of {size:,} bytes exceeds the topic's "
    with pytest.raises(BadRecord, match=said + r"max.message.bytes \(1,000\); .*on_error=\"reject\""):
        separate_too_large(sinks.kafka, sinks.target, rows, 7)


def test_a_rejecting_sink_publishes_the_other_records() -> None:
    exact = records(900, 2_000, 10)
    sizes = outgoing.single_batch_bytes(exact).tolist()
    for limit, fit in ((sizes[0], [0, 2]), (sizes[0] - 1, [2]), (sizes[1], [0, 1, 2])):
        sinks = Sinks(limit, rejects=True)
        taken, unsent = separate_too_large(sinks.kafka, sinks.target, exact, 7)
        assert taken == exact.take(pa.array(fit))
        left = exact.take(pa.array(sorted({0, 1, 2} - {*fit}), pa.int64())).to_pylist()
        assert [(one.key, one.value) for one in unsent] == [(row["key"], row["value"]) for row in left]


def test_with_compression_only_records_above_the_absolute_limit_are_too_large() -> None:
    sinks = Sinks(1_000, rejects=True)
    compressing = Compressing(sinks.kafka.properties["bootstrap.servers"])
    compressing.create_topics({"out": 1}, config={"max.message.bytes": "1000"})
    assert separate_too_large(compressing, sinks.target, records(2_000), 7)[1] == ()
    assert len(separate_too_large(compressing, sinks.target, records(MAX_RECORD_BYTES), 7)[1]) == 1


class Compressing(MemoryKafka):
    @property
    def properties(self) -> Properties:
        return {**super().properties, "compression.type": "zstd"}


def test_the_largest_publishable_record_fits_into_an_internal_message() -> None:
    sinks = Sinks(1 << 30, rejects=True)
    most = MAX_RECORD_BYTES - (64 << 10) - 100
    rows = records(most, MAX_RECORD_BYTES)
    taken, unsent = separate_too_large(sinks.kafka, sinks.target, rows, 7)
    assert (taken.num_rows, len(unsent)) == (1, 1)
    assert len([*split_into_messages(taken, np.zeros(1, np.int32))]) == 1


def test_the_topics_limit_is_read_again_when_a_record_exceeds_it() -> None:
    sinks = Sinks(1_000, rejects=True)
    assert len(separate_too_large(sinks.kafka, sinks.target, records(2_000), 1)[1]) == 1
    sinks.kafka.delete_topics(["out"])
    sinks.kafka.create_topics({"out": 1}, config={"max.message.bytes": "5000"})
    assert separate_too_large(sinks.kafka, sinks.target, records(2_000), 2)[1] == ()


def test_rows_are_split_until_a_message_fits_and_a_row_that_never_fits_is_named() -> None:
    large, schema = MAX_RECORD_BYTES // 3, pa.schema([("id", pa.string()), ("data", pa.binary())])
    rows = pa.table(
        [["a", *"bcdefg"], [os.urandom(large) if name in "aceg" else b"" for name in "abcdefg"]], schema=schema
    )
    found = [*split_into_messages(rows, np.zeros(7, np.int32))]
    assert max(len(value) for _, value in found) <= MAX_RECORD_BYTES
    messages = [Message(value, b"w") for _, value in found]
    decoded = pa.Table.from_batches(decode_rows(messages, frozenset(["w"]), schema))  # type: ignore[arg-type]
    assert decoded.combine_chunks() == rows.combine_chunks()
    one = pa.table([["a", "b"], [b"", os.urandom(MAX_RECORD_BYTES)]], schema=schema)
    with pytest.raises(RowTooLarge) as caught:
        [*split_into_messages(one, np.zeros(2, np.int32))]
    assert caught.value.row["id"].to_pylist() == ["b"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (OutputTopic("by-id", "channel", 2, ("id",)), "repartition topic 'by-id' at v3: the row with id='b' has"),
        (OutputTopic("told", "internal"), "sink 'told' at v3: the row has"),
    ],
)
def test_a_row_too_large_for_any_message_is_named(target: OutputTopic, said: str) -> None:
    sinks = Sinks(1_000)
    resources = WorkerResources("app", "stage", "/nowhere", dict(sinks.kafka.properties), ("/nowhere", 1), 10)  # type: ignore[arg-type]
    rows = pa.table({"id": ["a", "b"], "data": [b"", os.urandom(MAX_RECORD_BYTES)]})
    task = WriteTask(resources, "w", 3, (target,))
    with pytest.raises(TooMuch, match=said):
        task._send([(target, rows, np.zeros(2, np.int32))], "w.3.1")
    assert sinks.kafka.offset_bounds(target.topic)[1][0] == 0
