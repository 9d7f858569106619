"""What a Spark task does with one state partition of a micro-batch, in its Python worker.

Look up the batch's keys, merge, write one L0 SST, write what the state emits to Kafka, and report. Nothing a task
does counts until the driver names it in a manifest: a retried or speculative attempt leaves only orphans.
"""

from __future__ import annotations

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
from ...fold.next_version import Result, SentTo
from ...fold.step import Made, Step
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Reads, looked_up
from ...store.read.cache import SstCache
from ...store.read.table_rows import TableRows
from ...store.sst import sorted_runs, writer
from ...store.sst.hashing import hash_keys, partition_of
from ...store.versions.manifest import Manifest, Sst, Table
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


@dataclass(frozen=True, slots=True)
class ToSink:
    """A sink as tasks know it; without `encoding`, its rows stay as they are, for a function."""

    name: str
    encoding: Encoding | None


Target = tuple[Repartition | ToSink, str, int]
"""A channel or sink, its Kafka topic and that topic's number of partitions. No topic for what is not written."""
Outputs = tuple[Target, ...]


def target_of(one: Repartition | Sink, base: Manifest) -> Target:
    """Where a batch on this version writes what is for a channel or a sink."""
    if isinstance(one, Repartition):
        return one, base.outputs[one.name].topic, len(base.outputs[one.name].ends)
    # A clone has no sinks but those that it was told to publish.
    topic = base.sinks[one.name].topic if one.name in base.sinks else ""
    return ToSink(one.name, one.encoding), topic, 1


def _send(
    places: Places, outputs: Outputs, parts: Sequence[tuple[pa.Table, npt.NDArray[np.integer]]], attempt: str
) -> dict[str, dict[int, SentTo]]:
    """Send each output, in their order, its rows, to the partition of each."""
    sent = {}
    for (channel, topic, count), (rows, targets) in zip(outputs, parts, strict=True):
        if not topic:
            continue
        if isinstance(channel, ToSink) and channel.encoding is not None:
            rows = outgoing.records(rows, channel.encoding, places.patience_s)
        messages = list(split(rows, targets))
        if messages:
            ends = send(open_kafka(places.kafka), topic, messages, attempt.encode(), patience_s=places.patience_s)
            counts = np.bincount(targets, minlength=count).tolist()
            sent[channel.name] = {partition: SentTo(counts[partition], end) for partition, end in ends.items()}
    return sent


def _targets(rows: pa.Table, channel: Repartition | ToSink, count: int) -> npt.NDArray[np.integer]:
    """The partition of each row. A sink has one: its records keep the order in which a task wrote them."""
    if isinstance(channel, ToSink):
        return np.zeros(rows.num_rows, np.int32)
    return partition_of(hash_keys(rows, channel.key), count)


