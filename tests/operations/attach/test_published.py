"""Spark's own published examples, attached while they run: each version equals Spark's reading of the batch."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import pyspark
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from slackwater.errors import Refused
from slackwater.operations.attach.rows import declare_tables
from slackwater.operations.attach.tail import Tail
from slackwater.operations.from_spark.checkpoint.checkpoint import open_checkpoint
from slackwater.pipeline.dev.jars import Jars
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.spark.session import with_settings
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.side_tables import table_name

from tests.operations.attach.following import rows_at
from tests.operations.from_spark.checkpoint.by_spark import by_spark, plain_arrow
from tests.operations.from_spark.checkpoint.queries import PROVIDERS
from tests.support.running import eventually
from tests.support.static import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.ci, pytest.mark.usefixtures("one_spark")]

EXAMPLES = Path(pyspark.__file__).parent / "examples/src/main/python/sql/streaming"
BATCHES = 8
WORDS_A_BATCH = 2_000
CONNECTOR = Jars("Spark's connector to Kafka", "spark-kafka-4.2.0", ROOT / "bench/support/spark-kafka-jars.txt", 9)


class Running(Protocol):
    """An example's query: a `StreamingQuery`, or a process."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802  Spark's name

    def stop(self) -> None: ...


def lines(random: Random) -> list[str]:
    """Return random words for a batch, with many duplicates."""
    words = [f"w{int(random.paretovariate(0.6)) % 3_000}" for _ in range(WORDS_A_BATCH)]
    return [" ".join(words[at : at + 20]) for at in range(0, WORDS_A_BATCH, 20)]


class Words:
    """A replacement for netcat, which the examples use: it sends lines to its clients."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._there: list[socket.socket] = []
        self._random = Random(1)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._there.append(self._listening.accept()[0])
            except OSError:
                return

    def send(self) -> None:
        """Send a batch's words to each client."""
        eventually(lambda: bool(self._there), "the example connects")
        text = "".join(f"{each}\n" for each in lines(self._random))
        for each in self._there:
            each.sendall(text.encode())

    def close(self) -> None:
        for each in (self._listening, *self._there):
            each.close()


@contextmanager
def running(
    spark: SparkSession, name: str, arguments: Sequence[str], other: Sequence[str], checkpoints: Path
) -> Iterator[Running]:
    """Run an example in this session, with one text in it replaced."""
    failed: list[BaseException] = []
    text = (EXAMPLES / name).read_text()
    text = text.replace(*other) if other else text

    def run() -> None:
        try:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})  # noqa: S102  it is Spark's own
        except BaseException as error:
            failed.append(error)

    settings = {
        "spark.sql.streaming.checkpointLocation": str(checkpoints),
        "spark.sql.shuffle.partitions": "2",
        **PROVIDERS["changelog"],
    }
    with with_settings(spark, settings), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        thread = threading.Thread(target=run, name=name)
        thread.start()
        eventually(lambda: bool(failed or spark.streams.active), name)
        assert not failed
        (query,) = spark.streams.active
        try:
            yield query
        finally:
            query.stop()
            thread.join(30)
    assert not failed


def followed(spark: SparkSession, checkpoints: Path, cache: SstCache, query: Running, send: Callable[[], None]) -> int:
    """Follow a query until it has run its batches; return the number of versions that were compared with Spark."""
    send()
    eventually(lambda: any(checkpoints.glob("*/commits/0")), "its first batch")
    (folder,) = checkpoints.iterdir()
    store = MemoryStore()
    with open_checkpoint(str(folder), spark) as found, open_checkpoint(str(folder), spark) as own:
        following = Tail(store, cache, found, "shop", "words", by="host:1", partitions=2)
        following.claim()
        while (newest := found.committed_batches()[-1]) < BATCHES:
            send()
            following.commit_next()
            eventually(lambda: found.committed_batches()[-1] > newest or not query.isActive, "the next batch")
            assert query.isActive
        query.stop()
        while following.commit_next():
            pass
        compared, there = 0, own.readable_batches()
        names = [table_name("words", each) if each else "words" for each in declare_tables(own.tables, 2)]
        for number in history.list_versions(store, "shop", "words"):
            version = history.read(store, "shop", "words", number)
            assert version.attached is not None
            batch = version.attached.next_batch - 1
            if version.kind != "batch" or batch not in there:
                continue
            stored = rows_at(store, cache, version)
            for name, table in zip(names, own.tables, strict=True):
                rows = {
                    tuple(map(plain_arrow, key)): tuple(map(plain_arrow, values))
                    for key, values in stored[name].items()
                }
                assert rows == by_spark(spark, folder, own, table, batch), f"{name} at the end of batch {batch}"
            compared += 1
        assert following.head is not None
        assert following.head.attached is not None
        assert following.head.attached.next_batch == own.committed_batches()[-1] + 1
        assert sum(map(len, rows_at(store, cache, following.head).values())) > 0
        return compared


