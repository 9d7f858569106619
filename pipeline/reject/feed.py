"""Reading chosen records of a batch in Spark's tasks: the same records as the batch's sources give, from Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from ..kafka.messages import check_count, decode
from ..kafka.records import Message, read_range, topic_columns
from ..source.worker import configure_worker
from .places import Reading, record_number

CHOSEN = "slackwater.records"
"""Spark's local property that says which records a job's tasks read. It is in no plan, so one plan serves for all."""
TASKS = 16
"""Tasks that read, whatever they are told to."""


class Chosen(msgspec.Struct, frozen=True, array_like=True):
    """What a job reads: `readings` for each task; by input, which (partition, offset, row) of these are left out."""

    readings: tuple[tuple[Reading, ...], ...]
    left_out: dict[str, tuple[tuple[int, int, int], ...]] = {}


def chosen_by(context: TaskContext) -> Chosen:
    """What a task's job reads."""
    said = context.getLocalProperty(CHOSEN)
    # A job that says nothing would read nothing, and its batch would be committed empty.
    assert said is not None, "a job over a feed says which records it reads"  # noqa: S101
    return msgspec.json.decode(said, type=Chosen)


@dataclass(frozen=True, slots=True)
class KafkaFeed:
    """Gives tasks the records of one input that the job chose, each with its number; for `mapInArrow`."""

    kafka: Mapping[str, str] = field(repr=False)
    input: str
    topic: str
    schema: pa.Schema
    """The input's columns, and the number's as the last."""
    starts: Mapping[int, tuple[int, int]]
    """By Kafka partition, its first offset and that one's place."""
    attempts: frozenset[str] | None
    """For a channel, whose messages count; None for a user's topic."""
    patience_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read what the job chose for the tasks whose numbers the batches hold."""
        configure_worker()
        context = TaskContext.get()
        assert context is not None  # noqa: S101  only Spark's workers call this
        chosen = chosen_by(context)
        skipped: dict[tuple[int, int], list[int]] = {}
        for partition, offset, row in chosen.left_out.get(self.input, ()):
            skipped.setdefault((partition, offset), []).append(row)
        for batch in batches:
            for number in batch["id"].to_pylist():
                for reading in chosen.readings[number] if number < len(chosen.readings) else ():
                    if reading.input == self.input:
                        yield from self.read(reading, skipped)

    def read(self, reading: Reading, skipped: Mapping[tuple[int, int], Sequence[int]]) -> Iterator[pa.RecordBatch]:
        """The records of a reading, with their numbers, without these rows of messages, by partition and offset."""
        found = 0
        where = (self.topic, reading.partition, reading.first, reading.last)
        for messages in read_range(self.kafka, *where, patience_s=self.patience_s):
            rows = self._of_topic(messages) if self.attempts is None else self._of_channel(messages, self.attempts)
            for offsets, row_numbers, columns in rows:
                found += len(offsets)
                keep = np.ones(len(offsets), bool)
                if reading.rows is not None:
                    keep = (row_numbers >= reading.rows[0]) & (row_numbers < reading.rows[1])
                for (partition, offset), out in skipped.items():
                    if partition == reading.partition and len(offsets) and offsets[0] <= offset <= offsets[-1]:
                        keep &= ~((offsets == offset) & np.isin(row_numbers, out))
                first, place = self.starts[reading.partition]
                numbers = record_number(1, 0) * (place + offsets - first) + row_numbers
                made = pa.RecordBatch.from_arrays([*columns, pa.array(numbers, pa.int64())], schema=self.schema)
                yield made if keep.all() else made.filter(pa.array(keep))
        check_count(*where, found, reading.expected)

    def _of_topic(self, messages: Sequence[Message]) -> Iterator[tuple[np.ndarray, np.ndarray, Sequence[pa.Array]]]:
        columns = topic_columns(messages)
        offsets = columns[4].to_numpy()
        yield offsets, np.zeros(len(offsets), np.int64), columns

    def _of_channel(
        self, messages: Sequence[Message], attempts: frozenset[str]
    ) -> Iterator[tuple[np.ndarray, np.ndarray, Sequence[pa.Array]]]:
        plain = pa.schema(list(self.schema)[:-1])
        for message in messages:
            row = 0
            for batch in decode([message], attempts, plain):
                numbers = np.arange(row, row + batch.num_rows, dtype=np.int64)
                yield np.full(batch.num_rows, message.offset(), np.int64), numbers, batch.columns
                row += batch.num_rows
