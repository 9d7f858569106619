"""Readers of Structured Streaming's Python sources, which plan batches and read them.

A process or thread on the driver plans the batches of one source (`spark/planner_server.py`). Spark's Python workers
read the records.
"""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...common import instants, runtime
from ...errors import Gone
from ...state.records import Position, ranges
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent
from ...store.archive.reading import Archives
from ...store.objects.counting import CountingStore, SharedCounts
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.sst.hashing import KeyShare
from ...store.versions.keys import is_source
from ..kafka.archived import ArchivedKafka
from ..kafka.columns import MessageColumns
from ..kafka.login import uses_aws
from ..kafka.messages import decode_rows, read_rows
from ..kafka.open import open_kafka
from ..kafka.protocol import Chunk, Kafka, Patience, Run, kafka_patience
from .groups import Group, group_ranges
from .options import PrivateOptions, SourceOptions
from .planner import ChannelPlanner, Pace, TopicPlanner
from .spark_types import arrow_schema_of
from .spool import InputSpool
from .wake import PlannerFiles
from .worker import configure_worker

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class _Ranges(InputPartition):
    """Offsets that one task reads from some Kafka partitions. For a channel, only messages of `attempts` count."""

    topic: str
    parts: Group
    attempts: frozenset[str] = frozenset()


def _ranges_by_task(
    topic: str, start: Position, end: Position, attempts: frozenset[str], tasks: int, *, can_split: bool = False
) -> list[_Ranges]:
    parts = tuple(ranges(start.offsets, end.offsets, start.consumed, end.consumed))
    return [_Ranges(topic, group, attempts) for group in group_ranges(parts, tasks, can_split=can_split)]


