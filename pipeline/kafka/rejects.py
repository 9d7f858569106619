"""The topic of a stage's rejected records: messages as they came, with the headers of Kafka Streams' dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import Refused, Unavailable
from .protocol import Headers, Kafka, NotTaken, Record

_PREFIX = "__streams.errors."
_MOST = 65_536
"""Bytes of a header's value: brokers bound messages, headers and all."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record as it came, and why it was rejected."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: str
    message: str
    stack: str

    def headers_of(self) -> list[tuple[str, bytes | None]]:
        """Its own headers, and those of KIP-1034: `__streams.errors.exception` and so on, as text."""
        said = {
            "exception": self.error,
            "stacktrace": self.stack,
            "message": self.message,
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(self.offset),
        }
        own = [(name, value) for name, value in self.headers if not name.startswith(_PREFIX)]
        return [*own, *((_PREFIX + name, text.encode()[:_MOST]) for name, text in said.items())]


def send_rejects(kafka: Kafka, topic: str, letters: Sequence[DeadLetter], *, patience_s: float) -> None:
    """Write rejected records durably. At least once: a batch that is not committed afterwards writes them again.

    Raises:
        Refused: The broker does not take one: the topic is not there, we may not write to it, or it is full.
        Unavailable: The broker has been away for longer than `patience_s`.
    """
    try:
        kafka.send(
            topic, (Record(one.value, None, one.key, one.headers_of()) for one in letters), patience_s=patience_s
        )
    except NotTaken as error:
        said = f"the topic of rejected records {topic!r} takes none: {error.why}"
        hint = "the batch was dropped whole and nothing is lost: make room there, or name another topic, and run again"
        raise (Unavailable if error.passing else Refused)(said, hint=hint) from None
