"""Messages of users' topics as Arrow columns, in the layout of Spark's Kafka source or of archives, and vice versa."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.archive.columns import HEADERS, SCHEMA, TIME
from .protocol import Headers, Message, Run

SPARK_SOURCE_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
    }
)
"""Columns of Structured Streaming's Kafka source, in order. Its option `includeHeaders` adds `headers`."""


class MessageColumns:
    """Arrow columns of messages of one topic, in runs of one partition each. A column is built on its first use."""

    def __init__(self, *runs: Run) -> None:
        self._runs = runs
        self._messages: Run = runs[0] if len(runs) == 1 else [*chain.from_iterable(runs)]
        self._built: dict[str, pa.Array] = {}
        if isinstance(self._messages, ArchivedMessages):
            columns = zip(self._messages.records.column_names, self._messages.records.columns, strict=True)
            self._built = {name: column.combine_chunks() for name, column in columns}

    def to_spark_batch(
        self, schema: pa.Schema = SPARK_SOURCE_SCHEMA, needed: Collection[str] | None = None
    ) -> pa.RecordBatch:
        """Return one row per message. `schema` has the columns of Spark's Kafka source, with or without `headers`.

        Columns that are not in `needed` are null, which saves up to a third of a read's time. If `needed` is None, all
        columns are filled.
        """
        count = len(self._messages)
        columns = [
            self._get(field.name).cast(field.type)
            if needed is None or field.name in needed
            else pa.nulls(count, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def take(self, rows: npt.NDArray[np.int64]) -> MessageColumns:
        """Return the columns of some rows, in ascending order."""
        if isinstance(self._messages, ArchivedMessages):
            return MessageColumns(ArchivedMessages(self._messages.records.take(pa.array(rows))))
        parts = np.split(rows, np.searchsorted(rows, self._starts[1:]))
        return MessageColumns(*([self._messages[row] for row in part.tolist()] for part in parts if len(part)))

    def by_run(self) -> Iterator[tuple[int, MessageColumns]]:
        if len(self._runs) == 1:
            yield self._messages[0].partition(), self
            return
        for start, run in zip(self._starts.tolist(), self._runs, strict=True):
            yield run[0].partition(), _RunColumns(self, run, start)

    def to_archive_batch(self) -> pa.RecordBatch:
        return self.to_batch(SCHEMA)

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._get(name) for name in schema.names], schema=schema)

    def _get(self, name: str) -> pa.Array:
        if name not in self._built:
            build: Callable[[], pa.Array] = getattr(self, f"_{name}")
            self._built[name] = build()
        return self._built[name]

    def _key(self) -> pa.Array:
        return pa.array([message.key() for message in self._messages], pa.binary())

    def _value(self) -> pa.Array:
        return pa.array([message.value() for message in self._messages], pa.binary())

    @property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *map(len, self._runs[:-1])])

    def _topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._messages[0].topic(), pa.string()), len(self._messages))

    def _partition(self) -> pa.Array:
        partitions = np.array([run[0].partition() for run in self._runs], np.int32)
        return pa.array(partitions.repeat([*map(len, self._runs)]))

    def _offset(self) -> pa.Array:
        return pa.array(np.concatenate([_offsets(run) for run in self._runs]))

    def _timestamp(self) -> pa.Array:
        kinds, times = zip(*[message.timestamp() for message in self._messages], strict=True)
        # librdkafka's kinds start with "not available" = 0, those of Kafka and Spark with CreateTime = 0.
        self._built["timestampType"] = pa.array([kind - 1 for kind in kinds], pa.int32())
        return pa.array(times, TIME)

    def _timestampType(self) -> pa.Array:  # noqa: N802  the column's name
        self._get("timestamp")
        return self._built["timestampType"]

    def _headers(self) -> pa.Array:
        message_headers = [message.headers() for message in self._messages]
        if not any(message_headers):
            return pa.nulls(len(message_headers), HEADERS)
        return pa.array(
            [
                [{"key": name, "value": value} for name, value in headers] if headers else None
                for headers in message_headers
            ],
            HEADERS,
        )


def _offsets(run: Run) -> npt.NDArray[np.int64]:
    count, first = len(run), run[0].offset()
    if run[-1].offset() - first == count - 1:  # no gaps: no transactions and no compaction
        return np.arange(first, first + count, dtype=np.int64)
    return np.array([message.offset() for message in run], np.int64)


class _RunColumns(MessageColumns):
    """Columns of one run, as slices of the columns that all runs share."""

    def __init__(self, whole: MessageColumns, run: Run, start: int) -> None:
        super().__init__(run)
        self._whole, self._start = whole, start

    def _get(self, name: str) -> pa.Array:
        return self._whole._get(name).slice(self._start, len(self._messages))


class ArchivedMessage:
    """One archived record with the interface of a Kafka message."""

    __slots__ = ("_records", "_row")

    def __init__(self, records: pa.Table, row: int) -> None:
        self._records, self._row = records, row

    def topic(self) -> str:
        return str(self._column_value("topic"))

    def partition(self) -> int:
        return int(self._column_value("partition"))

    def offset(self) -> int:
        return int(self._column_value("offset"))

    def key(self) -> bytes | None:
        key: bytes | None = self._column_value("key")
        return key

    def value(self) -> bytes | None:
        value: bytes | None = self._column_value("value")
        return value

    def headers(self) -> Headers | None:
        headers = self._records["headers"][self._row].as_py()
        return headers and [(header["key"], header["value"]) for header in headers]

    def timestamp(self) -> tuple[int, int]:
        # librdkafka's kinds are Kafka's plus one.
        return int(self._column_value("timestampType")) + 1, int(self._records["timestamp"][self._row].value)

    def _column_value(self, column: str) -> Any:
        return self._records[column][self._row].as_py()


class ArchivedMessages(Sequence[Message]):
    """Archived records as a sequence of messages. `MessageColumns` uses the columns, without message objects."""

    def __init__(self, records: pa.Table) -> None:
        self.records = records
        """Rows with the columns of `archive.columns.SCHEMA`."""

    def __len__(self) -> int:
        return int(self.records.num_rows)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return ArchivedMessage(self.records, index % len(self))

    def __iter__(self) -> Iterator[Message]:
        return (ArchivedMessage(self.records, row) for row in range(len(self)))
