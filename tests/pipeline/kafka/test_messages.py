"""Messages of repartition topics: committed attempts, positions and markers, in lists and in an in-memory Kafka."""

from dataclasses import replace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pyspark.sql.types import LongType, StructField, StructType
from slackwater.errors import Corruption, Gone, KeysForgotten
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import (
    check_row_count,
    decode_addressed,
    decode_rows,
    encode_rows,
    header_value,
    marker_header,
    send_messages,
    split_into_messages,
    write_markers,
)
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.source.readers import ChannelSourceReader, _Ranges
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.state.records import Position, Range
from slackwater.store.objects.local import LocalStore
from slackwater.store.versions.commit import commit
from slackwater.store.versions.manifest import Manifest, Output

from tests.support.diamonds import SCHEMA, Message, markers_in

MINE = frozenset({"w.1.0", "w.2.7"})
HEADERS = [b"w.1.0", b"w.2.7", b"w.1", b"w.1.00", b"dead.1.0", marker_header("w.1.0"), b"", b"\xff", None]
"""Valid attempts, similar invalid ones, a marker, and foreign headers."""


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": numbers}, schema=SCHEMA)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[Message, list[int]]]:
    """Draw messages of one partition, with their content. Offsets may have gaps."""
    offset, found = draw(st.integers(0, 2**40)), []
    for header in draw(st.lists(st.sampled_from(HEADERS), max_size=12)):
        numbers = draw(st.lists(st.integers(0, 99), max_size=4))
        # What others wrote need not be Arrow at all.
        ours = header in (b"w.1.0", b"w.2.7") or draw(st.booleans())
        found.append((Message(encode_rows(batch(*numbers)) if ours else b"?", header, ("t", 2, offset)), numbers))
        offset += draw(st.integers(1, 3))
    return found


@given(logs())
def test_only_rows_of_committed_attempts_are_decoded_and_in_order(
    log: list[tuple[Message, list[int]]],
) -> None:
    messages = [message for message, _ in log]
    counts = [(message, numbers) for message, numbers in log if header_value(message) in MINE]  # type: ignore[arg-type]
    found = list(decode_rows(messages, MINE, SCHEMA))  # type: ignore[arg-type]
    assert [n for rows in found for n in rows["n"].to_pylist()] == [n for _, numbers in counts for n in numbers]
    addressed = [
        tuple(row.values())
        for table in decode_addressed(messages, MINE)  # type: ignore[arg-type]
        for row in table.to_pylist()
    ]
    assert addressed == [(n, 2, message.offset(), row) for message, numbers in counts for row, n in enumerate(numbers)]


def test_address_columns_have_the_declared_types() -> None:
    (table,) = decode_addressed([Message(encode_rows(batch(5)), b"w.1.0")], MINE)  # type: ignore[list-item]
    assert [str(field.type) for field in table.schema] == ["int64", "int32", "int64", "int32"]
    assert table.column_names == ["n", "_partition", "_offset", "_row"]


def test_a_message_without_headers_is_ignored() -> None:
    assert header_value(Message(b"", None)) == ""  # type: ignore[arg-type]


def stream_without_rows() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA):
        pass
    return bytes(sink.getvalue())


VALUE = encode_rows(batch(*range(50)))
# The last 8 bytes only say that the stream ends.
CUT_SHORT = st.integers(0, len(VALUE) - 9).map(lambda length: VALUE[:length])


@given(st.none() | st.binary(max_size=20) | CUT_SHORT | st.just(stream_without_rows()))
def test_a_damaged_message_of_a_committed_attempt_is_corruption_with_its_address(damaged: bytes | None) -> None:
    message = Message(damaged, b"w.1.0")
    with pytest.raises(Corruption, match=r"message t\[3\]@14 is (not )?an Arrow stream"):
        list(decode_rows([message], MINE, SCHEMA))  # type: ignore[list-item]
    with pytest.raises(Corruption, match=r"message t\[3\]@14 is (not )?an Arrow stream"):
        list(decode_addressed([message], MINE))  # type: ignore[list-item]


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_range_must_have_exactly_as_many_rows_as_were_sent(found: int, sent: int) -> None:
    check_row_count("t", Range(1, 4, 9, None), found, [])
    if found == sent:
        check_row_count("t", Range(1, 4, 9, sent), found, [])
    else:
        with pytest.raises(
            Corruption, match=rf"t\[1\]@4\.\.9 holds {found} rows .*, but the manifests say {sent}(\n|$)"
        ):
            check_row_count("t", Range(1, 4, 9, sent), found, [])


def test_fewer_rows_are_accepted_only_where_keys_were_forgotten() -> None:
    forgotten, lost = KeysForgotten("keys were forgotten"), Gone("no longer there")
    check_row_count("t", Range(1, 4, 9, 3), 2, [forgotten])
    with pytest.raises(Corruption):
        check_row_count("t", Range(1, 4, 9, 3), 4, [forgotten])
    with pytest.raises(Gone, match="no longer there"):
        check_row_count("t", Range(1, 4, 9, 3), 2, [forgotten, lost])


