"""Numbers the records of a batch, and reads them again: in Spark tasks, or rejected records on the driver."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa

from ...errors import Gone
from ...snapshot.cut.stored import ADDRESS_COLUMNS
from ...state.failing import Failure
from ...state.records import Position, Range, ranges
from ...store.archive.columns import HEADERS
from ...store.versions.manifest import Input
from ..kafka.columns import MessageColumns
from ..kafka.messages import check_row_count, decode_addressed, decode_rows, encode_rows
from ..kafka.protocol import Kafka, Message
from ..source.worker import configure_worker
from ..spark.worker_resources import WorkerResources
from .table import DeadLetter

ROW_BITS = 20
"""Number of low bits of a record number that hold the record's row in its message (0 for a user's topic).

The higher bits hold the message's number.
"""


@dataclass(frozen=True)
class Numbering:
    """Numbers of a batch's messages, from 0 in the order of inputs, partitions and offsets."""

    ranges: tuple[tuple[str, Range], ...]

    @cached_property
    def numbered_ranges(self) -> tuple[tuple[int, str, Range], ...]:
        """Ranges, as tuples of the first message's number, the input's name, and the range."""
        starts = accumulate((entry.last - entry.first for _, entry in self.ranges), initial=0)
        return tuple((start, *entry) for start, entry in zip(starts, self.ranges, strict=False))

    def locate(self, message_number: int) -> tuple[str, int, int]:
        """Return the input, the Kafka partition and the offset of the message with this number."""
        start, name, part = self.numbered_ranges[
            bisect_right(self.numbered_ranges, message_number, key=lambda entry: entry[0]) - 1
        ]
        return name, part.partition, part.first + message_number - start


def numbering_of(base: Mapping[str, Input], ends: Mapping[str, Position]) -> Numbering:
    return Numbering(
        tuple(
            (name, part)
            for name, end in ends.items()
            for part in ranges(base[name].offsets, end.offsets, base[name].rows_passed, end.consumed)
        )
    )


def record_number(message_number: int, row: int) -> int:
    return message_number << ROW_BITS | row


def split_record_number(number: int) -> tuple[int, int]:
    return number >> ROW_BITS, number & ((1 << ROW_BITS) - 1)


_GAP = 2_000
"""Maximum number of unneeded messages within one read. A second read is faster than skipping more messages."""


@dataclass(frozen=True, slots=True)
class InputTopic:
    """Topic of an input. Only messages of `attempts` count; None for a user's topic, where all messages count."""

    topic: str
    attempts: frozenset[str] | None


@dataclass(frozen=True)
class DeadLetterReader:
    """Reads the messages of rejected records again, by record number."""

    kafka: Kafka
    sources: Mapping[str, InputTopic]
    numbering: Numbering
    patience_s: float

    def read(self, failures: Mapping[int, Failure]) -> list[DeadLetter]:
        """Return the failed records as dead letters, by record number. Raises `Gone` if a message no longer exists."""
        numbers_by_offset: dict[tuple[str, int], dict[int, list[int]]] = {}
        for number in sorted(failures):
            name, partition, offset = self.numbering.locate(split_record_number(number)[0])
            numbers_by_offset.setdefault((name, partition), {}).setdefault(offset, []).append(number)
        letters: dict[int, DeadLetter] = {}
        for (name, partition), offsets in numbers_by_offset.items():
            for message in self._messages(self.sources[name].topic, partition, list(offsets)):
                message_failures = {number: failures[number] for number in offsets[message.offset() or 0]}
                letters |= zip(message_failures, self._dead_letters(message, name, message_failures), strict=True)
            if missing := [offset for offset, numbers in offsets.items() if numbers[0] not in letters]:
                topic = self.sources[name].topic
                raise Gone(f"the message {topic}[{partition}]@{missing[0]} no longer exists")
        return [letters[number] for number in sorted(failures)]

    def _messages(self, topic: str, partition: int, offsets: list[int]) -> Iterator[Message]:
        start = 0
        for position in range(1, len(offsets) + 1):
            if position == len(offsets) or offsets[position] - offsets[position - 1] > _GAP:
                chosen = {*offsets[start:position]}
                span = (topic, partition, offsets[start], offsets[position - 1] + 1)
                for chunk in self.kafka.read(*span, patience_s=self.patience_s):
                    yield from (message for message in chunk if message.offset() in chosen)
                start = position

    def _dead_letters(self, message: Message, name: str, failures: Mapping[int, Failure]) -> Iterator[DeadLetter]:
        source = self.sources[name]
        address = (source.topic, message.partition() or 0, message.offset() or 0)
        time_ms = message.timestamp()[1]
        headers = tuple((header, value) for header, value in message.headers() or ())
        rows = None
        if source.attempts is not None:
            rows = pa.concat_tables(decode_addressed([message], source.attempts)).drop_columns(list(ADDRESS_COLUMNS))
        for number, failure in failures.items():
            error = (failure.kind, failure.message, failure.stack)
            if rows is None:
                yield DeadLetter(*address, message.key(), message.value(), headers, *error, name, 0, time_ms)
            else:
                row = split_record_number(number)[1]
                (record,) = rows.slice(row, 1).combine_chunks().to_batches()
                yield DeadLetter(
                    *address, None, encode_rows(record), _copied_headers(record), *error, name, row, time_ms
                )


def _copied_headers(row: pa.RecordBatch) -> tuple[tuple[str, bytes | None], ...]:
    if "headers" not in row.schema.names or row.schema.field("headers").type != HEADERS:
        return ()
    return tuple((header["key"], header["value"]) for header in row["headers"][0].as_py() or ())


@dataclass(frozen=True, slots=True)
class NumberedRangeReader:
    """Function for `mapInArrow`: gets indices into `ranges`, and yields the numbered records of these ranges."""

    resources: WorkerResources = field(repr=False)
    topic: str
    schema: pa.Schema
    ranges: Sequence[tuple[int, Range]]
    attempts: frozenset[str] | None
    patience_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        configure_worker()
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from self._read(*self.ranges[number])

    def _read(self, first_number: int, part: Range) -> Iterator[pa.RecordBatch]:
        num_rows, gone = 0, list[Gone]()
        span = (self.topic, part.partition, part.first, part.last)
        gone_or_none = None if part.rows is None else gone
        for messages in self.resources.open_kafka().read(
            *span, patience_s=self.patience_s, deletion_errors=gone_or_none
        ):
            for offsets, row_numbers, columns in self._rows(messages):
                num_rows += len(offsets)
                numbers = record_number(1, 0) * (first_number + offsets - part.first) + row_numbers
                yield pa.RecordBatch.from_arrays([*columns, pa.array(numbers, pa.int64())], schema=self.schema)
        check_row_count(self.topic, part, num_rows, gone)

    def _rows(self, messages: Sequence[Message]) -> Iterator[tuple[np.ndarray, np.ndarray, Sequence[pa.Array]]]:
        plain = pa.schema(list(self.schema)[:-1])
        if self.attempts is None:
            rows = MessageColumns(messages).to_spark_batch(plain)
            offsets = rows["offset"].to_numpy()
            yield offsets, np.zeros(len(offsets), np.int64), rows.columns
            return
        for message in messages:
            row = 0
            for batch in decode_rows([message], self.attempts, plain):
                numbers = np.arange(row, row + batch.num_rows, dtype=np.int64)
                yield np.full(batch.num_rows, message.offset(), np.int64), numbers, batch.columns
                row += batch.num_rows
