"""Kafka ACLs of an app: with the documented rights it runs, and each missing right is named."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import slackwater as sw
from slackwater.errors import Refused
from slackwater.pipeline.kafka.channels import consumer_group
from slackwater.pipeline.kafka.messages import send_messages
from slackwater.pipeline.kafka.protocol import Kafka, TransactionFailed, TransactionSettings
from slackwater.pipeline.publish.sinks import check_targets
from slackwater.store.objects.open import open_store

from tests.pipeline.kafka.secured import ADMIN, USER, SecuredKafka
from tests.support.running import Ledger, eventually

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def refusal(attempt: Callable[[], object]) -> str:
    """Return the error message of a call; empty if it succeeds."""
    try:
        attempt()
    except Refused as error:
        return error.message
    return ""


def test_each_missing_right_is_named_and_with_all_of_them_every_request_succeeds(secured: SecuredKafka) -> None:
    app = f"a{uuid4().hex[:8]}"
    orders, channel = f"orders-{app}", f"{app}-by-account-repartition"
    admin, user = secured.client(ADMIN), secured.client(USER)
    admin.create_topics({orders: 1})
    assert send_messages(admin, orders, [(0, b"one"), (0, b"two")], b"h", patience_s=180) == {0: 2}

    def read() -> None:
        found = [one.value() for chunk in user.read(orders, 0, 0, 2, patience_s=20) for one in chunk]
        assert found == [b"one", b"two"]

    def make() -> None:
        user.create_topics({channel: 2}, validate_only=True)
        user.create_topics({channel: 2})

    steps = (
        (lambda: user.offset_bounds(orders), "Describe", orders, orders),
        (read, "Read", orders, orders),
        (make, "Create", channel, f"{app}-"),
        (lambda: user.offset_bounds(channel), "Describe", channel, f"{app}-"),
        (lambda: send_messages(user, channel, [(0, b"x")], b"h", patience_s=20), "Write", channel, f"{app}-"),
    )
    for attempt, right, topic, named in steps:
        said = refusal(attempt)
        assert f"denies this user the right {right} on topic '{topic}'" in said
        secured.allow(right, "topic", named, prefixed=named != topic)
        eventually(lambda attempt=attempt: not refusal(attempt), f"{right} on {named} is enough", 60)  # type: ignore[misc]


def test_reading_needs_no_right_on_a_consumer_group(secured: SecuredKafka) -> None:
    topic = f"slow-{uuid4().hex[:8]}"
    admin, user = secured.client(ADMIN), secured.client(USER)
    admin.create_topics({topic: 1})
    secured.allow("Read", "topic", topic)
    eventually(lambda: not refusal(lambda: user.offset_bounds(topic)), "the right to read")
    # Nothing is there until long after the broker has refused to name the group's coordinator.
    late = threading.Timer(3, send_messages, (admin, topic, [(0, b"one")], b"h"), {"patience_s": 30})
    late.start()
    found = [one.value() for chunk in user.read(topic, 0, 0, 1, patience_s=180) for one in chunk]
    late.join()
    assert found == [b"one"]


def test_committing_group_offsets_without_the_right_gives_up_quietly(secured: SecuredKafka) -> None:
    topic = f"told-{uuid4().hex[:8]}"
    secured.client(ADMIN).create_topics({topic: 1})
    secured.allow("Read", "topic", topic)
    started = time.monotonic()
    secured.client(USER).commit_offsets(f"slackwater-a{uuid4().hex[:8]}-stage", {topic: (0,)})
    assert time.monotonic() - started < 60


@dataclass
class Guarded(Ledger):
    """An app whose user has only the granted rights. The administrator owns the topic."""

    broker: SecuredKafka | None = None
    user: str = ADMIN

    @property
    def kafka(self) -> Kafka:
        assert self.broker is not None
        return self.broker.client(self.user)

    def environment(self) -> dict[str, str]:
        mine = {
            f"SLACKWATER_KAFKA_PROPERTIES_{n.upper().replace('.', '_')}": v for n, v in self.kafka.properties.items()
        }
        return super().environment() | mine


def app_that_may_only_read_its_topic(secured: SecuredKafka, folder: Path) -> Guarded:
    """Return an app that may only read its topic. Checks that its first runs name the missing rights."""
    ledger = Guarded(secured.bootstrap, folder, broker=secured)
    ledger.send(600)
    ledger.user = USER
    with pytest.raises(Refused, match=f"denies this user the right Describe on topic '{ledger.topic}'"):
        ledger.catch_up()
    secured.allow("Read", "topic", ledger.topic)
    eventually(lambda: not refusal(lambda: ledger.kafka.offset_bounds(ledger.topic)), "the right to read")
    with pytest.raises(Refused, match=f"denies this user the right Create on topic '{ledger.app}-.*'"):
        ledger.catch_up()
    assert list(open_store(ledger.store).list("")) == []
    return ledger


def test_an_app_that_may_not_create_its_topics_is_refused_before_spark_starts(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    ledger = app_that_may_only_read_its_topic(secured, tmp_path)
    secured.allow("Create", "topic", f"{ledger.app}-", prefixed=True)
    channel = f"{ledger.app}-by-account-repartition"
    new = {channel: 1}
    eventually(lambda: not refusal(lambda: ledger.kafka.create_topics(new, validate_only=True)), "the right")
    with pytest.raises(Refused, match=f"denies this user the right Describe on topic '{channel}'"):
        ledger.catch_up()


@pytest.mark.spark
@pytest.mark.soak  # a broker of its own, and an app that runs three times
@pytest.mark.usefixtures("one_spark")
def test_the_documented_rights_suffice_to_run_snapshot_verify_and_clone(secured: SecuredKafka, tmp_path: Path) -> None:
    ledger = app_that_may_only_read_its_topic(secured, tmp_path)
    for right in ("Create", "Read", "Write"):
        secured.allow(right, "topic", f"{ledger.app}-", prefixed=True)
    new = {f"{ledger.app}-by-account-repartition": 1}
    eventually(lambda: not refusal(lambda: ledger.kafka.create_topics(new, validate_only=True)), "the rights")
    ledger.catch_up(max_records=200)
    ledger.slackwater("snapshot", "take", ledger.app, "good", "--instant")
    ledger.slackwater("verify", f"{ledger.app}@good", "--deep")
    ledger.slackwater("clone", f"{ledger.app}@good", f"{ledger.app}-staging")
    ledger.user = ADMIN
    ledger.send(300)
    ledger.user = USER
    ledger.catch_up()
    ledger.check_tables()


def test_a_sink_needs_write_access_to_its_topic_and_its_transactional_ids(secured: SecuredKafka) -> None:
    name = uuid4().hex[:8]
    app, alerts = f"a{name}", f"alerts-{name}"
    admin, user = secured.client(ADMIN), secured.client(USER)
    admin.create_topics({alerts: 1, f"{app}-s-{alerts}-sink": 1})
    secured.allow("Describe", "topic", alerts)
    program = sw.App(app)
    program.stage(reads=sw.topic("in"), writes=sw.sink(alerts), name="s")(lambda raw: raw)

    def check() -> None:
        check_targets(user, program, program.stages_in_order(), {}, None)

    eventually(lambda: "the right Write on topic" in refusal(check), "it is seen, and may not be written", 60)
    secured.allow("Write", "topic", alerts)
    eventually(lambda: not refusal(check), "it may be written", 60)
    settings = TransactionSettings(
        transactional_id=f"slackwater-{app}-s-{alerts}",
        group=consumer_group(app, "s"),
        source=f"{app}-s-{alerts}-sink",
        topic=alerts,
        patience_s=20,
    )
    with closing(user.transactional_producer(settings)) as transactions:
        assert "in transactions of" in refusal(transactions.open)
        for right in ("Describe", "Write"):
            secured.allow(right, "transactional_id", f"slackwater-{app}-", prefixed=True)
        secured.allow("Read", "group", consumer_group(app, "s"))
        for right in ("Describe", "Read"):
            secured.allow(right, "topic", f"{app}-", prefixed=True)

        def publish() -> bool:
            try:
                transactions.open()
                transactions.begin()
                transactions.write([b"k"], [b"v"])
                transactions.commit(1, "place")
            except (TransactionFailed, Refused):
                return False
            return True

        eventually(publish, "these rights are enough", 60)
        assert transactions.open() == (1, "place")
