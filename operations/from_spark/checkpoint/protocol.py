"""The seam to a checkpoint of a query of Spark: what must be told of it. It is read, and never written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

DELETED = "_deleted"
"""Which rows of `ReadableCheckpoint.changes` say that a key is gone; their values mean nothing."""
APPENDED = "_appended"
"""Which rows of `FollowedCheckpoint.changes` have of their one value, a list, the elements behind those of before."""

EXISTS, DUE_AT = "has_state", "due_at"
"""Of a function's state with a timeout, the last two columns: whether the key has a state, and when it times out."""


def times_out(values: pa.Schema) -> bool:
    """Whether the columns of a function's state end with a timeout."""
    names = values.names[-2:]
    return len(names) == 2 and names[0].startswith(EXISTS) and names[1].startswith(DUE_AT)


class ReadableTable(Protocol):
    """One table of the state that a query keeps."""

    @property
    def name(self) -> str:
        """Empty for the query's own (first) table; of another one, what tells it from that, such as `left`."""

    @property
    def kind(self) -> str:
        """What the operator is that keeps it, such as `aggregate`."""

    @property
    def key(self) -> pa.Schema:
        """The columns that identify a row, at least one."""

    @property
    def values(self) -> pa.Schema:
        """All others. No two columns have one name."""


@dataclass(frozen=True, slots=True)
class ReadableBatch:
    """One batch of the query that is committed."""

    id: int
    """Its number, from 0."""
    offsets: Mapping[str, tuple[int, ...]]
    """Where each source stands after it: of a Kafka topic, the next offset to read, by partition."""
    watermark_ms: int | None
    """The watermark by which it was computed, milliseconds since 1970 UTC; None where there is none."""
    next_watermark_ms: int | None
    """The one that it left, by which the next batch is computed; None where there is none."""
    committed_ms: int
    """When Spark committed it, milliseconds since 1970 UTC."""
    others: frozenset[str] = frozenset()
    """Sources that are no Kafka topic: their offsets count files or seconds, not records."""


class ReadableCheckpoint(Protocol):
    """A checkpoint of a query that may be running, and cleans up meanwhile what it does not need any more.

    All of it raises `Unavailable` where storage does not answer. Reading what was cleaned up raises `Gone`: nothing of
    another batch is ever returned in its place, and nothing of a part.
    """

    @property
    def where(self) -> str:
        """The folder or `s3://bucket/prefix`, for people."""

    @property
    def query(self) -> str:
        """The query's id."""

    @property
    def tables(self) -> Sequence[ReadableTable]:
        """At least one; the query's own comes first."""

    def committed(self) -> range:
        """The batches of which it is still known that they are committed, without gaps; empty before the first."""

    def available(self, up_to: int | None = None, /) -> range:
        """Those of them at whose end the whole state can be read, up to the last that is committed, or to this one."""

    def batch(self, batch: int, /) -> ReadableBatch:
        """What is known of a batch. Raises `Gone`."""

    def rows(self, table: ReadableTable, batch: int, /) -> Iterable[pa.RecordBatch]:
        """The rows of a table at the end of a batch, with the columns of its key and values. Raises `Gone`."""

    def changes(self, table: ReadableTable, after: int, up_to: int, /) -> Iterable[pa.Table]:
        """What the batches `after` + 1 to `up_to` changed of a table, one after the other.

        Each has the columns of key and values and `DELETED`, with one row of each key. Raises `Gone`, also where the
        checkpoint keeps no changes.
        """


class FollowedCheckpoint(ReadableCheckpoint, Protocol):
    """One that is read while its query runs, in step with it."""

    def newest(self) -> int:
        """The last batch that is committed, -1 for none. Any thread may ask for it."""

    def changes(
        self, table: ReadableTable, after: int, up_to: int, /, *, at_once: int = 1, appended: bool = False
    ) -> Iterable[pa.Table]:
        """What so many batches `at_once` changed, as if they were one.

        With `appended`, tables of lists may have the column `APPENDED`, too.
        """
