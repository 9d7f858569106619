"""What Structured Streaming's sources in Python do: plan batches and read them.

Planning runs in one process for each source on the driver, reading in Spark's Python workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...store.objects.counting import CountingStore
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from ...store.objects.shared_counts import SharedCounts
from ..kafka.messages import check_count, decode
from ..kafka.records import Message, Truncation, read_range
from ..kafka.topics import offsets
from .data_source import Private
from .planner import ChannelPlanner, Pace, Position, TopicPlanner, request_ids
from .worker import configure_worker

__all__ = ["ChannelReader", "TopicReader"]


@dataclass(frozen=True)
class _Range(InputPartition):
    """Offsets start to end - 1 of one Kafka partition; for a channel, the attempts whose messages count."""

    topic: str
    partition: int
    start: int
    end: int
    attempts: frozenset[str] = frozenset()
    rows: int | None = None
    """For a channel: how many rows these attempts sent there."""


def _ranges(topic: str, start: Position, end: Position, attempts: frozenset[str] = frozenset()) -> list[_Range]:
    known = start.offsets + (0,) * (len(end.offsets) - len(start.offsets))
    counts: Sequence[int | None] = [None] * len(end.offsets)
    # Not known where a reader began in the middle of a channel.
    if end.consumed and start.consumed:
        counts = [sent - read for sent, read in zip(end.consumed, start.consumed, strict=True)]
    return [
        _Range(topic, partition, first, last, attempts, rows)
        for partition, (first, last, rows) in enumerate(zip(known, end.offsets, counts, strict=True))
        # Where there are only markers, and what failed attempts left, nothing is read.
        if first < last and rows != 0
    ]


class _Reader(DataSourceStreamReader):
    """What both sources share: options, and Spark's offsets as `Position`."""

    def __init__(self, options: dict[str, str], schema: StructType, private: Private) -> None:
        self._private = private
        # Spark hands the names over in lower case.
        self._options = {name.lower(): value for name, value in options.items()}
        self._schema = schema
        # Made where it is first used: this object also travels to workers, which plan nothing.
        self._planner: Any = None

    @property
    def _kafka(self) -> dict[str, str]:
        said = {name[6:]: value for name, value in self._options.items() if name.startswith("kafka.")}
        return {**said, **self._private.kafka}

    @property
    def _input(self) -> str:
        return self._options.get("input", self._options["subscribe"])

    @property
    def _patience_s(self) -> float:
        return float(self._options.get("patiences", 120))

    @property
    def _max_records(self) -> int | None:
        limit = self._options.get("maxoffsetspertrigger")
        return int(limit) if limit else None

    def _pace(self) -> Pace:
        flag = self._options.get("hold", "")
        held = Path(flag).exists if flag else lambda: False
        return Pace(int(self._options.get("triggerms", 0)) / 1000, held=held)

    def _open_store(self) -> ObjectStore:
        # Planning has a process of its own, which Spark may have started with less than the driver was given since.
        os.environ.update(self._private.environ)
        store = open_store(self._options["store"], patience_s=self._patience_s, settings=self._private.s3)
        folder = self._options.get("counts", "")
        return CountingStore(store, SharedCounts(Path(folder) / str(os.getpid())).add) if folder else store

    def _plan(self) -> Any:
        raise NotImplementedError

    def _messages(self, part: _Range, truncation: Truncation | None = None) -> Iterator[Sequence[Message]]:
        return read_range(
            self._kafka,
            part.topic,
            part.partition,
            part.start,
            part.end,
            patience_s=self._patience_s,
            truncation=truncation,
        )

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802  Spark's name
        if self._planner is None:
            # At a query's end Spark hangs up, and its own loop then fails to tell it: nobody's news.
            sys.excepthook = _all_but_a_hung_up_connection
            self._planner = self._plan()
        at = Position.of(start)
        if at.input != self._input:
            raise AssertionError(f"Spark hands {self._input!r} an offset of {at.input!r}")
        return self._planner.latest(at).json()  # type: ignore[no-any-return]


def _all_but_a_hung_up_connection(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError | ConnectionResetError | EOFError):
        sys.__excepthook__(kind, error, trace)


class TopicReader(_Reader):
    """Reads a user's Kafka topic."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Spark's hook."""
        # Only of a query of the user's own: a stage's checkpoint always says where it is.
        return Position(self._input, offsets(self._kafka, self._options["subscribe"])[0]).json()

    def _plan(self) -> TopicPlanner:
        options = self._options
        requests: Callable[[], tuple[str, ...]] = tuple
        if "store" in options:
            requests = partial(request_ids, self._open_store(), options["app"])
        return TopicPlanner(
            self._kafka,
            options["subscribe"],
            pace=self._pace(),
            max_records=self._max_records,
            patience_s=self._patience_s,
            requests=requests,
            handled=frozenset(filter(None, options.get("handled", "").split(","))),
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Spark's hook."""
        return _ranges(self._options["subscribe"], Position.of(start), Position.of(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Spark's hook."""
        assert isinstance(partition, _Range)  # noqa: S101  what partitions() made
        configure_worker()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for messages in self._messages(partition):
            stamps = [message.timestamp() for message in messages]
            columns = [
                pa.array([message.key() for message in messages], pa.binary()),
                pa.array([message.value() for message in messages], pa.binary()),
                pa.repeat(pa.scalar(partition.topic), len(messages)),
                pa.repeat(pa.scalar(partition.partition, pa.int32()), len(messages)),
                pa.array([message.offset() for message in messages], pa.int64()),
                pa.array([stamp for _, stamp in stamps], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
                # librdkafka counts the kinds from "not available" = 0, Kafka and Spark from CreateTime = 0.
                pa.array([kind - 1 for kind, _ in stamps], pa.int32()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class ChannelReader(_Reader):
    """Reads a repartition topic."""

    def _plan(self) -> ChannelPlanner:
        options = self._options
        return ChannelPlanner(
            self._open_store(),
            options["app"],
            options["upstream"],
            self._input,
            pace=self._pace(),
            max_records=self._max_records,
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Spark's hook."""
        if self._planner is None:
            self._planner = self._plan()
        first, last = Position.of(start), Position.of(end)
        return _ranges(self._options["subscribe"], first, last, self._planner.attempts(first.version, last.version))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Spark's hook."""
        assert isinstance(partition, _Range)  # noqa: S101  what partitions() made
        configure_worker()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        rows = 0
        truncation = Truncation() if partition.rows is not None else None
        for messages in self._messages(partition, truncation):
            for batch in decode(messages, partition.attempts, schema):
                rows += batch.num_rows
                yield batch
        if truncation is not None:
            truncation.check(complete=rows == partition.rows)
        check_count(partition.topic, partition.partition, partition.start, partition.end, rows, partition.rows)
