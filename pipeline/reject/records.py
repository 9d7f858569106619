"""The records of a batch that are to be rejected, as Kafka has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ...errors import Gone
from ...fold.failing import Failure
from ...snapshot.cut.stored import ADDRESS
from ..kafka.messages import decode_addressed, encode
from ..kafka.protocol import Kafka, Message
from ..kafka.rejects import DeadLetter
from .places import Places, place_of

_GAP = 2_000
"""Messages between two that are wanted that are read over: to look for the second costs as much."""


@dataclass(frozen=True, slots=True)
class Source:
    """An input as Kafka has it: its topic, and for a channel the attempts whose messages count."""

    topic: str
    attempts: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is rejected: its message and its error, its input's declared name, its row there, its time."""

    letter: DeadLetter
    input: str
    row: int
    time_ms: int


@dataclass(frozen=True)
class Messages:
    """Reads records of a batch's places again, by the inputs' declared names."""

    kafka: Kafka
    sources: Mapping[str, Source]
    places: Places
    patience_s: float

    def rejected(self, found: Mapping[int, Failure]) -> list[Rejected]:
        """Records by number, with their errors, in the order of their numbers."""
        wanted: dict[tuple[str, int], dict[int, list[int]]] = {}
        for number in sorted(found):
            stretch, offset = self.places.at(place_of(number)[0])
            wanted.setdefault((stretch.input, stretch.partition), {}).setdefault(offset, []).append(number)
        made: dict[int, Rejected] = {}
        for (name, partition), offsets in wanted.items():
            for message in self._messages(self.sources[name].topic, partition, list(offsets)):
                mine = {number: found[number] for number in offsets[message.offset() or 0]}
                made |= zip(mine, self._of(message, name, mine), strict=True)
            if missing := [offset for offset, numbers in offsets.items() if numbers[0] not in made]:
                topic = self.sources[name].topic
                raise Gone(f"there is no message at {topic}[{partition}]@{missing[0]} any more")
        return [made[number] for number in sorted(found)]

    def _messages(self, topic: str, partition: int, offsets: list[int]) -> Iterator[Message]:
        """The messages at these offsets, which ascend; those close to each other are read at once."""
        begin = 0
        for at in range(1, len(offsets) + 1):
            if at == len(offsets) or offsets[at] - offsets[at - 1] > _GAP:
                chosen = {*offsets[begin:at]}
                where = (topic, partition, offsets[begin], offsets[at - 1] + 1)
                for chunk in self.kafka.read(*where, patience_s=self.patience_s):
                    yield from (message for message in chunk if message.offset() in chosen)
                begin = at

    def _of(self, message: Message, name: str, failures: Mapping[int, Failure]) -> Iterator[Rejected]:
        """The records of one message, which is decoded once."""
        source = self.sources[name]
        where = (source.topic, message.partition() or 0, message.offset() or 0)
        time_ms = message.timestamp()[1]
        headers = tuple((header, value) for header, value in message.headers() or ())
        rows = None
        if source.attempts is not None:
            rows = pa.concat_tables(decode_addressed([message], source.attempts)).drop_columns(list(ADDRESS))
        for number, failure in failures.items():
            why = (failure.kind, failure.message, failure.stack)
            if rows is None:
                yield Rejected(DeadLetter(*where, message.key(), message.value(), headers, *why), name, 0, time_ms)
            else:
                row = place_of(number)[1]
                (one,) = rows.slice(row, 1).combine_chunks().to_batches()
                yield Rejected(DeadLetter(*where, None, encode(one), (), *why), name, row, time_ms)
