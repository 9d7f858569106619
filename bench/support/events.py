"""Input topics: flights of 2013, each on one of many legs, and ranges of numbers, for large states."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

TOPIC = "bench-flights"
KEYS = 490_000
PARTITIONS = 4
_CHUNK = 50_000


def fill(bootstrap: str, records: int, *, topic: str = TOPIC, seed: int = 1, partitions: int = PARTITIONS) -> None:
    """Write this many events on random legs. Creates the topic if it does not exist."""
    fill_legs(bootstrap, topic, np.random.default_rng(seed).integers(0, KEYS, records), partitions)


def fill_legs(bootstrap: str, topic: str, legs: npt.NDArray[np.int64], partitions: int = PARTITIONS) -> None:
    """Write one event per leg. Its key is the leg's name; its value is a real flight as JSON."""
    from feed import events

    flights = events()[["carrier", "origin", "dest", "dep_delay", "arr_delay"]].fillna(0).to_dict("records")
    values = cycle([json.dumps(flight).encode() for flight in flights])
    chunks = (legs[at : at + _CHUNK] for at in range(0, len(legs), _CHUNK))
    pairs = (zip(names(chunk).to_pylist(), values, strict=False) for chunk in chunks)
    send(bootstrap, topic, pairs, partitions)


def fill_ranges(bootstrap: str, topic: str, ranges: Sequence[tuple[int, int]]) -> None:
    """Write ranges of numbers as "first,last", both inclusive. The reader decides how many rows a range becomes."""
    send(bootstrap, topic, [[(b"", f"{first},{last}".encode()) for first, last in ranges]])


def names(legs: npt.NDArray[np.int64]) -> pa.Array:
    """Return the names of legs as the events have them."""
    digits = pc.utf8_lpad(pa.array(legs).cast(pa.string()), 9, "0")
    return pc.binary_join_element_wise("leg-", digits, "").cast(pa.binary())


def cycles(stamps_ms: list[int], warm_up: int) -> list[float]:
    """Return the seconds from batch to batch, without those of the first `warm_up` batches."""
    return [(later - earlier) / 1000 for earlier, later in pairwise(stamps_ms)][warm_up:]


def send(
    bootstrap: str, topic: str, chunks: Iterable[Iterable[tuple[bytes, bytes]]], partitions: int = PARTITIONS
) -> None:
    """Write keys and values to the partitions of a topic in turn. Creates the topic if it does not exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "compression.type": "lz4",
            "acks": 1,
            "queue.buffering.max.messages": 4 * _CHUNK,
        }
    )
    for chunk in chunks:
        messages = [{"key": key, "value": value} for key, value in chunk]
        # The queue has room for several chunks; waiting until half is gone keeps the sender busy.
        while len(producer) > 2 * _CHUNK:
            producer.poll(0.01)
        for partition in range(partitions):
            mine = messages[partition::partitions]
            assert producer.produce_batch(topic, mine, partition=partition) == len(mine)
    assert producer.flush(60) == 0
