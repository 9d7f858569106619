"""What a Spark task of a micro-batch does in its Python worker, whatever its stage is: send rows to Kafka, and report.

What a task does counts when the driver names it in a manifest: a retried or speculative attempt leaves only orphans.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import TTLCache
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

from ...errors import BadRecord
from ...state.event_time import Times
from ...state.failing import StateFailed
from ...state.kinds.aggregate import num_partials, num_rows
from ...state.multi_input import by_input
from ...state.next_version import SentTo, TaskReport, Unsent
from ...store.sst.arrow_types import python_rows
from ...store.sst.hashing import hash_keys, partition_of
from ...store.versions.manifest import Manifest
from ..api.sink import Encoding, Sink
from ..api.topic import Repartition
from ..kafka.messages import RowTooLarge, send, split
from ..kafka.open import open_kafka
from ..kafka.protocol import MOST_RECORD, Kafka, TooLarge
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
    published_to: str = ""
    """The topic that a sink's records go to in the end, and which bounds how large they are."""
    rejects: bool = False
    """Whether records that are too large for it are reported (`TaskReport.unsent`), and do not fail the batch."""

    def partitions_of(self, rows: pa.Table) -> Partitions:
        """The Kafka partition of each row."""
        if not self.key:
            return np.zeros(rows.num_rows, np.int32)
        return partition_of(hash_keys(rows, self.key), self.partitions)


def output_topic_of(one: Repartition | Sink, base: Manifest, published: Mapping[str, str]) -> OutputTopic:
    """Where a batch on this version writes what is for a channel or a sink.

    `published` has the topics of sinks that are not published as they are declared.
    """
    if isinstance(one, Repartition):
        output = base.outputs[one.name]
        return OutputTopic(one.name, output.topic, len(output.ends), one.key)
    # A clone has no sinks but those that it was told to publish.
    topic = base.sinks[one.name].topic if one.name in base.sinks else ""
    to = published.get(one.name, one.name) if one.kind == "topic" else ""
    return OutputTopic(one.name, topic, encoding=one.encoding, published_to=to, rejects=one.on_error == "reject")


_MOST_PUBLISHED = MOST_RECORD - (64 << 10)
"""Bytes that a sink's record may have at most: on its way it is a row of a message."""
_LIMIT_S = 60.0
"""For so long what a topic says that it takes is believed."""
_limits: TTLCache[tuple[str, str], int] = TTLCache(1_000, _LIMIT_S)
"""By broker and topic."""


def check_sizes(
    kafka: Kafka, target: OutputTopic, records: pa.Table, version: int
) -> tuple[pa.Table, tuple[Unsent, ...]]:
    """A sink's records without those that its topic does not take, which are returned beside them.

    Raises `BadRecord` for the first where the sink rejects none.
    """
    sizes = outgoing.batch_bytes(records)
    most, place = int(sizes.max(initial=0)), (kafka.name, target.published_to)
    limit = _limits.get(place)
    if limit is None or most > limit:
        # It may have been raised since it was asked for.
        limit = _limits[place] = min(_limit(kafka, target.published_to) or _MOST_PUBLISHED, _MOST_PUBLISHED)
    if most <= limit:
        return records, ()
    large, unsent = np.flatnonzero(sizes > limit), list[Unsent]()
    for row, size in zip(records.take(pa.array(large)).to_pylist(), sizes[large].tolist(), strict=True):
        named = [(name[len(outgoing.HEADER) :], it) for name, it in row.items() if name.startswith(outgoing.HEADER)]
        carried = [(each["key"], each["value"]) for each in row.get(outgoing.HEADERS) or ()]
        headers = tuple(header for header in (*named, *carried) if header[1] is not None)
        words = TooLarge(row["key"], size, limit).words
        unsent.append(
            Unsent(target.name, row["key"], row["value"], headers, f"sink {target.name!r} at v{version}: {words}")
        )
        if not target.rejects:
            raise BadRecord(
                f"{unsent[0].why}; nothing was committed: raise what the topic takes, up to {_MOST_PUBLISHED:,}, or "
                'have such records set aside by sink(..., on_error="reject")'
            )
    return records.filter(pa.array(sizes <= limit)), tuple(unsent)


def _limit(kafka: Kafka, topic: str) -> int | None:
    """What a topic takes of a record of this size; None where nobody knows."""
    named = (kafka.properties.get(name, "none") for name in ("compression.type", "compression.codec"))
    # Of records that are compressed nobody knows before how large they are then.
    return None if any(codec != "none" for codec in named) else kafka.max_message_bytes(topic)


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
    ) -> tuple[dict[str, dict[int, SentTo]], tuple[Unsent, ...]]:
        """Send each target its rows, to the partition of each.

        Returns what was written, by target and partition, and what sinks' topics do not take. Raises `BadRecord` for a
        row that is larger than a message may be, or a record that is than a sink's topic takes.
        """
        sent, unsent = dict[str, dict[int, SentTo]](), tuple[Unsent, ...]()
        for target, rows, partitions in parts:
            if not target.topic:
                continue
            kafka, patience_s = open_kafka(self.places.kafka), self.places.patience_s
            if target.encoding is not None:
                rows, more = check_sizes(
                    kafka, target, outgoing.records(rows, target.encoding, patience_s), self.version
                )
                unsent, partitions = (*unsent, *more), np.zeros(rows.num_rows, np.int32)
            try:
                messages = list(split(rows, partitions))
            except RowTooLarge as error:
                raise self._too_large(target, error) from None
            if messages:
                ends = send(kafka, target.topic, messages, attempt.encode(), patience_s=patience_s)
                counts = np.bincount(partitions, minlength=target.partitions).tolist()
                sent[target.name] = {partition: SentTo(counts[partition], end) for partition, end in ends.items()}
        return sent, unsent

    def _too_large(self, target: OutputTopic, error: RowTooLarge) -> BadRecord:
        names = [name for name in target.key if name in error.row.schema.names]
        (key,) = python_rows(error.row.select(names))
        shown = ", ".join(f"{name}={repr(value)[:200]}" for name, value in key.items())
        what = "repartition topic" if target.encoding is None and target.key else "sink"
        return BadRecord(
            f"{what} {target.name!r} at v{self.version}: the row{' with ' if shown else ''}{shown} takes "
            f"{error.size:,} bytes, and a message between stages has {MOST_RECORD:,} at most: leave such rows out in "
            "the function, or hand on a part of them"
        )


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
        sent, unsent = self._send(parts, attempt)
        return TaskReport(attempt, rows.num_rows, sent=sent, unsent=unsent)

    def _parts(self, rows: pa.Table) -> list[tuple[pa.Table, Partitions]]:
        if self.rows:
            partitions = rows["_to"].to_numpy()
            return [(part, partitions[mine]) for mine, part in by_input(rows, self.rows)]
        numbers = [f"_to_{n}" for n in range(len(self.outputs))]
        plain = rows.drop_columns(numbers)
        return [(plain, rows[name].to_numpy()) for name in numbers]
