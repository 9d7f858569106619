"""What a Spark task does with one state partition of a micro-batch, in its Python worker.

Look up the batch's keys, have `fold.step` merge, write one L0 SST, write what the state emits to Kafka, and report.
What a task does counts when the driver names it in a manifest: a retried or speculative attempt leaves only orphans.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

from ...fold.event_time import Times
from ...fold.failing import StateFailed
from ...fold.kinds.aggregate import num_partials, num_rows
from ...fold.multi_input import apart
from ...fold.next_version import SentTo, TaskReport
from ...fold.step import Made, Step
from ...store.objects.stats import Reads, looked_up
from ...store.read.table_rows import TableRows
from ...store.sst import sorted_runs, writer
from ...store.sst.hashing import hash_keys, partition_of
from ...store.versions.manifest import Manifest, Sst
from ..api.sink import Encoding, Sink
from ..api.topic import Repartition
from ..kafka.messages import send, split
from ..kafka.open import open_kafka
from ..messages import outgoing
from ..source.worker import ERROR_MARK, ErrorMark, configure_worker
from ..spark.places import Places

RESULT_SCHEMA = StructType().add("result", BinaryType())
MARK = "_is_mark"
"""A column of rows that come to a task where rows may fall due: true for one that is none, and brings its partition."""

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
            return [(part, partitions[mine]) for mine, part in apart(rows, self.rows)]
        numbers = [f"_to_{n}" for n in range(len(self.outputs))]
        plain = rows.drop_columns(numbers)
        return [(plain, rows[name].to_numpy()) for name in numbers]


@dataclass(frozen=True, slots=True)
class StateTask(Task):
    """A stage with state. Rows come with `_hash`, all rows of a state partition in one task."""

    step: Step
    """What becomes of rows; every attempt has the driver's clock, so that all decide alike."""
    ssts: tuple[Sst, ...]
    only_checks: bool = False
    """Whether rows are merged only to see that it can be done: nothing is written."""
    late_to: tuple[OutputTopic, Mapping[str, str]] | None = None
    """Where late rows go, with which columns, each with its name there; None for nowhere."""

    def _run(self, rows: pa.Table, attempt: str) -> TaskReport:
        marked: frozenset[int] = frozenset()
        if MARK in rows.column_names:
            mark = rows[MARK]
            hashes = rows.filter(mark)["_hash"].to_numpy()
            marked = frozenset(partition_of(hashes, self.step.table.partitions).tolist())
            rows = rows.filter(pc.invert(mark)).drop_columns([MARK])
        in_time, late = self.step.apart(rows)
        result = self._merged(in_time, attempt, marked) if in_time.num_rows or marked else TaskReport(attempt, 0)
        if not late.num_rows:
            return result
        sent = result.sent
        if self.late_to is not None:
            target, columns = self.late_to
            gone = late.select(list(columns)).rename_columns(list(columns.values()))
            sent = sent | self._send([(target, gone, target.partitions_of(gone))], attempt)
        return replace(result, rows_in=num_rows(rows), sent=sent, late=num_rows(late))

    def _merged(self, rows: pa.Table, attempt: str, marked: frozenset[int]) -> TaskReport:
        """What becomes of rows that are not late, and in the `marked` state partitions of those that fall due."""
        table, count, reads = self.step.table, self.step.table.partitions, Reads()
        counted, store, cache = self.places.open()
        partitions = partition_of(rows["_hash"].to_numpy(), count)
        made: list[Made] = []
        ssts: list[Sst] = []
        event_ms: list[int | None] = []
        # One partition a task is what Spark's plan gives; correct for any number of them.
        for partition in sorted(marked.union(np.unique(partitions).tolist())):
            mine = rows if (partitions == partition).all() else rows.filter(partitions == partition)
            ours = sorted_runs.touching(self.ssts, partition, count)
            stored = TableRows(store, cache, table, ours, self.step.clock_ms, reads)
            one = self.step.made(mine, stored, sorted_runs.bounds(partition, count) if partition in marked else None)
            if self.only_checks:
                continue
            made.append(one)
            if one.new.num_rows:
                new, latest_ms = self.step.with_expiry(one.new)
                app, stage = self.places.app, self.places.stage
                sst = writer.write(store, cache, app=app, stage=stage, table=table, partition=partition, rows=new)
                ssts.append(sst)
                event_ms.append(latest_ms)
        emitted = [one.emitted for one in made if one.emitted]
        return TaskReport(
            attempt,
            num_rows(rows),
            tuple(ssts),
            self._send(self._emitted(emitted), attempt) if self.outputs and emitted else {},
            counted.take() + looked_up(reads),
            cache.ranged_objects(),
            max((at for at in event_ms if at is not None), default=None),
            next_due_ms=min((one.next_ms for one in made if one.next_ms is not None), default=None),
        )

    def _emitted(self, parts: Sequence[tuple[pa.Table, ...]]) -> Iterator[tuple[OutputTopic, pa.Table, Partitions]]:
        """What state partitions emitted, for each output."""
        tables = [pa.concat_tables(each) for each in zip(*parts, strict=True)]
        # One table is for all outputs.
        for target, rows in zip(self.outputs, tables * len(self.outputs) if len(tables) == 1 else tables, strict=True):
            yield target, rows, target.partitions_of(rows)