class _SourceReader(DataSourceStreamReader):
    """Common part of the readers of topics and channels."""

    _planner: TopicPlanner | ChannelPlanner
    """Planner, created on first use. Workers, to which readers are pickled, create no planner."""
    _needed_columns: frozenset[str] | None = None

    def __init__(self, options: SourceOptions, schema: StructType, private: PrivateOptions) -> None:
        self._options = options
        self._schema = schema
        self._private = private
        self._last_end: dict[str, Any] = {}
        # Spark creates readers after the query has started, when the needed columns and shares are known.
        self._share = self._files.key_share(options.stage, options.input) if self._files is not None else None

    def latestOffset(  # noqa: N802  Spark's name
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`.

        Spark before 4.2 gives no `start`: the batch then begins at the end of the last batch.
        """
        at = Position.from_json(start or self._last_end)
        if at.input != self._options.input:
            raise AssertionError(f"Spark hands {self._options.input!r} an offset of {at.input!r}")
        self._last_end = self._planner.plan_end(at).to_json()
        return self._last_end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with self._private.error_tag.tagging():
            assert isinstance(partition, _Ranges)  # noqa: S101  what partitions() made
            configure_worker()
            yield from self._read(partition, arrow_schema_of(self._schema))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges to read, by task. Stores `end`, which a restarted query needs on Spark before 4.2."""
        self._last_end = end
        options, first, last = self._options, Position.from_json(start), Position.from_json(end)
        attempts = self._attempts(first.version, last.version)
        # The row counts of a channel are known only for whole ranges.
        can_split = options.in_any_order and not options.upstream
        return _ranges_by_task(options.topic, first, last, attempts, options.tasks, can_split=can_split)

    def _attempts(self, _start: int, _end: int) -> frozenset[str]:
        return frozenset()

    @abstractmethod
    def _read(self, partition: _Ranges, schema: pa.Schema) -> Iterator[pa.RecordBatch]: ...

    def stop(self) -> None:
        """End a planner's process without output if Spark has closed the connection because the query ended.

        Otherwise pyspark would try to send the error over the closed connection, and would print a second error. A
        planner that is a thread prints nothing when it ends.
        """
        error = sys.exception()
        if not runtime.is_main_thread():
            return
        if isinstance(error, BrokenPipeError | ConnectionResetError | EOFError) and not any(
            # An error raised in slackwater's methods concerns a different connection: to Kafka, or to the store.
            frame.f_code.co_filename == __file__
            for frame, _ in walk_tb(error.__traceback__)
        ):
            os._exit(0)

    def _open_kafka(self, *, plans: bool = False) -> Kafka:
        if uses_aws(self._private.kafka):
            self._complete_environment()
        return open_kafka(self._private.kafka, self._counted_store if plans else self._store, finds_new=plans)

    def _complete_environment(self) -> None:
        # Spark may have started this process before the driver's environment was complete.
        os.environ.update(self._private.environ)

    @property
    def _kafka_with_archive(self) -> Kafka:
        options, columns = self._options, SCHEMA.names
        if self._needed_columns is not None and not options.spool:
            columns = [*self._needed_columns.union(("offset",), self._share.columns if self._share is not None else ())]
        archives = Archives(self._store, options.app if options.store else "")
        return ArchivedKafka(
            self._open_kafka(), archives, archive_first=options.end_offsets is not None, columns=columns
        )

    def _store(self) -> ObjectStore:
        self._complete_environment()
        return open_store(self._options.store, patience_s=self._options.patience_s, settings=self._private.s3)

    def _counted_store(self) -> ObjectStore:
        """Return the store of a planner, which counts requests for the driver."""
        options, store = self._options, self._store()
        if not options.counts_folder:
            return store
        # Planners of several inputs share a process.
        file = Path(options.counts_folder) / f"{os.getpid()}-{options.input}"
        return CountingStore(store, SharedCounts(file).add)

    @contextmanager
    def _spool_records(self, partition: _Ranges) -> Iterator[Callable[[MessageColumns], None]]:
        if not self._options.spool:
            yield lambda _columns: None
            return
        spool = InputSpool(Path(self._options.spool))
        with ExitStack() as stack:
            writers = {
                part.partition: stack.enter_context(
                    spool.open_writer(partition.topic, Extent(part.partition, part.first, part.last))
                )
                for part in partition.parts
            }

            def keep(columns: MessageColumns) -> None:
                for number, run in columns.by_run():
                    if (writer := writers[number]) is not None:
                        writer.add(run)

            yield keep

    @property
    def _files(self) -> PlannerFiles | None:
        return PlannerFiles(Path(self._options.planner_folder)) if self._options.planner_folder else None

    def _pace(self) -> Pace:
        files, stage = self._files, self._options.stage
        return Pace(self._options.trigger_ms / 1000, is_held=lambda: files is not None and files.is_held(stage))

    def _woken_version(self, handled: int) -> int:
        files, options = self._files, self._options
        return (
            files.due_wake_version(options.stage, handled, instants.now_ms())
            if files is not None and options.starts_woken_batches
            else 0
        )


class TopicSourceReader(_SourceReader):
    """Reader of a user's Kafka topic: the rows and columns that the stage needs. All other columns are null."""

    def __init__(self, options: SourceOptions, schema: StructType, private: PrivateOptions) -> None:
        super().__init__(options, schema, private)
        self._needed_columns = (
            self._files.needed_columns(options.stage, options.input) if self._files is not None else None
        )

    @cached_property
    def _planner(self) -> TopicPlanner:  # type: ignore[override]
        options, kafka = self._options, self._open_kafka(plans=True)
        return TopicPlanner(
            kafka,
            options.topic,
            topic_id=options.topic_id,
            pace=self._pace(),
            max_records=options.max_records,
            patience=Patience(options.topic, options.patience_s)
            if is_source(options.topic)
            else kafka_patience(kafka, options.patience_s),
            requests=self._files.requested_snapshots
            if self._files is not None and options.starts_snapshot_batches
            else tuple,
            handled_snapshots=set(options.handled_snapshots),
            end_offsets=options.end_offsets,
            wake_version=self._woken_version,
            hold_offsets=self._bounds,
        )

    def _bounds(self) -> tuple[int, ...] | None:
        return self._files.end_offsets(self._options.topic) if self._files is not None else None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        # Called only without a checkpoint, which stages always have.
        return Position(self._options.input, self._open_kafka().offset_bounds(self._options.topic)[0]).to_json()

    def _read(self, partition: _Ranges, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        kafka = self._kafka_with_archive
        with self._spool_records(partition) as keep:

            def keep_columns(chunk: Chunk) -> MessageColumns:
                columns = MessageColumns(*chunk)
                keep(columns)
                return columns

            read = map(keep_columns, self._read_ranges(kafka, partition))
            if self._share is None:
                yield from (columns.to_spark_batch(schema, self._needed_columns) for columns in read)
            else:
                yield from _combine_batches(self._rows_of_share(self._share, read, schema))

    def _read_ranges(self, kafka: Kafka, partition: _Ranges) -> Iterator[Chunk]:
        options = self._options
        try:
            yield from kafka.read_ranges(partition.topic, partition.parts, patience_s=options.patience_s)
        except Gone as error:
            if error.resume_at and is_source(options.topic) and options.end_offsets is None:
                reset = f"slackwater reset {options.app} --topic {options.topic} --to-offset {error.resume_at}"
                error.hint += f"; to continue at the next file that exists: {reset}"
            raise

    def _rows_of_share(
        self, share: KeyShare, read: Iterable[MessageColumns], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for columns in read:
            indexes = np.flatnonzero(share.select_rows(columns.to_spark_batch(schema, share.columns)))
            if len(indexes):
                yield columns.take(indexes).to_spark_batch(schema, self._needed_columns)


def _combine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in fewer, larger batches, because each batch has a fixed cost in Spark."""
    waiting: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        waiting.append(batch)
        num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + batch.get_total_buffer_size()
        if num_rows >= _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, num_rows, num_bytes = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


class ChannelSourceReader(_SourceReader):
    """Reads a repartition topic."""

    @cached_property
    def _planner(self) -> ChannelPlanner:  # type: ignore[override]
        options, files = self._options, self._files
        return ChannelPlanner(
            self._counted_store(),
            options.app,
            options.upstream,
            options.input,
            pace=self._pace(),
            max_records=options.max_records,
            wake_version=self._woken_version,
            committed_version=lambda: None if files is None else files.committed_version(options.upstream),
        )

    def _attempts(self, start: int, end: int) -> frozenset[str]:
        return self._planner.counted_attempts(start, end)

    def _read(self, partition: _Ranges, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._spool_records(partition) as keep:

            def decoded(run: Run) -> Iterator[pa.RecordBatch]:
                keep(MessageColumns(run))
                return decode_rows(run, partition.attempts, schema)

            topic, parts, patience_s = partition.topic, partition.parts, self._options.patience_s
            rows = read_rows(self._kafka_with_archive, topic, parts, decoded, patience_s=patience_s)
            if (share := self._share) is not None:
                rows = (batch.filter(pa.array(share.select_rows(batch))) for batch in rows)
            yield from _combine_batches(rows)
