"""Spark tasks of a micro-batch, in Python workers: merge rows into the state, and send rows to Kafka.

The output of a task counts once the driver commits a manifest that names the task's attempt. Output of all other
attempts (retried, speculative) is ignored.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import TTLCache
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

from ...common import runtime
from ...errors import BadRecord, TooMuch
from ...state.event_time import EventTimeScan
from ...state.failing import StateFailed
from ...state.kinds.aggregate import num_partials, num_rows
from ...state.multi_input import split_by_input
from ...state.next_version import OversizedRecord, PartitionWrite, TaskReport
from ...state.step import Step, StepResult
from ...store.objects.counting import ReadCounters, look_up_stats
from ...store.read.multi_get import TableLookUps
from ...store.sst import sorted_runs, writer
from ...store.sst.arrow_types import python_rows
from ...store.sst.hashing import hash_keys, partition_of
from ...store.versions.entries import hash_ranges
from ...store.versions.entries.ssts import Sst
from ...store.versions.leaves.objects import bind_ssts
from ...store.versions.manifest import Manifest, SideTable
from ..api.sink import Encoding, Sink
from ..api.topic import Repartition
from ..kafka.messages import RowTooLarge, send_messages, split_into_messages
from ..kafka.open import open_kafka
from ..kafka.protocol import MAX_RECORD_BYTES, Kafka, RecordTooLarge
from ..messages import outgoing
from ..source.worker import ERROR_TAG, ErrorTag, configure_worker
from ..spark.worker_resources import WorkerResources

RESULT_SCHEMA = StructType().add("result", BinaryType())

Partitions = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """Kafka topic to which tasks write the rows of a channel or a sink. If `topic` is empty, nothing is written."""

    name: str
    topic: str
    partitions: int = 1
    key: tuple[str, ...] = ()
    """Columns that choose the Kafka partition. Empty for a sink, whose internal topic has one partition."""
    encoding: Encoding | None = None
    """Encoding of a sink's rows as records; None for a channel, whose rows are sent unchanged."""
    published_topic: str = ""
    rejects_too_large: bool = False
    """True if records too large for the topic are reported (`TaskReport.unsent`) instead of failing the batch."""

    def partitions_of(self, rows: pa.Table) -> Partitions:
        if not self.key:
            return np.zeros(rows.num_rows, np.int32)
        return partition_of(hash_keys(rows, self.key), self.partitions)


def output_topic_of(target: Repartition | Sink, base: Manifest, published: Mapping[str, str]) -> OutputTopic:
    """Return the topic to which a batch on top of `base` writes the rows of a channel or a sink.

    `published` maps sinks to their topics, for sinks that are not published under their declared names.
    """
    if isinstance(target, Repartition):
        channel = base.outputs[target.name]
        return OutputTopic(target.name, channel.topic, len(channel.ends), target.key)
    # A clone publishes only the sinks that the user chose for it.
    topic = base.sinks[target.name].topic if target.name in base.sinks else ""
    to = published.get(target.name, target.name) if target.kind == "topic" else ""
    return OutputTopic(
        target.name, topic, encoding=target.encoding, published_topic=to, rejects_too_large=target.on_error == "reject"
    )


_MAX_PUBLISHED_BYTES = MAX_RECORD_BYTES - (64 << 10)
_LIMIT_S = 60.0
_limits: TTLCache[tuple[str, str], int] = TTLCache(1_000, _LIMIT_S, runtime.monotonic)