@pytest.mark.parametrize(
    ("name", "more", "other"),
    [
        ("structured_network_wordcount.py", (), ()),
        ("structured_network_wordcount_windowed.py", ("10", "5"), ()),
        ("structured_network_wordcount_session_window.py", (), ()),
        # Sessions have no update mode: Spark itself refuses the example as it is.
        ("structured_sessionization.py", (), ("'update'", "'complete'")),
    ],
)
def test_an_example_that_reads_a_socket_can_be_attached(
    name: str, more: Sequence[str], other: Sequence[str], tmp_path: Path, spark: SparkSession
) -> None:
    words, cache = Words(), SstCache(tmp_path / "cache", 1 << 30)
    try:
        arguments = ("127.0.0.1", str(words.port), *more)
        with running(spark, name, arguments, other, tmp_path / "checkpoints") as query:
            assert followed(spark, tmp_path / "checkpoints", cache, query, words.send) >= BATCHES // 2
    finally:
        words.close()


@dataclass
class OfKafka:
    """The unchanged example that reads Kafka, as a separate program, with its topic."""

    broker: str
    checkpoints: Path
    _random: Random = field(default_factory=lambda: Random(1))
    _process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        open_kafka(self.broker).create_topics({"published-words": 3})
        jars = ",".join(map(str, sorted(CONNECTOR.fetch().glob("*.jar"))))
        conf = {
            "spark.sql.streaming.checkpointLocation": self.checkpoints,
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": "false",
            **PROVIDERS["changelog"],
        }
        words = " ".join(f"--conf {name}={value}" for name, value in conf.items())
        environment = os.environ | {"PYSPARK_SUBMIT_ARGS": f"--master local[2] --jars {jars} {words} pyspark-shell"}
        example = EXAMPLES / "structured_kafka_wordcount.py"
        self._process = subprocess.Popen(
            [sys.executable, str(example), self.broker, "subscribe", "published-words"],
            env=environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._process.poll() is None

    def send(self) -> None:
        """Send a batch's words. The query must know its start before it reads records."""
        begun = lambda: any(self.checkpoints.glob("*/sources/0/0")) or not self.isActive  # noqa: E731
        eventually(begun, "the example begins")
        assert self.isActive
        producer = Producer({"bootstrap.servers": self.broker})
        for line in lines(self._random):
            producer.produce("published-words", line.encode())
        producer.flush()

    def stop(self) -> None:
        """Stop the query and its JVM."""
        if self.isActive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.mark.kafka
@pytest.mark.skipif(
    not pyspark.__version__.startswith("4.2."), reason="of Spark's connector to Kafka, Maven has all of 4.2.0 alone"
)
def test_the_example_that_reads_kafka_can_be_attached(tmp_path: Path, spark: SparkSession, broker: str) -> None:
    query, cache = OfKafka(broker, tmp_path / "checkpoints"), SstCache(tmp_path / "cache", 1 << 30)
    try:
        assert followed(spark, tmp_path / "checkpoints", cache, query, query.send) >= BATCHES // 2
    finally:
        query.stop()


def test_a_query_without_state_is_refused_with_one_sentence(tmp_path: Path, spark: SparkSession) -> None:
    """Such an example is `structured_blockchain_admission_control.py`."""
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(once=True).start().awaitTermination()
    with pytest.raises(Refused, match="its query is stateless"), open_checkpoint(str(tmp_path / "checkpoint"), spark):
        pass