@dataclass(frozen=True, slots=True)
class Task(ABC):
    """What a task of any stage knows."""

    places: Places
    writer: str
    version: int
    outputs: Outputs
    times: Times = field(default_factory=Times, kw_only=True)
    """The event times to look for."""
    error_mark: ErrorMark = field(default=ERROR_MARK, kw_only=True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do a task's work; one row with its report comes back, none when there were no rows."""
        filled = [batch for batch in batches if batch.num_rows]
        if not filled:
            return
        with self.error_mark.own():
            yield pa.RecordBatch.from_pydict({"result": pa.array([self._report(filled)], pa.binary())})

    def _report(self, filled: Sequence[pa.RecordBatch]) -> bytes:
        configure_worker()
        context = TaskContext.get()
        assert context is not None  # noqa: S101  only Spark's workers call this
        # Unique for ever: also a topic that outlived its app's store must not speak for the app made anew.
        attempt = f"{self.writer}.{self.version}.{context.taskAttemptId()}"
        rows = pa.Table.from_batches(filled)
        try:
            result = replace(self._run(rows, attempt), seen=self.times.seen(rows), partials=num_partials(rows))
        except StateFailed as error:
            result = Result(attempt, num_rows(rows), failed=error.told)
        return msgspec.msgpack.encode(result)

    @abstractmethod
    def _run(self, rows: pa.Table, attempt: str) -> Result: ...


@dataclass(frozen=True, slots=True)
class WriteTask(Task):
    """A stage without state: the function's rows go to the channels.

    All of them to each, and `_to_<n>` is a row's partition in the n-th; or, with `rows`, those tagged n to the n-th,
    and `_to` is their partition.
    """

    rows: tuple[pa.Schema, ...] = ()
    """Of each output, where each has rows of its own."""

    def _run(self, rows: pa.Table, attempt: str) -> Result:
        return Result(attempt, rows.num_rows, sent=_send(self.places, self.outputs, self._parts(rows), attempt))

    def _parts(self, rows: pa.Table) -> list[tuple[pa.Table, npt.NDArray[np.integer]]]:
        if self.rows:
            targets = rows["_to"].to_numpy()
            return [(part, targets[mine]) for mine, part in apart(rows, self.rows)]
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
    late_to: tuple[Target, Mapping[str, str]] | None = None
    """Where late rows go, with which columns, each with its name there; None for nowhere."""

    @property
    def table(self) -> Table:
        """The stage's table."""
        return self.step.table

    def _run(self, rows: pa.Table, attempt: str) -> Result:
        if MARK not in rows.column_names:
            return self._in_time(rows, attempt)
        mark = rows[MARK]
        marked = partition_of(rows.filter(mark)["_hash"].to_numpy(), self.table.partitions)
        return self._in_time(rows.filter(pc.invert(mark)).drop_columns([MARK]), attempt, frozenset(marked.tolist()))

    def _in_time(self, rows: pa.Table, attempt: str, marked: frozenset[int] = frozenset()) -> Result:
        """What becomes of the rows, and in the `marked` state partitions of those that fall due."""
        taken, left_out = self.step.apart(rows)
        result = self._taken(taken, attempt, marked)
        if not left_out.num_rows:
            return result
        sent = result.sent
        if self.late_to is not None:
            target, columns = self.late_to
            late_rows = left_out.select(list(columns)).rename_columns(list(columns.values()))
            partitions = _targets(late_rows, target[0], target[2])
            sent = sent | _send(self.places, (target,), [(late_rows, partitions)], attempt)
        return replace(result, rows_in=num_rows(rows), sent=sent, late=num_rows(left_out))

    def _taken(self, rows: pa.Table, attempt: str, marked: frozenset[int]) -> Result:
        """What becomes of the rows that are not late, if there are any, and of those that fall due."""
        if not rows.num_rows and not marked:
            return Result(attempt, 0)
        reads = Reads()
        counted, store, cache = self.places.open()
        partitions = partition_of(rows["_hash"].to_numpy(), self.table.partitions)
        written: list[Sst] = []
        emitted: list[tuple[pa.Table, ...]] = []
        event_ms: list[int] = []
        due_ms: list[int] = []
        # One partition a task is what Spark's plan gives; correct for any number of them.
        for partition in sorted(marked.union(np.unique(partitions).tolist())):
            mine = rows if (partitions == partition).all() else rows.filter(partitions == partition)
            made = self._merge(mine, partition, store, cache, reads, marked=partition in marked)
            if self.only_checks:
                continue
            sst, latest = self._write(made.new, partition, store, cache)
            written += [sst] if sst else []
            emitted += [made.emitted] if made.emitted else []
            event_ms += [latest] if latest is not None else []
            due_ms += [made.next_ms] if made.next_ms is not None else []
        sent: dict[str, dict[int, SentTo]] = {}
        if self.outputs and emitted:
            tables = [pa.concat_tables(parts) for parts in zip(*emitted, strict=True)]
            # One table is for all outputs.
            each = tables if len(tables) > 1 else tables * len(self.outputs)
            targets = [
                _targets(rows, channel, count) for rows, (channel, _, count) in zip(each, self.outputs, strict=True)
            ]
            sent = _send(self.places, self.outputs, list(zip(each, targets, strict=True)), attempt)
        taken = counted.take() + looked_up(reads)
        return Result(
            attempt,
            num_rows(rows),
            tuple(written),
            sent,
            taken,
            cache.ranged_objects(),
            max(event_ms, default=None),
            next_due_ms=min(due_ms, default=None),
        )

    def _merge(
        self, rows: pa.Table, partition: int, store: ObjectStore, cache: SstCache, reads: Reads, *, marked: bool
    ) -> Made:
        """Merge the rows of one state partition, and where it is `marked` those that fall due."""
        count = self.table.partitions
        ssts = sorted_runs.touching(self.ssts, partition, count)
        stored = TableRows(store, cache, self.table, ssts, self.step.clock_ms, reads)
        return self.step.made(rows, stored, sorted_runs.bounds(partition, count) if marked else None)

    def _write(
        self, new: pa.Table, partition: int, store: ObjectStore, cache: SstCache
    ) -> tuple[Sst | None, int | None]:
        """The SST of one state partition's new rows, if there are any, and the largest event time written."""
        if new.num_rows == 0:
            return None, None
        rows, latest = self.step.with_expiry(new)
        app, stage = self.places.app, self.places.stage
        sst = writer.write(store, cache, app=app, stage=stage, table=self.table, partition=partition, rows=rows)
        return sst, latest
