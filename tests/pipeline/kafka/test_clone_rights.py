"""A clone cannot write to production: with only staging's rights the clone works, and the broker refuses all else."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from slackwater.errors import Refused
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.kafka.channels import KafkaChannels, consumer_group
from slackwater.pipeline.kafka.messages import send_messages
from slackwater.store.objects.memory import MemoryStore

from tests.pipeline.kafka.secured import ADMIN, USER, SecuredKafka
from tests.support.histories import KAFKA_PARTITIONS, STAGES, FlightsApp, Kafka, flights
from tests.support.running import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except Refused:
        return True
    return False


def test_cloning_works_without_write_access_to_productions_topics(secured: SecuredKafka) -> None:
    name = uuid4().hex[:8]
    production, staging = f"prod-{name}", f"staging-{name}"
    admin, user = secured.client(ADMIN), secured.client(USER)
    # The same topics in the real broker, with as much in them.
    topics = {"flights", *(f"{production}-{each}-repartition" for each in ("by-aircraft", "by-carrier"))}
    admin.create_topics(dict.fromkeys(topics, KAFKA_PARTITIONS))
    kafka = Kafka()
    kafka.ids |= admin.topic_ids(topics)
    app = FlightsApp(MemoryStore(), kafka, production)
    app.run(flights(20))
    for topic in topics:
        ends = app.kafka.ends(topic)
        assert ends is not None
        full = [(partition, b"x") for partition, end in enumerate(ends) for _ in range(end)]
        send_messages(admin, topic, full, b"h", patience_s=180)
    before = {topic: admin.offset_bounds(topic) for topic in topics}
    for topic in ("flights", f"{production}-"):
        secured.allow("Read", "topic", topic, prefixed=topic.endswith("-"))
    for right in ("Create", "Read", "Write"):
        secured.allow(right, "topic", f"{staging}-", prefixed=True)
    secured.allow("Read", "group", f"slackwater-{staging}-", prefixed=True)
    eventually(
        lambda: not any(is_refused(lambda topic=topic: user.offset_bounds(topic)) for topic in topics), "to read", 60
    )
    probe = {f"{staging}-by-aircraft-repartition": KAFKA_PARTITIONS}
    eventually(lambda: not is_refused(lambda: user.create_topics(probe, validate_only=True)), "the rights", 60)

    made = clone(app.store, production, staging, channels=KafkaChannels(user), by="ada@host", now_ms=app.clock.now_ms)
    assert made.source.versions.keys() == {*STAGES}
    assert not is_refused(
        lambda: send_messages(user, f"{staging}-by-aircraft-repartition", [(0, b"x")], b"h", patience_s=20)
    )
    for topic in topics:
        with pytest.raises(Refused, match=f"denies this user the right Write on topic '{topic}'"):
            send_messages(user, topic, [(0, b"x")], b"h", patience_s=20)
        assert user.delete_topics([topic]) == (topic,)
    user.commit_offsets(consumer_group(production, "legs"), {"flights": (0,) * KAFKA_PARTITIONS})
    assert {topic: admin.offset_bounds(topic) for topic in topics} == before
