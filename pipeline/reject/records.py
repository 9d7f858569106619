"""The records of a batch that are to be rejected, as Kafka has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from ...snapshot.cut.stored import ADDRESS
from ..kafka.clients import Kafka
from ..kafka.messages import decode_addressed, encode
from ..kafka.records import message_at, read_range
from ..kafka.rejects import DeadLetter
from .blame import Blame
from .places import Places, Stretch


@dataclass(frozen=True, slots=True)
class Source:
    """An input as Kafka has it: its topic, and for a channel the attempts whose messages count."""

    topic: str
    attempts: frozenset[str] | None


@dataclass(frozen=True)
class Messages:
    """Reads single records of a batch's places again, by the inputs' declared names."""

    kafka: Kafka
    sources: Mapping[str, Source]
    places: Places
    patience_s: float

    def num_rows(self, place: int) -> int:
        """How many records the message at a place has: 1 for a user's topic; 0 where no message counts."""
        stretch, offset = self.places.at(place)
        source = self.sources[stretch.input]
        if source.attempts is None:
            return 1
        return sum(rows.num_rows for rows, _ in self._channel(stretch, offset))

    def letter(self, place: int, row: int, blame: Blame) -> tuple[DeadLetter, str, int, int]:
        """A record with its error; its input, its row and its time in ms."""
        stretch, offset = self.places.at(place)
        source = self.sources[stretch.input]
        why = (blame.kind, blame.message, blame.stack)
        where = (source.topic, stretch.partition, offset)
        if source.attempts is None:
            key, value, time_ms, headers = message_at(self.kafka, *where, patience_s=self.patience_s)
            return DeadLetter(*where, key, value, headers, *why), stretch.input, 0, time_ms
        ((rows, time_ms),) = self._channel(stretch, offset)
        (one,) = rows.drop_columns(list(ADDRESS)).slice(row, 1).combine_chunks().to_batches()
        return DeadLetter(*where, None, encode(one), (), *why), stretch.input, row, time_ms

    def _channel(self, stretch: Stretch, offset: int) -> list[tuple[pa.Table, int]]:
        source = self.sources[stretch.input]
        assert source.attempts is not None  # noqa: S101  it is a channel
        where = (source.topic, stretch.partition, offset, offset + 1)
        return [
            (rows, message.timestamp()[1])
            for chunk in read_range(self.kafka, *where, patience_s=self.patience_s)
            for message in chunk
            for rows in decode_addressed([message], source.attempts)
        ]
