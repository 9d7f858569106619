"""The refusal for what Kafka does not let this user do: it names the right that is missing."""

from __future__ import annotations

from confluent_kafka import KafkaError

from ...errors import Refused
from .clients import Kafka, server

__all__ = ["lacking"]

_UNAUTHORISED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


def lacking(kafka: Kafka, error: KafkaError | None, right: str, topic: str) -> Refused | None:
    """The refusal for an answer that says that a right on a topic is missing; None for any other answer.

    Args:
        kafka: Client properties.
        error: What the broker answered.
        right: What was tried, in the words of Kafka's ACLs: `Describe`, `Read`, `Write` or `Create`.
        topic: On which topic.
    """
    if error is None or error.code() not in _UNAUTHORISED:
        return None
    return Refused(
        f"{server(kafka)} does not let this user do what it takes: the right {right} on topic {topic!r} is missing",
        hint=f"kafka-acls --bootstrap-server {kafka['bootstrap.servers']} --add --allow-principal User:NAME "
        f"--operation {right} --topic {topic}; docs/operating.md has all the rights that an app needs",
    )