class Written:
    """A channel of three partitions on in-memory Kafka, with manifests in a real store."""

    def __init__(self, kafka: MemoryKafka, store: LocalStore) -> None:
        self.kafka = kafka
        self.store = store
        self.topic = f"c-{uuid4().hex[:8]}"
        self.kafka.create_topics({self.topic: 3})
        self.output = Output(self.topic, (0, 0, 0), schema="n long", sent=(0, 0, 0))
        self.version = 0

    def send(self, attempt: str, numbers: list[int]) -> dict[int, int]:
        """Send each number to the partition `number % 3`."""
        rows = pa.table({"n": pa.array(numbers, pa.int64())})
        messages = list(split_into_messages(rows, np.array(numbers) % 3))
        return send_messages(self.kafka, self.topic, messages, attempt.encode(), patience_s=180)

    def version_with(self, numbers: list[int], *snapshots: str, count: int = 0) -> Output:
        """Send messages as a fenced writer, then commit a version. Its row count is wrong by `count`."""
        self.version += 1
        self.send("dead", [7, 8, 9])
        ends, attempt = list(self.output.ends), f"w.{self.version}"
        for partition, end in (self.send(attempt, numbers) if numbers else {}).items():
            ends[partition] = end
        sent = [rows + sum(n % 3 == p for n in numbers) for p, rows in enumerate(self.output.sent)]
        sent[0] += count
        self.output = Output(
            self.topic, tuple(ends), tuple(sent), (attempt,) if numbers else (), len(numbers), "n long"
        )
        for snapshot in snapshots:
            at = write_markers(self.kafka, self.topic, 3, snapshot, 30)
            ends, markers = tuple(offset + 1 for offset in at), {**self.output.markers, snapshot: at}
            self.output = structs.replace(self.output, ends=ends, markers=markers)
        manifest = Manifest("a", "up", self.version, 1, "w", self.version, "batch", outputs={"c": self.output})
        commit(self.store, manifest)
        return self.output

    def messages(self, start: tuple[int, ...], ends: tuple[int, ...]) -> list[list[Message]]:
        return [
            [
                message  # type: ignore[misc]
                for chunk in self.kafka.read(self.topic, p, first, end, patience_s=180)
                for message in chunk
            ]
            for p, (first, end) in enumerate(zip(start, ends, strict=True))
        ]

    def read(self, start: Position, end: Position) -> list[int]:
        """Read a batch as the Spark source does."""
        store = str(self.store.url)
        options = SourceOptions(input="c", topic=self.topic, upstream="up", patience_s=180, app="a", store=store)
        reader = ChannelSourceReader(
            options, StructType([StructField("n", LongType())]), PrivateOptions(self.kafka.properties)
        )
        parts = reader.partitions(start.to_json(), end.to_json())
        assert all(isinstance(part, _Ranges) for part in parts)
        return [n for part in parts for rows in reader.read(part) for n in rows["n"].to_pylist()]


@pytest.fixture
def written(memory_kafka: MemoryKafka, tmp_path: object) -> Written:
    return Written(memory_kafka, LocalStore(tmp_path))  # type: ignore[arg-type]


def place(output: Output, version: int) -> Position:
    return Position("c", output.ends, version, output.sent)


def test_a_marker_is_in_every_partition_after_the_rows_and_the_manifest_has_its_position(written: Written) -> None:
    before = written.version_with([0, 3, 4])  # nothing for partition 2
    after = written.version_with([6, 10], "s1", "s2")
    log = written.messages((0, 0, 0), after.ends)
    for partition, messages in enumerate(log):
        headers = [header_value(message) for message in messages]  # type: ignore[arg-type]
        assert headers[-2:] == ["marker s1", "marker s2"]
        assert markers_in(messages) == ["s1", "s2"]
        for snapshot, offset in (("s1", -2), ("s2", -1)):
            assert after.markers[snapshot][partition] == messages[offset].offset()
        assert after.ends[partition] == messages[-1].offset() + 1
        assert not messages[-1].value()
    assert (after.sent, after.rows, after.attempts) == ((3, 2, 0), 2, ("w.2",)), "markers are no rows"
    assert list(written.messages(before.ends, after.ends)[2][-1].headers() or ()) == [("slackwater", b"marker s2")]


def test_a_source_reads_and_counts_the_rows_that_its_versions_sent(written: Written) -> None:
    start = Position("c", (0, 0, 0), 0, (0, 0, 0))
    first = place(written.version_with([0, 1, 2, 3]), 1)
    second = place(written.version_with([12, 13], "s"), 2)
    third = place(written.version_with([21, 24, 27]), 3)
    assert written.read(start, first) == [0, 3, 1, 2]
    assert written.read(first, second) == [12, 13]
    assert written.read(second, third) == [21, 24, 27]
    assert sorted(written.read(start, third)) == [0, 1, 2, 3, 12, 13, 21, 24, 27]


@pytest.mark.parametrize("miscounted", [-1, 1])
def test_a_source_refuses_a_range_with_a_wrong_number_of_rows(written: Written, miscounted: int) -> None:
    start = Position("c", (0, 0, 0), 0, (0, 0, 0))
    end = place(written.version_with([0, 3, 1], count=miscounted), 1)
    with pytest.raises(Corruption, match=rf"\[0\]@0\.\.\d+ holds 2 rows .*, but the manifests say {2 + miscounted}"):
        written.read(start, end)


def test_in_flight_records_are_read_with_their_addresses_and_counted(written: Written) -> None:
    first, second = written.version_with([0, 1]), written.version_with([3, 6, 4], "s")
    flight = InFlight(
        channel="c",
        topic=written.topic,
        sender="up",
        receiver="down",
        starts=first.ends,
        ends=second.ends,
        attempts=second.attempts,
        rows=3,
        counts=(2, 1, 0),
        after=1,
        up_to=2,
        schema="n long",
    )
    rows = [row for table in KafkaChannels(written.kafka).read(flight) for row in table.to_pylist()]
    # Zombies wrote one message to each partition before each version.
    assert [tuple(row.values()) for row in rows] == [(3, 0, 3, 0), (6, 0, 3, 1), (4, 1, 3, 0)]
    with pytest.raises(Corruption, match=r"holds 2 rows .* the manifests say 1"):
        list(KafkaChannels(written.kafka).read(replace(flight, counts=(1, 1, 0))))
