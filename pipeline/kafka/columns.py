"""Messages of users' topics as columns: those of Structured Streaming's Kafka source, and of archives, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.archive.columns import HEADERS, SCHEMA, TIME
from .protocol import Headers, Message

SOURCE = pa.schema(
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
"""The columns of Structured Streaming's Kafka source, in its order. With its option `includeHeaders`, `headers` too."""


class Columns:
    """Columns of messages of one partition, at least one, each made once, and only when it is asked for."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._made: dict[str, pa.Array] = {}
        if isinstance(messages, ArchivedMessages):
            columns = zip(messages.records.column_names, messages.records.columns, strict=True)
            self._made = {name: column.combine_chunks() for name, column in columns}

    def source(self, schema: pa.Schema = SOURCE, needed: Collection[str] | None = None) -> pa.RecordBatch:
        """Those of a schema, which is `SOURCE` or that with `headers`: a row for each message.

        Those that are not among the `needed`, where these are said, are null: what they take is a third of reading.
        """
        count = len(self._messages)
        columns = [
            self._get(each.name).cast(each.type)
            if needed is None or each.name in needed
            else pa.nulls(count, each.type)
            for each in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def take(self, rows: npt.NDArray[np.int64]) -> Columns:
        """Of some of the messages, at least one."""
        if isinstance(self._messages, ArchivedMessages):
            return Columns(ArchivedMessages(self._messages.records.take(pa.array(rows))))
        return Columns([self._messages[row] for row in rows.tolist()])

    def records(self) -> pa.RecordBatch:
        """All of them, as an archive has them."""
        return self.of(SCHEMA)

    def of(self, schema: pa.Schema) -> pa.RecordBatch:
        """Those of some columns of an archive."""
        return pa.RecordBatch.from_arrays([self._get(name) for name in schema.names], schema=schema)

    def _get(self, name: str) -> pa.Array:
        if name not in self._made:
            made: Callable[[], pa.Array] = getattr(self, f"_{name}")
            self._made[name] = made()
        return self._made[name]

    def _key(self) -> pa.Array:
        return pa.array([message.key() for message in self._messages], pa.binary())

    def _value(self) -> pa.Array:
        return pa.array([message.value() for message in self._messages], pa.binary())

    def _topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._messages[0].topic(), pa.string()), len(self._messages))

    def _partition(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._messages[0].partition(), pa.int32()), len(self._messages))

    def _offset(self) -> pa.Array:
        count, first = len(self._messages), self._messages[0].offset()
        if self._messages[-1].offset() - first == count - 1:  # as in a topic without transactions and compaction
            return pa.array(np.arange(first, first + count, dtype=np.int64))
        return pa.array([message.offset() for message in self._messages], pa.int64())

    def _timestamp(self) -> pa.Array:
        kinds, times = zip(*[message.timestamp() for message in self._messages], strict=True)
        # librdkafka counts the kinds from "not available" = 0, Kafka and Spark from CreateTime = 0.
        self._made["timestampType"] = pa.array([kind - 1 for kind in kinds], pa.int32())
        return pa.array(times, TIME)

    def _timestampType(self) -> pa.Array:  # noqa: N802  the column's name
        self._get("timestamp")
        return self._made["timestampType"]

    def _headers(self) -> pa.Array:
        found = [message.headers() for message in self._messages]
        if not any(found):
            return pa.nulls(len(found), HEADERS)
        return pa.array([[{"key": n, "value": v} for n, v in each] if each else None for each in found], HEADERS)


class ArchivedMessage:
    """A record of an archive, read as from Kafka."""

    __slots__ = ("_records", "_row")

    def __init__(self, records: pa.Table, row: int) -> None:
        self._records, self._row = records, row

    def topic(self) -> str:
        return str(self._of("topic"))

    def partition(self) -> int:
        return int(self._of("partition"))

    def offset(self) -> int:
        return int(self._of("offset"))

    def key(self) -> bytes | None:
        found: bytes | None = self._of("key")
        return found

    def value(self) -> bytes | None:
        found: bytes | None = self._of("value")
        return found

    def headers(self) -> Headers | None:
        found = self._records["headers"][self._row].as_py()
        return found and [(each["key"], each["value"]) for each in found]

    def timestamp(self) -> tuple[int, int]:
        # As librdkafka counts kinds.
        return int(self._of("timestampType")) + 1, int(self._records["timestamp"][self._row].value)

    def _of(self, column: str) -> Any:
        return self._records[column][self._row].as_py()


class ArchivedMessages(Sequence[Message]):
    """Records of an archive, read as from Kafka. Whoever wants columns gets them without making a message of each."""

    def __init__(self, records: pa.Table) -> None:
        self.records = records
        """In the columns of `archive.columns.SCHEMA`."""

    def __len__(self) -> int:
        return int(self.records.num_rows)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return ArchivedMessage(self.records, at % len(self))

    def __iter__(self) -> Iterator[Message]:
        return (ArchivedMessage(self.records, row) for row in range(len(self)))
