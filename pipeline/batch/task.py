"""What a Spark task of a micro-batch does in its Python worker, whatever its stage is: send rows to Kafka, and report.

What a task does counts when the driver names it in a manifest: a retried or speculative attempt leaves only orphans.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

from ...fold.event_time import Times
from ...fold.failing import StateFailed
from ...fold.kinds.aggregate import num_partials, num_rows
from ...fold.multi_input import by_input
from ...fold.next_version import SentTo, TaskReport
from ...store.sst.hashing import hash_keys, partition_of
from ...store.versions.manifest import Manifest
from ..api.sink import Encoding, Sink
from ..api.topic import Repartition
from ..kafka.messages import send, split
from ..kafka.open import open_kafka
from ..messages import outgoing
from ..source.worker import ERROR_MARK, ErrorMark, configure_worker
from ..spark.places import Places

RESULT_SCHEMA = StructType().add("result", BinaryType())

Partitions = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A channel, or a sink, as tasks write it. No topic: it is not written."""

    name: str
    topic: str
    partitions: int = 1
    key: tuple[str, ...] = ()
    """Columns that say the Kafka partition; none for a sink, whose records keep the order in which a task wrote."""
    encoding: Encoding | None = None
    """How a sink's rows become records; None for rows as they are."""

    def partitions_of(self, rows: pa.Table) -> Partitions:
        """The Kafka partition of each row."""
        if not self.key:
            return np.zeros(rows.num_rows, np.int32)
        return partition_of(hash_keys(rows, self.key), self.partitions)


def output_topic_of(one: Repartition | Sink, base: Manifest) -> OutputTopic:
    """Where a batch on this version writes what is for a channel or a sink."""
    if isinstance(one, Repartition):
        output = base.outputs[one.name]
        return OutputTopic(one.name, output.topic, len(output.ends), one.key)
    # A clone has no sinks but those that it was told to publish.
    return OutputTopic(one.name, base.sinks[one.name].topic if one.name in base.sinks else "", encoding=one.encoding)


@dataclass(frozen=True, slots=True)
class Task(ABC):
    """What a task of any stage knows."""

    places: Places
    writer: str
    version: int
    outputs: tuple[OutputTopic, ...]
    times: Times = field(default_factory=Times, kw_only=True)
    """The event times to look for."""
    error_mark: ErrorMark = field(default=ERROR_MARK, kw_only=True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do a task's work; one row with its report comes back, none when there were no rows."""
        filled = [batch for batch in batches if batch.num_rows]
        if not filled:
            return
        with self.error_mark.own():
            configure_worker()
            context = TaskContext.get()
            assert context is not None  # noqa: S101  only Spark's workers call this
            # Unique for ever: also a topic that outlived its app's store must not speak for the app made anew.
            attempt = f"{self.writer}.{self.version}.{context.taskAttemptId()}"
            rows = pa.Table.from_batches(filled)
            try:
                result = replace(self._run(rows, attempt), seen=self.times.seen(rows), partials=num_partials(rows))
            except StateFailed as error:
                result = TaskReport(attempt, num_rows(rows), failed=error.told)
            report = msgspec.msgpack.encode(result)
            yield pa.RecordBatch.from_pydict({"result": pa.array([report], pa.binary())})

    @abstractmethod
    def _run(self, rows: pa.Table, attempt: str) -> TaskReport: ...

    def _send(
        self, parts: Iterable[tuple[OutputTopic, pa.Table, Partitions]], attempt: str
    ) -> dict[str, dict[int, SentTo]]:
        """Send each target its rows, to the partition of each; what was written, by target and partition."""
        sent = {}
        for target, rows, partitions in parts:
            if not target.topic:
                continue
            if target.encoding is not None:
                rows = outgoing.records(rows, target.encoding, self.places.patience_s)
            if messages := list(split(rows, partitions)):
                kafka, patience_s = open_kafka(self.places.kafka), self.places.patience_s
                ends = send(kafka, target.topic, messages, attempt.encode(), patience_s=patience_s)
                counts = np.bincount(partitions, minlength=target.partitions).tolist()
                sent[target.name] = {partition: SentTo(counts[partition], end) for partition, end in ends.items()}
        return sent


@dataclass(frozen=True, slots=True)
class WriteTask(Task):
    """A stage without state: the function's rows go to the channels.

    All of them to each, and `_to_<n>` is a row's partition in the n-th; or, with `rows`, those tagged n to the n-th,
    and `_to` is their partition.
    """

    rows: tuple[pa.Schema, ...] = ()
    """Of each output, where each has rows of its own."""

    def _run(self, rows: pa.Table, attempt: str) -> TaskReport:
        parts = ((target, *part) for target, part in zip(self.outputs, self._parts(rows), strict=True))
        return TaskReport(attempt, rows.num_rows, sent=self._send(parts, attempt))

    def _parts(self, rows: pa.Table) -> list[tuple[pa.Table, Partitions]]:
        if self.rows:
            partitions = rows["_to"].to_numpy()
            return [(part, partitions[mine]) for mine, part in by_input(rows, self.rows)]
        numbers = [f"_to_{n}" for n in range(len(self.outputs))]
        plain = rows.drop_columns(numbers)
        return [(plain, rows[name].to_numpy()) for name in numbers]
