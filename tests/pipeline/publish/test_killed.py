"""Killed publishers on a real broker: a topic, a Delta table and SQLite get each row once."""

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.channels import consumer_group
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka

from tests.pipeline.publish.reader import committed

PROGRAM = Path(__file__).parents[2] / "apps" / "committing.py"


class App:
    """One app in a folder, with its topic."""

    def __init__(self, folder: Path, kafka: Kafka, rows: int) -> None:
        self.folder, self.kafka, self.rows = folder, kafka, rows
        self.name = f"app-{uuid4().hex[:8]}"
        self.topic = f"{self.name}-numbers"
        self.kafka.create_topics({self.topic: 3})

    def start(self) -> "subprocess.Popen[str]":
        kafka = json.dumps(dict(self.kafka.properties))
        words = (self.folder / "store", kafka, self.name, self.rows, self.delta, self.sqlite)
        command = [sys.executable, str(PROGRAM), *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)

    @property
    def delta(self) -> Path:
        return self.folder / "delta"

    @property
    def sqlite(self) -> Path:
        return self.folder / "numbers.db"

    def finish(self) -> None:
        process = self.start()
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors

    def check(self) -> None:
        every = list(range(self.rows))
        found = list(committed(self.kafka, self.topic))
        values = [json.loads(message.value() or b"") for message in found]
        assert sorted(value["n"] for value in values) == every
        assert all(message.key() == f"k{value['n'] % 7}".encode() for message, value in zip(found, values, strict=True))
        assert all("h" not in value for value in values)
        assert all([name for name, _ in message.headers() or ()] == ["batch"] for message in found)
        # A key's records keep their order, wherever its partition is.
        places = sorted((value["k"], at, value["n"]) for at, value in enumerate(values))
        for _, mine in groupby(places, lambda place: place[0]):
            numbers = [number for _, _, number in mine]
            assert numbers == sorted(numbers)
        assert sorted(DeltaTable(self.delta).to_pyarrow_table()["n"].to_pylist()) == every
        with sqlite3.connect(self.sqlite) as database:
            stored = [number for (number,) in database.execute("SELECT n FROM numbers ORDER BY rowid")]
        assert stored == every


def kill_after(process: "subprocess.Popen[str]", versions: int, pause_s: float) -> None:
    """Kill the process a pause after it has printed some versions, unless it exits first."""
    assert process.stdout is not None
    for _ in range(versions):
        if not process.stdout.readline():
            break
    time.sleep(pause_s)
    process.kill()
    process.communicate()


@pytest.mark.kafka
def test_each_row_is_published_once_despite_kills(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    published_despite_kills(App(tmp_path, open_kafka(kafka.bootstrap), 5_000), (1, 4, 3))


@pytest.mark.ci
def test_each_row_is_published_once_despite_six_kills(any_kafka: Kafka, tmp_path: Path) -> None:
    if isinstance(any_kafka, MemoryKafka):
        pytest.skip("other processes cannot reach it")
    published_despite_kills(App(tmp_path, any_kafka, 5_000), (1, 2, 1, 3, 1, 2))


def published_despite_kills(app: App, kills: Sequence[int]) -> None:
    chance = random.Random(1)
    for versions in kills:
        kill_after(app.start(), versions, chance.random() / 20)
    app.finish()
    app.check()


@pytest.mark.kafka
def test_a_position_lost_by_kafka_is_taken_from_the_store_or_refused(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    app = App(tmp_path, open_kafka(kafka.bootstrap), 1_000)
    app.finish()
    forget(app)
    # All that was committed was published, as the store knows: it goes on behind that.
    app.rows = 2_000
    app.finish()
    app.check()
    app.rows = 1_000_000
    kill_after(app.start(), 8, 0)
    forget(app)
    process = app.start()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"Kafka no longer has the position of sink '{app.topic}' of stage 'numbers'" in errors


def forget(app: App) -> None:
    """Delete the group's offsets, as the broker does after a week."""
    app.kafka.delete_groups([consumer_group(app.name, "numbers")])


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_million_rows_are_published_once_despite_thirty_kills_and_five_broker_kills(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    app, chance = App(tmp_path, open_kafka(kafka.bootstrap), 1_000_000), random.Random(2)
    for number in range(30):
        process = app.start()
        if number % 6 == 3:
            assert process.stdout is not None
            for _ in range(20):
                process.stdout.readline()
            kafka.kill()
            time.sleep(chance.random())
            kafka.start()
        kill_after(process, 50, chance.random() / 2)
    app.finish()
    app.check()
