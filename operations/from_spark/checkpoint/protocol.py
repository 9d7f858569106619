"""Read-only interface to the checkpoint of a Spark query."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

DELETED = "_deleted"
"""Boolean column of changes: True for a deleted key, whose values are undefined."""
APPENDED = "_appended"
"""Boolean column of changes: True if the row's list has only the elements that were appended."""

EXISTS, DUE_AT = "has_state", "due_at"
"""Last two columns of a function's state with a timeout: a flag for an existing state, and the time of the timeout."""


def has_timeout(values: pa.Schema) -> bool:
    """Return True if the columns of a function's state end with those of a timeout."""
    names = values.names[-2:]
    return len(names) == 2 and names[0].startswith(EXISTS) and names[1].startswith(DUE_AT)


class ReadableTable(Protocol):
    """One table of a query's state."""

    @property
    def name(self) -> str:
        """Name that distinguishes the query's tables, such as `left`; empty for the first table."""

    @property
    def kind(self) -> str:
        """Kind of the operator that keeps the table, such as `aggregate`."""

    @property
    def key(self) -> pa.Schema:
        """Columns that identify a row, at least one."""

    @property
    def values(self) -> pa.Schema:
        """Columns outside the key. Names are unique over key and values."""


@dataclass(frozen=True, slots=True)
class ReadableBatch:
    """One committed batch of a query."""

    id: int
    offsets: Mapping[str, tuple[int, ...]]
    """Offsets of each source after the batch: for a Kafka topic, the next offset to read, by partition."""
    watermark_ms: int | None
    """Watermark of the batch, milliseconds since 1970 UTC; None before the first watermark."""
    next_watermark_ms: int | None
    committed_ms: int
    """Time of Spark's commit, milliseconds since 1970 UTC."""
    non_kafka: frozenset[str] = frozenset()
    """Sources that are not Kafka topics, whose offsets count files or seconds instead of records."""


class ReadableCheckpoint(Protocol):
    """Checkpoint of a query that may be running and removing old files.

    All methods raise `Unavailable` if the storage does not answer. Reading data that was removed raises `Gone`, and
    never returns a part of the data or another batch's data.
    """

    @property
    def location(self) -> str:
        """Folder or `s3://bucket/prefix`, for use in messages."""

    @property
    def query(self) -> str:
        """Id of the query."""

    @property
    def tables(self) -> Sequence[ReadableTable]:
        """Tables of the query's state, at least one; the query's own table is first."""

    def committed_batches(self) -> range:
        """Return the known committed batches, without gaps; empty before the first commit."""

    def readable_batches(self, up_to: int | None = None, /) -> range:
        """Return the batches whose whole state is available, up to `up_to`, by default up to the newest."""

    def read_batch(self, batch: int, /) -> ReadableBatch:
        """Return a committed batch. Raises `Gone`."""

    def read_rows(self, table: ReadableTable, batch: int, /) -> Iterable[pa.RecordBatch]:
        """Return a table's rows (key and values) at the end of a batch. Raises `Gone`."""

    def read_changes(self, table: ReadableTable, after: int, up_to: int, /) -> Iterable[pa.Table]:
        """Return a table's changes in the batches `after` + 1 to `up_to`, one table for each batch.

        A table of changes has the key, the values and `DELETED`, with one row for each changed key. Raises `Gone`, also
        if the checkpoint keeps no changes.
        """


class FollowedCheckpoint(ReadableCheckpoint, Protocol):
    """Checkpoint of a running query whose batches are read soon after they are committed."""

    def newest_batch(self) -> int:
        """Return the last committed batch, -1 for none. Thread-safe."""

    def read_changes(
        self, table: ReadableTable, after: int, up_to: int, /, *, at_once: int = 1, appended: bool = False
    ) -> Iterable[pa.Table]:
        """Return a table's changes, one table for every `at_once` consecutive batches.

        With `appended`, tables of lists may have the column `APPENDED`.
        """
