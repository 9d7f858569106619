"""Kafka's clients, kept for the life of a process: a new consumer takes 150 ms and more until its first record.

Spark's Python workers are reused, so that their clients are too.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from ...errors import Unavailable

__all__ = ["GONE", "POLL_S", "Kafka", "clients", "kept", "properties", "server", "unavailable"]

Kafka = Mapping[str, str]
"""librdkafka client properties; `bootstrap.servers` at least."""

POLL_S = 0.25
GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

# By process (`kept`), as a forked child must not use its parent's clients.
clients: dict[tuple[object, ...], Any] = {}


@atexit.register
def _close() -> None:
    """End the clients of this process, and with them their threads, while there is an interpreter to call back."""
    mine = [key for key in clients if key[0] == os.getpid()]
    for key in mine:
        kept_clients = clients.pop(key)
        for client in kept_clients if isinstance(kept_clients, list) else [kept_clients]:
            if isinstance(client, Consumer):
                client.close()


def properties(kafka: Kafka, **ours: object) -> dict[str, object]:
    """Properties for librdkafka: what is common to all clients, then the user's, then `ours`."""
    # librdkafka would write each lost connection to stderr; Patience says it once, in words.
    return {"log_level": 0, "error_cb": _ignore, **kafka, **ours}


def _ignore(_error: KafkaError) -> None:
    return None


def server(kafka: Kafka) -> str:
    """How messages name the brokers."""
    return f"Kafka at {kafka['bootstrap.servers']}"


def kept(kind: str, kafka: Kafka, *more: object) -> tuple[object, ...]:
    """The key in `clients` of one for these brokers, of this process."""
    return (os.getpid(), kind, tuple(sorted(kafka.items())), *more)


def unavailable(kafka: Kafka, error: KafkaException) -> Unavailable:
    """The error for brokers that do not answer."""
    return Unavailable(
        f"{server(kafka)} does not answer: {error.args[0].str()}",
        hint="is it running, and is the address right? `slackwater dev up` starts one for development",
    )
