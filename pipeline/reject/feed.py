"""Reading the records of a batch in Spark's tasks: the same records as the batch's sources give, from Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..kafka.messages import check_count, decode, topic_columns
from ..kafka.open import open_kafka
from ..kafka.protocol import Message, Properties
from ..source.worker import configure_worker
from .places import Stretch, record_number


@dataclass(frozen=True, slots=True)
class KafkaFeed:
    """Gives tasks the records of one input, each with its number; for `mapInArrow` over the numbers of stretches."""

    kafka: Properties = field(repr=False)
    topic: str
    schema: pa.Schema
    """The input's columns, and the number's as the last."""
    stretches: Sequence[tuple[int, Stretch]]
    """What is read, and the number of its first message."""
    attempts: frozenset[str] | None
    """For a channel, whose messages count; None for a user's topic."""
    patience_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the stretches whose numbers the batches hold."""
        configure_worker()
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from self._read(*self.stretches[number])

    def _read(self, place: int, part: Stretch) -> Iterator[pa.RecordBatch]:
        found = 0
        where = (self.topic, part.partition, part.first, part.last)
        for messages in open_kafka(self.kafka).read(*where, patience_s=self.patience_s):
            rows = self._of_topic(messages) if self.attempts is None else self._of_channel(messages, self.attempts)
            for offsets, row_numbers, columns in rows:
                found += len(offsets)
                numbers = record_number(1, 0) * (place + offsets - part.first) + row_numbers
                yield pa.RecordBatch.from_arrays([*columns, pa.array(numbers, pa.int64())], schema=self.schema)
        check_count(*where, found, part.rows)

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
