"""Read-only interface to what `attach` follows and `adopt` reads: the checkpoint of a Spark query, or a topic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from ...store.versions.manifest import Input, Manifest

DELETED = "_deleted"
"""Boolean column of tables of changes: True for a deleted key, whose values are undefined."""
LOGGED = "_logged"
"""Column of a log: number by which rows of one key are ordered, then by `RECORD_OFFSET`; the last row is the key's."""
APPENDED = "_appended"
"""Boolean column of tables of changes: True if the row's list has only the elements that were appended."""

EXISTS, DUE_AT = "has_state", "due_at"
"""Last two columns of the state of a function with a timeout: True if the state exists, and the timeout's time."""


def has_timeout(values: pa.Schema) -> bool:
    """Return True if the state of a user's function has a timeout: its last columns are `EXISTS` and `DUE_AT`."""
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
        """Columns outside the key. No two columns of key and values have the same name."""


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
    """Sources that are not Kafka topics. Their offsets count files or seconds instead of records."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's ids of the topics, if known."""
    read_ms: int = 0
    """For a topic: time at which it had no records after `offsets`, milliseconds since 1970 UTC; else 0."""


class ClaimNeeded(Exception):
    """The tables have new columns, or a topic was created again. A new claim records the change."""


class ReadableCheckpoint(Protocol):
    """Checkpoint of a query, which may still run and remove old files.

    All methods raise `Unavailable` if the storage does not answer. Reading removed data raises `Gone`; incomplete data,
    or data of a different batch, is never returned.
    """

    @property
    def location(self) -> str:
        """Folder or `s3://bucket/prefix` of the checkpoint, for messages."""

    @property
    def query(self) -> str:
        """Id of the query."""

    @property
    def tables(self) -> Sequence[ReadableTable]:
        """Tables of the query's state, at least one; the query's own table is first."""

    def committed_batches(self) -> range:
        """Return the known committed batches, without gaps; empty before the first commit."""

    def readable_batches(self, up_to: int | None = None, /) -> range:
        """Return the batches whose whole state is available, up to `up_to`, by default the newest."""

    def read_batch(self, batch: int, /) -> ReadableBatch:
        """Return a committed batch. Raises `Gone`."""

    def read_rows(self, table: ReadableTable, batch: int, /) -> Iterable[pa.RecordBatch]:
        """Return a table's rows (key and values) at the end of a batch. Raises `Gone`.

        Rows with the columns `DELETED` and `LOGGED` are a log.
        """

    def read_changes(self, table: ReadableTable, after: int, up_to: int, /) -> Iterable[pa.Table]:
        """Return a table's changes in the batches `after` + 1 to `up_to`, one table for each batch.

        A table of changes has the key, the values and `DELETED`, with one row for each changed key. Raises `Gone`, also
        if the checkpoint keeps no changes.
        """


class FollowedCheckpoint(ReadableCheckpoint, Protocol):
    """Checkpoint of a running query, or a topic, whose batches are read soon after they are committed."""

    @property
    def formats(self) -> Mapping[str, str]:
        """Formats of a topic's keys and values, as a user names them; empty for a checkpoint."""

    def resume(self, head: Manifest | None, /) -> None:
        """Continue after the last batch in a version.

        Checkpoints ignore the call, because Spark numbers their batches.
        """

    def claimed_inputs(self, draft: Manifest, /) -> Mapping[str, Input]:
        """Return the inputs of a claim: those of the previous version, except for a topic that was created again."""

    def newest_batch(self) -> int:
        """Return the last committed batch, -1 for none. Thread-safe."""

    def read_changes(
        self, table: ReadableTable, after: int, up_to: int, /, *, at_once: int = 1, appended: bool = False
    ) -> Iterable[pa.Table]:
        """Return a table's changes in the batches `after` + 1 to `up_to`, one table per `at_once` batches.

        With `appended`, tables of lists may have the column `APPENDED`.
        """
