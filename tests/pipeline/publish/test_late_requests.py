"""Requests that reach a real broker late, twice or never, followed by crashes: each row is published once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import TransactionSettings
from slackwater.pipeline.publish.targets import TopicTarget
from slackwater.store.versions.manifest import Sink
from slackwater.store.versions.published import PublishedPosition

from tests.pipeline.publish.kafka_proxy import Api, Fate, KafkaProxy, kafka_proxy
from tests.pipeline.publish.model import START, Runner, Stage
from tests.pipeline.publish.reader import committed
from tests.support.running import eventually

pytestmark = pytest.mark.kafka

_DEADLINE_S = 20.0


class Rows(TopicTarget):
    """A publisher of the model's rows that sends one request per message."""

    proxy: KafkaProxy | None = None

    def add(self, rows: pa.Table) -> None:
        values = pa.array([str(row).encode() for row in rows["row"].to_pylist()], pa.binary())
        before = self.proxy.answered[Api.PRODUCE] if self.proxy else 0
        super().add(pa.table({"key": values, "value": values}))
        if proxy := self.proxy:
            proxy.wait(lambda: proxy.answered[Api.PRODUCE] > before or proxy.cut_off)


class NewBook:
    """Positions of a new sink, which starts at the beginning. They are not stored."""

    sink = Sink("", 0, since=1, kind="topic")

    def first_position(self) -> PublishedPosition:
        return START

    def read_position(self) -> None:
        return None

    def store_position(self, place: PublishedPosition) -> None:
        pass


class World:
    """A stage, its sink's topic, a publisher behind a bad network, and the publishers that follow it."""

    def __init__(self, bootstrap: str, proxy: KafkaProxy) -> None:
        self.name = f"late-{uuid4().hex[:8]}"
        self.bootstrap, self.proxy = bootstrap, proxy
        self.stage = Stage()
        self.topic, self.internal = f"{self.name}-out", f"{self.name}-internal"
        open_kafka(bootstrap).create_topics({self.topic: 1, self.internal: 1})
        self.runner = self.start(proxy)

    def start(self, proxy: KafkaProxy | None = None, patience_s: float = 20) -> Runner:
        kafka = {
            "bootstrap.servers": proxy.bootstrap if proxy else self.bootstrap,
            "socket.timeout.ms": "1000",
            "reconnect.backoff.max.ms": "200",
        }
        where = {"transactional_id": self.name, "group": self.name, "source": self.internal, "topic": self.topic}
        target = Rows(
            open_kafka(kafka).transactional_producer(TransactionSettings(**where, patience_s=patience_s)),
            NewBook(),
            app_id=1,
        )
        target.proxy = proxy
        return Runner(self.stage, target)

    def publish(self, runner: Runner) -> None:
        """Publish until nothing is left to publish."""
        deadline = time.monotonic() + _DEADLINE_S
        runner.hear()
        while runner.step():
            assert time.monotonic() < deadline

    def version(self) -> None:
        """Commit a version of two messages, and publish it in one transaction."""
        self.stage.commit([3, 3], 1)
        self.publish(self.runner)

    def late(self, api: Api, at: Api, *, skip: int = 0, cut: bool = True) -> None:
        """Delay a request of one transaction, and deliver it during the next transaction."""
        self.proxy.keep(api, "late", cut=cut)
        self.version()
        self.proxy.deliver_before(at, skip=skip)
        self.version()
        assert self.proxy.late_answer

    def late_and_crash(self, api: Api, at: Api, *, skip: int = 0, cut: bool = True) -> None:
        """Deliver a request late, and then kill the publisher. It resumes after another publisher's transaction."""
        self.proxy.keep(api, "late", cut=cut)
        self.version()
        self.proxy.deliver_before(at, skip=skip, crash=True)
        self.stage.commit([3, 3], 1)
        self.runner.hear()
        thread = Thread(target=self.runner.step)
        thread.start()
        self.proxy.wait(lambda: self.proxy.cut_off)
        self.check()
        self.proxy.restore()
        thread.join()

    def given_up(self) -> None:
        """Delay a record until its transaction has timed out, and deliver it during the repeated transaction."""
        self.runner.target.close()
        self.runner = self.start(self.proxy, patience_s=2)
        self.version()
        self.proxy.keep(Api.PRODUCE, "late")
        self.stage.commit([3, 3], 1)
        self.runner.hear()
        thread = Thread(target=self.runner.step)
        thread.start()
        self.proxy.lose_client()
        thread.join()
        assert not self.runner.opened
        self.proxy.restore()
        while not self.runner.opened:
            self.runner.step()
        self.proxy.deliver_before(Api.PRODUCE)
        self.publish(self.runner)
        assert self.proxy.late_answer

    def check(self) -> None:
        """Check that the next publisher finds rows and position consistent, and publishes the rest."""
        other = self.start()
        while not other.opened:
            other.step()
        assert self.rows() == list(range(other.publisher.position.rows))
        self.publish(other)
        # A commit is answered before its rows can be read.
        eventually(lambda: len(self.rows()) >= self.stage.rows, "all rows can be read")
        assert self.rows() == list(range(self.stage.rows))
        other.target.close()

    def rows(self) -> list[int]:
        return [int(message.value() or b"") for message in committed(open_kafka(self.bootstrap), self.topic)]

    def close(self) -> None:
        self.runner.target.close()