def separate_too_large(
    kafka: Kafka, target: OutputTopic, records: pa.Table, version: int
) -> tuple[pa.Table, tuple[OversizedRecord, ...]]:
    """Split a sink's records into records that fit into its topic and records that are too large.

    Raises `BadRecord` for the first record that is too large, unless the sink rejects such records.
    """
    sizes = outgoing.single_batch_bytes(records)
    most, topic = int(sizes.max(initial=0)), (kafka.name, target.published_topic)
    limit = _limits.get(topic)
    if limit is None or most > limit:
        # The limit may have been raised since.
        limit = _limits[topic] = min(
            _max_record_bytes(kafka, target.published_topic) or _MAX_PUBLISHED_BYTES, _MAX_PUBLISHED_BYTES
        )
    if most <= limit:
        return records, ()
    large, unsent = np.flatnonzero(sizes > limit), list[OversizedRecord]()
    rows = records.take(pa.array(large))
    headers = outgoing.record_headers(rows) or [()] * len(large)
    for row, size, row_headers in zip(rows.to_pylist(), sizes[large].tolist(), headers, strict=True):
        set_headers = tuple((name, value) for name, value in row_headers if value is not None)
        reason = RecordTooLarge(row["key"], size, limit).description
        unsent.append(
            OversizedRecord(
                target.name, row["key"], row["value"], set_headers, f"sink {target.name!r} at v{version}: {reason}"
            )
        )
        if not target.rejects_too_large:
            raise BadRecord(
                f"{unsent[0].why}; nothing was committed: raise the topic's max.message.bytes, up to "
                f'{_MAX_PUBLISHED_BYTES:,}, or reject such records by sink(..., on_error="reject")'
            )
    return records.filter(pa.array(sizes <= limit)), tuple(unsent)


def _max_record_bytes(kafka: Kafka, topic: str) -> int | None:
    named = (kafka.properties.get(name, "none") for name in ("compression.type", "compression.codec"))
    # The size of a record after compression is unknown until it is sent.
    return None if any(codec != "none" for codec in named) else kafka.max_message_bytes(topic)


