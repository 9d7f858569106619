"""`attach` to a compacted topic: the time from a record to its version, and until the first version.

The topic has a million keys. `slackwater attach` follows it in another process while 10,000 records a second change it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from ...support.row import Row

KEYS, RATE, WARM_UP_S, MEASURED_S = 1_000_000, 10_000, 15, 60
TOPIC = "bench-totals-changelog"
TICK_S = 0.1
MEDIAN_S = 2.0


def rows(folder: Path, quick: bool) -> list[Row]:
    """Measure the time until a record is in a version, and the time until the first version."""
    with EmbeddedKafka(folder / "kafka") as broker:
        return [_measure(broker.bootstrap, folder, quick=quick)]


def _measure(bootstrap: str, folder: Path, *, quick: bool) -> Row:
    keys, measured_s = (100_000, 10) if quick else (KEYS, MEASURED_S)
    open_kafka(bootstrap).create_topics({TOPIC: 2}, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 2_000_000})
    _send(producer, np.arange(keys), 0)
    words = ["attach", f"kafka:{TOPIC}", "--app", "bench", "--stage", "totals"]
    where = ["--kafka", bootstrap, "--store", str(folder / "store"), "--json"]
    began = time.monotonic()
    seen: list[tuple[float, int]] = []
    command = [sys.executable, "-m", "slackwater.cli.main", *words, *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        try:
            reading = threading.Thread(target=_read, args=(following, seen))
            reading.start()
            _wait_for(seen, following)
            first_s = time.monotonic() - began
            sent = _change(producer, keys, WARM_UP_S + measured_s)
            time.sleep(5)
        finally:
            following.terminate()
            following.wait(30)
            reading.join()
    delays = _delays(folder, sent, seen)
    median, p99 = np.percentile(delays, (50, 99))
    return Row(
        f"attach: from a record of a topic to its version, {RATE:,} changes/s of {keys:,} keys, median",
        f"{median:.2f} s",
        f"limit: {MEDIAN_S:g} s; p99 {p99:.2f} s, largest {max(delays):.2f} s; the first version: {first_s:.0f} s",
        float(median) / MEDIAN_S,
        "< 1",
        bool(median < MEDIAN_S),
    )


def _send(producer: Producer, keys: np.ndarray, orders: int) -> None:
    for key in keys.tolist():
        value = f'{{"orders": {orders}, "cents": {key * 7}, "country": "DE"}}'
        while True:
            try:
                producer.produce(TOPIC, value, str(key))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


def _change(producer: Producer, keys: int, seconds: float) -> list[tuple[float, int]]:
    """Change keys for some seconds. Returns, for each tick, its time and the number of records sent by then."""
    chance, count, sent = np.random.default_rng(7), keys, list[tuple[float, int]]()
    began = time.time()
    for tick in range(round(seconds / TICK_S)):
        time.sleep(max(0.0, began + tick * TICK_S - time.time()))
        now_s = time.time()
        number = round(RATE * TICK_S)
        _send(producer, chance.integers(0, keys, number), tick)
        count += number
        sent.append((now_s, count))
    return sent


def _read(following: subprocess.Popen[str], seen: list[tuple[float, int]]) -> None:
    """Record the times at which `attach` reports each version."""
    lines = (line for line in following.stdout or () if line.startswith("{"))
    seen.extend((time.time(), json.loads(line)["version"]) for line in lines)


def _wait_for(seen: list[tuple[float, int]], following: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not seen:
        if following.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("attach made no version")
        time.sleep(0.05)


def _delays(folder: Path, sent: list[tuple[float, int]], seen: list[tuple[float, int]]) -> list[float]:
    """Return, for each tick after the warm-up, the seconds until a version has all of its records."""
    store = open_store(str(folder / "store"))
    read = [
        (at, sum(next(iter(history.read(store, "bench", "totals", version).inputs.values())).offsets))
        for at, version in seen
    ]
    measured = sent[round(WARM_UP_S / TICK_S) :]
    return [next(at for at, offsets in read if offsets >= count) - began for began, count in measured]
