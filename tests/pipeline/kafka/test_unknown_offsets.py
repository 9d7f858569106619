"""Writes whose acknowledgement has no offset, on librdkafka's own mock cluster."""

import ctypes
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Producer
from slackwater.pipeline.kafka.librdkafka import LibrdKafka
from slackwater.pipeline.kafka.messages import write_markers
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Record, SendFailed

_PRODUCE_API = 0
_DUPLICATE_SEQUENCE_NUMBER = 46
_RK_OFFSET = 16
"""Offset of the field `rk` in confluent-kafka's handle: it follows the object's reference count and type."""


class MockCluster:
    """Broker inside librdkafka, which answers requests with the errors that a test chooses."""

    def __init__(self) -> None:
        package = Path(confluent_kafka.__file__).parent
        (library,) = package.parent.glob("confluent_kafka.libs/librdkafka*")
        self._library = ctypes.CDLL(str(library))
        self._library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        self._library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        self._host = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
        rk = ctypes.c_void_p.from_address(id(self._host) + _RK_OFFSET)
        self._mock = ctypes.c_void_p(self._library.rd_kafka_handle_mock_cluster(rk))
        self.servers = self._library.rd_kafka_mock_cluster_bootstraps(self._mock).decode()

    def create_topic(self, name: str, partitions: int) -> None:
        assert self._library.rd_kafka_mock_topic_create(self._mock, name.encode(), partitions, 1) == 0

    def answer_produce_as_duplicate(self, requests: int) -> None:
        errors = [_DUPLICATE_SEQUENCE_NUMBER] * requests
        self._library.rd_kafka_mock_push_request_errors(
            self._mock, ctypes.c_int16(_PRODUCE_API), ctypes.c_size_t(requests), *errors
        )


@pytest.fixture
def cluster() -> MockCluster:
    cluster = MockCluster()
    cluster.create_topic("t", 2)
    return cluster


def test_an_unknown_offset_is_found_in_the_partition(cluster: MockCluster) -> None:
    kafka = open_kafka({"bootstrap.servers": cluster.servers})
    assert isinstance(kafka, LibrdKafka)
    record = Record(b"x", 1, b"k", (("by", b"a"),))
    assert kafka.send("t", [record, record._replace(headers=(("by", b"b"),))], patience_s=10) == {1: 2}
    cluster.answer_produce_as_duplicate(1)
    # The mock has two copies, of which the producer was told the offsets; it is not told that of the third record,
    # which equals the first and which the mock did not store.
    assert kafka.send("t", [record], patience_s=10) == {1: 1}


def test_markers_get_their_offsets_though_the_broker_does_not_tell_them(cluster: MockCluster) -> None:
    kafka = open_kafka({"bootstrap.servers": cluster.servers})
    assert write_markers(kafka, "t", 2, "first", 10) == (0, 0)
    assert write_markers(kafka, "t", 2, "second", 10) == (1, 1)
    cluster.answer_produce_as_duplicate(2)
    assert write_markers(kafka, "t", 2, "first", 10) == (0, 0)


def test_a_record_that_is_nowhere_is_not_taken_for_written(cluster: MockCluster) -> None:
    kafka = open_kafka({"bootstrap.servers": cluster.servers})
    kafka.send("t", [Record(b"x", 1)], patience_s=10)
    cluster.answer_produce_as_duplicate(1)
    with pytest.raises(SendFailed, match="partition 1 has no copy of a record that was acknowledged without an offset"):
        kafka.send("t", [Record(b"y", 1)], patience_s=10)