@dataclass(frozen=True, slots=True)
class Task(ABC):
    """Base class of the Spark tasks of a micro-batch."""

    resources: WorkerResources
    writer: str
    version: int
    outputs: tuple[OutputTopic, ...]
    times: EventTimeScan = field(default_factory=EventTimeScan, kw_only=True)
    error_tag: ErrorTag = field(default=ERROR_TAG, kw_only=True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task and yield one row with its report; yield nothing if there are no rows."""
        filled = [batch for batch in batches if batch.num_rows]
        if not filled:
            return
        with self.error_tag.tagging():
            configure_worker()
            context = TaskContext.get()
            assert context is not None  # noqa: S101  only Spark's workers call this
            report = msgspec.msgpack.encode(self.run(pa.Table.from_batches(filled), context.taskAttemptId()))
            yield pa.RecordBatch.from_pydict({"result": pa.array([report], pa.binary())})

    def run(self, rows: pa.Table, number: int) -> TaskReport:
        """Run one attempt of the task. Attempts of a run have different numbers."""
        # Globally unique: if a topic outlives a removed app, its messages must not count for a new app of the same
        # name.
        attempt = f"{self.writer}.{self.version}.{number}"
        try:
            return replace(self._run(rows, attempt), seen=self.times.scan(rows), partials=num_partials(rows))
        except StateFailed as error:
            return TaskReport(attempt, num_rows(rows), failed=error.reported)

    @abstractmethod
    def _run(self, rows: pa.Table, attempt: str) -> TaskReport: ...

    def _send(
        self, parts: Iterable[tuple[OutputTopic, pa.Table, Partitions]], attempt: str
    ) -> tuple[dict[str, dict[int, PartitionWrite]], tuple[OversizedRecord, ...]]:
        """Send each element of `parts` to its output, each row to its Kafka partition.

        Returns two values: the sent messages, by output and partition; and the records that are too large for a sink's
        topic. Raises `TooMuch` for a row that exceeds the size of a message, and `BadRecord` for a record that is too
        large for a sink's topic, unless the sink rejects records.
        """
        sent, unsent = dict[str, dict[int, PartitionWrite]](), tuple[OversizedRecord, ...]()
        for target, rows, partitions in parts:
            if not target.topic:
                continue
            kafka, patience_s = open_kafka(self.resources.kafka), self.resources.patience_s
            if target.encoding is not None:
                rows, more = separate_too_large(
                    kafka, target, outgoing.encode_records(rows, target.encoding, patience_s), self.version
                )
                unsent, partitions = (*unsent, *more), np.zeros(rows.num_rows, np.int32)
            try:
                messages = list(split_into_messages(rows, partitions))
            except RowTooLarge as error:
                raise self._too_large(target, error) from None
            if messages:
                ends = send_messages(kafka, target.topic, messages, attempt.encode(), patience_s=patience_s)
                counts = np.bincount(partitions, minlength=target.partitions).tolist()
                sent[target.name] = {
                    partition: PartitionWrite(counts[partition], end) for partition, end in ends.items()
                }
        return sent, unsent

    def _too_large(self, target: OutputTopic, error: RowTooLarge) -> TooMuch:
        names = [name for name in target.key if name in error.row.schema.names]
        (key,) = python_rows(error.row.select(names))
        shown = ", ".join(f"{name}={repr(value)[:200]}" for name, value in key.items())
        kind = "repartition topic" if target.encoding is None and target.key else "sink"
        return TooMuch(
            f"{kind} {target.name!r} at v{self.version}: the row{' with ' if shown else ''}{shown} has "
            f"{error.size:,} bytes, but a message between stages has at most {MAX_RECORD_BYTES:,}: drop such rows in "
            "the function, send only some of their columns, or split them into several rows"
        )


@dataclass(frozen=True, slots=True)
class WriteTask(Task):
    """Task of a stage without state: sends the function's rows to the stage's outputs.

    Without `row_schemas`, each output gets all rows, and the column `_to_<n>` has the Kafka partition of a row in
    output n. With `row_schemas`, output n gets the rows with tag n, and the column `_to` has their Kafka partition.
    """

    row_schemas: tuple[pa.Schema, ...] = ()

    def _run(self, rows: pa.Table, attempt: str) -> TaskReport:
        parts = ((target, *part) for target, part in zip(self.outputs, self._rows_by_output(rows), strict=True))
        sent, unsent = self._send(parts, attempt)
        return TaskReport(attempt, rows.num_rows, sent=sent, unsent=unsent)

    def _rows_by_output(self, rows: pa.Table) -> list[tuple[pa.Table, Partitions]]:
        if self.row_schemas:
            partitions = rows["_to"].to_numpy()
            return [(part, partitions[selection]) for selection, part in split_by_input(rows, self.row_schemas)]
        numbers = [f"_to_{n}" for n in range(len(self.outputs))]
        plain = rows.drop_columns(numbers)
        return [(plain, rows[name].to_numpy()) for name in numbers]


IS_PROBE = "_is_mark"
"""Column that is True in probe rows.

A probe row is not a record; it makes a task look for due rows in its hash range.
"""


@dataclass(frozen=True, slots=True)
class StateTask(Task):
    """Task of a stage with state: merges rows into the state.

    Rows have a column `_hash`, and all rows of a hash range are in one task.
    """

    step: Step
    """Merges rows into the state. Uses the driver's clock, so that all attempts of a task give the same result."""
    ssts: Sequence[Sst]
    dry_run: bool = False
    side_tables: Mapping[str, SideTable] = field(default_factory=dict)
    """Side tables that the state reads and writes."""
    late_output: tuple[OutputTopic, Mapping[str, str]] | None = None
    """Output for late rows, and the columns to send, each with its name in the output; None to drop late rows."""

    def with_tasks(self, count: int) -> Self:
        return dataclasses.replace(
            self, step=dataclasses.replace(self.step, table=replace(self.step.table, tasks=count))
        )

    def _run(self, rows: pa.Table, attempt: str) -> TaskReport:
        marked: frozenset[int] = frozenset()
        if IS_PROBE in rows.column_names:
            is_mark = rows[IS_PROBE]
            hashes = rows.filter(is_mark)["_hash"].to_numpy()
            marked = frozenset(partition_of(hashes, self.step.table.ranges).tolist())
            rows = rows.filter(pc.invert(is_mark)).drop_columns([IS_PROBE])
        in_time, late = self.step.split_late(rows)
        result = self._merge_rows(in_time, attempt, marked) if in_time.num_rows or marked else TaskReport(attempt, 0)
        if not late.num_rows:
            return result
        sent, unsent = result.sent, result.unsent
        if self.late_output is not None:
            target, columns = self.late_output
            late_rows = late.select(list(columns)).rename_columns(list(columns.values()))
            more, large = self._send([(target, late_rows, target.partitions_of(late_rows))], attempt)
            sent, unsent = sent | more, (*unsent, *large)
        return replace(result, rows_in=num_rows(rows), sent=sent, unsent=unsent, late=num_rows(late))

    def _merge_rows(self, rows: pa.Table, attempt: str, marked: frozenset[int]) -> TaskReport:
        table, count, reads = self.step.table, self.step.table.ranges, ReadCounters()
        counted, store, cache = self.resources.open()
        for stored_ssts in (self.ssts, *(side.ssts for side in self.side_tables.values())):
            bind_ssts(store, stored_ssts)
        partitions = partition_of(rows["_hash"].to_numpy(), count)
        steps: list[StepResult] = []
        ssts: list[Sst] = []
        parts: dict[str, list[Sst]] = {}
        event_ms: list[int | None] = []
        # In Spark's plan a task has one partition; the code works for any number.
        for partition in sorted(marked.union(np.unique(partitions).tolist())):
            part = rows if (partitions == partition).all() else rows.filter(partitions == partition)
            existing = sorted_runs.ssts_of_partition(self.ssts, partition, count)
            stored = TableLookUps(store, cache, table, existing, self.step.clock_ms, reads)
            part_look_ups = {
                name: TableLookUps(
                    store, cache, side.table, sorted_runs.ssts_of_partition(side.ssts, partition, count), 0, reads
                )
                for name, side in self.side_tables.items()
            }
            hashes = hash_ranges.hash_bounds(partition, count) if partition in marked else None
            step = self.step.apply(part, stored, hashes, part_look_ups)
            if self.dry_run:
                continue
            steps.append(step)
            app, stage = self.resources.app, self.resources.stage
            write = partial(writer.write_sst, store, cache, app=app, stage=stage, partition=partition)
            if step.new.num_rows:
                new, latest_ms = self.step.with_expiry(step.new)
                ssts.append(write(table=table, rows=new, ulid=self.resources.new_sst_name()))
                event_ms.append(latest_ms)
            for name, new in step.parts.items():
                # Side tables have the hash ranges of the stage's table in this batch.
                declared = replace(self.side_tables[name].table, tasks=table.tasks)
                parts.setdefault(name, []).append(write(table=declared, rows=new, ulid=self.resources.new_sst_name()))
        emitted = [step.emitted for step in steps if step.emitted]
        sent, unsent = self._send(self._rows_by_output(emitted), attempt) if self.outputs and emitted else ({}, ())
        return TaskReport(
            attempt,
            num_rows(rows),
            tuple(ssts),
            {name: tuple(written) for name, written in parts.items()},
            sent,
            counted.take_stats() + look_up_stats(reads),
            cache.ranged_objects(),
            max((at for at in event_ms if at is not None), default=None),
            unsent=unsent,
            next_due_ms=min((step.next_ms for step in steps if step.next_ms is not None), default=None),
        )

    def _rows_by_output(
        self, parts: Sequence[tuple[pa.Table, ...]]
    ) -> Iterator[tuple[OutputTopic, pa.Table, Partitions]]:
        tables = [pa.concat_tables(tables) for tables in zip(*parts, strict=True)]
        # A single table goes to all outputs.
        for target, rows in zip(self.outputs, tables * len(self.outputs) if len(tables) == 1 else tables, strict=True):
            yield target, rows, target.partitions_of(rows)