@pytest.fixture
def world(kafka: EmbeddedKafka) -> Iterator[World]:
    """Return a world with a published version."""
    with kafka_proxy(kafka.bootstrap) as proxy:
        world = World(kafka.bootstrap, proxy)
        world.version()
        yield world
        world.close()


@pytest.mark.parametrize(
    ("at", "skip", "cut"),
    [
        (Api.PRODUCE, 1, True),
        (Api.TXN_OFFSET_COMMIT, 0, False),
    ],
)
def test_a_late_commit_does_not_commit_half_of_the_next_transaction(
    world: World, at: Api, skip: int, cut: bool
) -> None:
    world.late_and_crash(Api.END_TXN, at, skip=skip, cut=cut)


def test_a_late_commit_does_not_separate_rows_from_their_position(world: World) -> None:
    world.late(Api.END_TXN, Api.TXN_OFFSET_COMMIT)
    world.check()


def test_a_late_position_does_not_overwrite_the_next_one(world: World) -> None:
    world.late(Api.TXN_OFFSET_COMMIT, Api.END_TXN)
    world.check()


def test_late_records_and_partitions_have_no_effect(world: World) -> None:
    world.late(Api.PRODUCE, Api.PRODUCE, skip=1)
    world.late(Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, skip=1)
    world.late(Api.ADD_OFFSETS_TO_TXN, Api.END_TXN)
    world.late_and_crash(Api.PRODUCE, Api.END_TXN)


def test_a_late_record_has_no_effect_even_on_a_broker_that_does_not_verify_transactions(world: World) -> None:
    # As brokers before 3.6, and those on which somebody has turned it off.
    with verification(world.bootstrap, "false"):
        world.given_up()
        world.check()


@contextmanager
def verification(bootstrap: str, value: str) -> Iterator[None]:
    """Set if the broker asks coordinators whether a record's transaction is open."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def alter(entry: ConfigEntry) -> None:
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        for answer in admin.incremental_alter_configs([resource]).values():
            answer.result(30)

    name = "transaction.partition.verification.enable"
    alter(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    try:
        yield
    finally:
        alter(ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))


def test_requests_delivered_twice_or_never_have_no_effect(world: World) -> None:
    troubles: tuple[tuple[Api, Fate], ...] = (
        (Api.PRODUCE, "twice"),
        (Api.TXN_OFFSET_COMMIT, "twice"),
        (Api.END_TXN, "never"),
        (Api.END_TXN, "twice"),
    )
    for api, fate in troubles:
        world.proxy.keep(api, fate)
        world.version()
    world.check()


def test_a_resumed_publisher_notices_the_rows_that_another_has_published(world: World) -> None:
    world.proxy.keep(Api.END_TXN, "never")
    world.version()
    other = world.start()
    world.stage.commit([3, 3], 1)
    world.publish(other)
    # It has not heard of what the other one published, and would publish it again.
    world.version()
    world.check()
    other.target.close()
