"""The records of a batch by number: where they lie in Kafka, read in Spark's tasks, and read again to be rejected."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa

from ...errors import Gone
from ...snapshot.cut.stored import ADDRESS
from ...state.failing import Failure
from ...state.records import Position, Range, ranges
from ...store.archive.columns import HEADERS
from ...store.versions.manifest import Input
from ..kafka.columns import Columns
from ..kafka.messages import check_count, decode, decode_addressed, encode
from ..kafka.protocol import Kafka, Message
from ..source.worker import configure_worker
from ..spark.places import Places
from .table import DeadLetter

ROW_BITS = 20
"""A record's number is that of its message, and in these bits its row in the message: 0 for a user's topic."""


@dataclass(frozen=True)
class Numbering:
    """All places of a batch's messages, numbered from 0 in the order of inputs, partitions and offsets."""

    ranges: tuple[tuple[str, Range], ...]
    """What the batch reads, by the input's declared name."""

    @cached_property
    def numbered(self) -> tuple[tuple[int, str, Range], ...]:
        """Each range with its input, after the number of its first place."""
        starts = accumulate((each.last - each.first for _, each in self.ranges), initial=0)
        return tuple((start, *each) for start, each in zip(starts, self.ranges, strict=False))

    def at(self, place: int) -> tuple[str, int, int]:
        """The input, the Kafka partition and the offset of a place."""
        start, name, part = self.numbered[bisect_right(self.numbered, place, key=lambda each: each[0]) - 1]
        return name, part.partition, part.first + place - start


def numbering_of(before: Mapping[str, Input], after: Mapping[str, Position]) -> Numbering:
    """What a batch reads between where the version before it stood and where it ends, by the inputs' names."""
    return Numbering(
        tuple(
            (name, one)
            for name, end in after.items()
            for one in ranges(before[name].offsets, end.offsets, before[name].passed, end.consumed)
        )
    )


def record_number(place: int, row: int) -> int:
    """The number of a record, by its message's place and its row there."""
    return place << ROW_BITS | row


def place_of(number: int) -> tuple[int, int]:
    """The place and the row of a record's number."""
    return number >> ROW_BITS, number & ((1 << ROW_BITS) - 1)


_GAP = 2_000
"""Messages between two that are wanted that are read over: to look for the second costs as much."""


@dataclass(frozen=True, slots=True)
class InputTopic:
    """An input as Kafka has it: its topic, and for a channel the attempts whose messages count."""

    topic: str
    attempts: frozenset[str] | None


@dataclass(frozen=True)
class Messages:
    """Reads records of a batch's places again, by the inputs' declared names."""

    kafka: Kafka
    sources: Mapping[str, InputTopic]
    numbering: Numbering
    patience_s: float

    def rejected(self, found: Mapping[int, Failure]) -> list[DeadLetter]:
        """Records by number, with their errors, in the order of their numbers."""
        wanted: dict[tuple[str, int], dict[int, list[int]]] = {}
        for number in sorted(found):
            name, partition, offset = self.numbering.at(place_of(number)[0])
            wanted.setdefault((name, partition), {}).setdefault(offset, []).append(number)
        made: dict[int, DeadLetter] = {}
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

    def _of(self, message: Message, name: str, failures: Mapping[int, Failure]) -> Iterator[DeadLetter]:
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
                yield DeadLetter(*where, message.key(), message.value(), headers, *why, name, 0, time_ms)
            else:
                row = place_of(number)[1]
                (one,) = rows.slice(row, 1).combine_chunks().to_batches()
                yield DeadLetter(*where, None, encode(one), _carried(one), *why, name, row, time_ms)


def _carried(row: pa.RecordBatch) -> tuple[tuple[str, bytes | None], ...]:
    """The headers that a row of a channel has as a column, as that of a topic which it was made of."""
    if "headers" not in row.schema.names or row.schema.field("headers").type != HEADERS:
        return ()
    return tuple((each["key"], each["value"]) for each in row["headers"][0].as_py() or ())


@dataclass(frozen=True, slots=True)
class KafkaFeed:
    """Gives tasks the records of one input, each with its number; for `mapInArrow` over the numbers of ranges."""

    where: Places = field(repr=False)
    topic: str
    schema: pa.Schema
    """The input's columns, and the number's as the last."""
    ranges: Sequence[tuple[int, Range]]
    """What is read, and the number of its first message."""
    attempts: frozenset[str] | None
    """For a channel, whose messages count; None for a user's topic."""
    patience_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the ranges whose numbers the batches hold."""
        configure_worker()
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from self._read(*self.ranges[number])

    def _read(self, place: int, part: Range) -> Iterator[pa.RecordBatch]:
        found, gone = 0, list[Gone]()
        where = (self.topic, part.partition, part.first, part.last)
        lost = None if part.rows is None else gone
        for messages in self.where.open_kafka().read(*where, patience_s=self.patience_s, gone=lost):
            for offsets, row_numbers, columns in self._rows(messages):
                found += len(offsets)
                numbers = record_number(1, 0) * (place + offsets - part.first) + row_numbers
                yield pa.RecordBatch.from_arrays([*columns, pa.array(numbers, pa.int64())], schema=self.schema)
        check_count(*where, found, part.rows, gone)

    def _rows(self, messages: Sequence[Message]) -> Iterator[tuple[np.ndarray, np.ndarray, Sequence[pa.Array]]]:
        """The offset of each record, its row in its message, and its columns."""
        plain = pa.schema(list(self.schema)[:-1])
        if self.attempts is None:
            rows = Columns(messages).source(plain)
            offsets = rows["offset"].to_numpy()
            yield offsets, np.zeros(len(offsets), np.int64), rows.columns
            return
        for message in messages:
            row = 0
            for batch in decode([message], self.attempts, plain):
                numbers = np.arange(row, row + batch.num_rows, dtype=np.int64)
                yield np.full(batch.num_rows, message.offset(), np.int64), numbers, batch.columns
                row += batch.num_rows
