"""Promotions on a real broker under load: runners and the verb are killed, and each row is published once."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps

from tests.pipeline.publish.reader import committed
from tests.support.running import SLACKWATER, eventually

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parents[3] / "apps" / "promoting.py"


class Pair:
    """Production and its clone, each in its own process, with a feeder."""

    def __init__(self, folder: Path, broker: EmbeddedKafka, rate: int) -> None:
        self.store, self.broker, self.rate = folder / "store", broker, rate
        self.name = f"p{uuid4().hex[:8]}"
        self.topic, self.out = f"{self.name}-in", f"{self.name}-out"
        self.kafka = open_kafka(broker.bootstrap)
        self.kafka.create_topics({self.topic: 3, self.out: 1})
        self.sent = 0
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.folders = [self.name, f"{self.name}-staging"]

    def start(self, folder: str) -> None:
        """Run an app under its current name until it is killed or taken over."""
        store = open_store(str(self.store))
        called = next(name for name in (folder, f"{folder}~1") if apps.folder_of(store, name) == folder)
        command = [sys.executable, str(PROGRAM), str(self.store), self.broker.bootstrap, called, self.topic, self.out]
        self.processes[folder] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def await_running(self, folder: str) -> None:
        process = self.processes[folder]
        assert process.stdout is not None
        if process.stdout.readline() != "runs\n":
            _, errors = process.communicate()
            raise AssertionError(errors)

    def kill(self, folder: str) -> None:
        self.processes[folder].kill()
        self.processes[folder].communicate()

    def keep_up(self) -> None:
        """Restart runners that have ended, as systemd does."""
        time.sleep(0.2)
        for folder, process in list(self.processes.items()):
            if process.poll() is not None:
                process.communicate()
                self.start(folder)
                self.await_running(folder)

    def promote(self, staging: str) -> "subprocess.Popen[str]":
        words = ["promote", staging or "--back", "--over", self.name, "--json", "--timeout", "120"]
        where = ["--store", str(self.store), "--kafka", self.broker.bootstrap]
        env = {**os.environ, "SLACKWATER_CACHE": str(self.store.parent / "cache")}
        pipe = subprocess.PIPE
        return subprocess.Popen([SLACKWATER, *words, *where], stdout=pipe, stderr=pipe, text=True, env=env)

    @contextmanager
    def fed(self) -> Iterator[None]:
        """Send this many records per second while the block runs."""
        over = threading.Event()

        def feed() -> None:
            producer = Producer({**self.kafka.properties, "linger.ms": 5})
            began, before = time.monotonic(), self.sent
            while not over.wait(0.02):
                for number in range(self.sent, before + int((time.monotonic() - began) * self.rate)):
                    producer.produce(self.topic, b"%d" % number, partition=number % 3)
                    self.sent = number + 1
                producer.poll(0)
            assert producer.flush(30) == 0

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def check(self) -> float:
        """Check that each record is in the sink once. Returns the longest pause when the publishing app changed."""
        found = list(committed(self.kafka, self.out))
        counted = Counter(int((message.value() or b"").partition(b":")[2]) for message in found)
        missing = [number for number in range(self.sent) if number not in counted]
        twice = [number for number, times in counted.items() if times > 1]
        assert (missing[:10], len(missing), twice[:10], len(twice)) == ([], 0, [], 0)
        of = [((message.value() or b"").partition(b":")[0], message.timestamp()[1]) for message in found]
        return max(((b[1] - a[1]) / 1000 for a, b in pairwise(of) if a[0] != b[0]), default=0.0)

    def close(self) -> None:
        for folder in self.processes:
            self.kill(folder)


@pytest.fixture
def pair(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, kafka, 5_000)
    old, new = pair.folders
    pair.start(old)
    pair.await_running(old)
    clone(open_store(str(pair.store)), old, new, topics={}, channels=KafkaChannels(pair.kafka), by="ada@host")
    pair.start(new)
    pair.await_running(new)
    yield pair
    pair.close()


def finish(pair: Pair, staging: str) -> dict[str, object]:
    """Repeat the promotion until it succeeds, restarting any process that dies."""
    for _ in range(5):
        process = pair.promote(staging)
        while process.poll() is None:
            pair.keep_up()
        out, errors = process.communicate()
        if process.returncode == 0:
            return json.loads(out)  # type: ignore[no-any-return]
    raise AssertionError(errors)


def test_a_promotion_at_five_thousand_records_a_second_publishes_each_row_once(pair: Pair) -> None:
    _, new = pair.folders
    with pair.fed():
        time.sleep(1)  # records come
        done = finish(pair, new)
        assert done["app"] == new
        time.sleep(1)
    eventually(lambda: len(list(committed(pair.kafka, pair.out))) == pair.sent, "all is published")
    pause_s = pair.check()
    assert pause_s < 30  # below 5 where nothing else runs; a time-out of Kafka's or of a claim would last longer
    sys.stdout.write(f"pause of the sink: {pause_s:.2f} s, held {done['held_s']} s\n")


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_fifty_promotions_back_and_forth_survive_kills_of_both_runners_and_the_verb(pair: Pair) -> None:
    chance, held = random.Random(int(os.environ.get("SEED", "1"))), []
    times = int(os.environ.get("TIMES", "50"))
    with pair.fed():
        for time_ in range(times):
            new = pair.folders[1 - time_ % 2]
            staging = new if new == pair.folders[1] else ""
            process, victim = pair.promote(staging), chance.choice((*pair.folders, "verb"))
            time.sleep(0.5 + 3 * chance.random())
            process.kill() if victim == "verb" else pair.kill(victim)
            while process.poll() is None:
                pair.keep_up()
            process.communicate()
            held.append(finish(pair, staging)["held_s"])
            pair.keep_up()
            sys.stdout.write(f"{time_ + 1}: {victim} killed; held {held[-1]} s\n")
            sys.stdout.flush()
    eventually(lambda: len(list(committed(pair.kafka, pair.out))) >= pair.sent, "all is published")
    sys.stdout.write(f"{pair.sent:,} records, longest pause of the sink {pair.check():.1f} s\n")
