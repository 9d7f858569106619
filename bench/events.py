"""The benchmark's topic: flights of 2013, each of one of 490,000 legs."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

TOPIC = "bench-flights"
KEYS = 490_000
PARTITIONS = 4


def fill(bootstrap: str, records: int, *, topic: str = TOPIC, keys: int = KEYS, seed: int = 1) -> None:
    """Write so many events: the record's key names a leg, drawn evenly, its value is the JSON of a real flight."""
    from feed import events

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    flights = events()[["carrier", "origin", "dest", "dep_delay", "arr_delay"]].fillna(0).to_dict("records")
    values = [json.dumps(flight).encode() for flight in flights]
    legs = np.random.default_rng(seed).integers(0, keys, records)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4", "acks": 1})
    for number, leg in enumerate(legs.tolist()):
        while True:
            try:
                producer.produce(topic, values[number % len(values)], b"leg-%07d" % leg, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def cycles(stamps_ms: list[int], warm_up: int) -> list[float]:
    """Seconds from batch to batch, the first `warm_up` left out."""
    return [(later - earlier) / 1000 for earlier, later in pairwise(stamps_ms)][warm_up:]
