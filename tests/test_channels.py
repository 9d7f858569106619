"""What verifying asks of a real broker."""

from uuid import uuid4

import pytest
from slackwater.pipeline import kafka as kafka_client
from slackwater.pipeline import records
from slackwater.pipeline.broker import EmbeddedKafka
from slackwater.pipeline.channels import KafkaChannels
from slackwater.pipeline.wire import marker_header
from slackwater.store.errors import NotFound

pytestmark = pytest.mark.kafka


def test_a_marker_is_told_from_other_messages_and_from_what_is_not_there(kafka: EmbeddedKafka) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap}
    topic = f"markers-{uuid4().hex[:8]}"
    kafka_client.create_topic(properties, topic, 1)
    for header in (b"attempt-1", marker_header("good")):
        records.send(properties, topic, [(0, b"")], header, patience_s=30)
    channels = KafkaChannels(properties, patience_s=30)
    assert [channels.marker(topic, 0, offset) for offset in (0, 1, 2)] == ["", "good", None]
    assert channels.marker(topic, 1, 0) is None
    with pytest.raises(NotFound):
        channels.marker("no-such-topic", 0, 0)
