"""An in-memory checkpoint that changes as a query's does: it can commit and clean up at any time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from slackwater.errors import Gone
from slackwater.operations.attach.protocol import APPENDED, DELETED, ReadableBatch, ReadableTable
from slackwater.store.versions.manifest import Input, Manifest


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """A table of the checkpoint: `ReadableTable`."""

    name: str
    key: pa.Schema
    values: pa.Schema
    kind: str = "aggregate"


Row = tuple[object, ...]
"""Values of the columns, in order."""
Changes = Mapping[str, Mapping[Row, Row | None]]
"""New values by table and key; None for a deleted key."""


@dataclass(slots=True)
class MemoryCheckpoint:
    """In-memory implementation of `FollowedCheckpoint`.

    Batches that were cleaned up are gone. `keeps_changes` turns on Spark's changelog.
    """

    tables: tuple[MemoryTable, ...]
    query: str = "6a1c9c30-0000-4000-8000-000000000000"
    location: str = "memory:checkpoint"
    keeps_changes: bool = True
    formats: Mapping[str, str] = field(default_factory=dict)
    batches: list[ReadableBatch] = field(default_factory=list)
    first: int = 0
    """Oldest batch whose state and changes can be read."""
    _states: list[dict[str, dict[Row, Row]]] = field(default_factory=list)
    _changes: list[Changes] = field(default_factory=list)

    def commit(
        self,
        changes: Changes,
        offsets: Mapping[str, tuple[int, ...]],
        committed_ms: int,
        watermark_ms: int | None = None,
        next_watermark_ms: int | None = None,
    ) -> None:
        """Commit a batch, as Spark does."""
        state = {name: dict(rows) for name, rows in (self._states[-1] if self._states else {}).items()}
        for name, rows in changes.items():
            table = state.setdefault(name, {})
            for key, values in rows.items():
                if values is None:
                    table.pop(key, None)
                else:
                    table[key] = values
        self._states.append(state)
        self._changes.append(changes)
        at = len(self.batches)
        self.batches.append(ReadableBatch(at, dict(offsets), watermark_ms, next_watermark_ms, committed_ms))

    def clean_up(self, before: int) -> None:
        """Delete the batches before this one, but not the newest. Spark does this in the background."""
        self.first = max(self.first, min(before, len(self.batches) - 1))

    def state(self, batch: int) -> dict[str, dict[Row, Row]]:
        """Return the true rows of all tables at the end of a batch, even if it was cleaned up."""
        return {table.name: self._states[batch].get(table.name, {}) for table in self.tables}

    def resume(self, head: Manifest | None, /) -> None:
        """Do nothing: the query numbers its batches."""

    def claimed_inputs(self, draft: Manifest, /) -> Mapping[str, Input]:
        return draft.inputs

    def committed_batches(self) -> range:
        return range(self.first, len(self.batches))

    def newest_batch(self) -> int:
        return len(self.batches) - 1

    def readable_batches(self, up_to: int | None = None, /) -> range:
        there = self.committed_batches() if up_to is None else range(self.first, min(up_to + 1, len(self.batches)))
        return there if self.keeps_changes else there[-1:]

    def read_batch(self, batch: int, /) -> ReadableBatch:
        self._check_there(batch)
        return self.batches[batch]

    def read_rows(self, table: ReadableTable, batch: int, /) -> Iterator[pa.RecordBatch]:
        self._check_there(batch)
        rows = [key + values for key, values in self._states[batch].get(table.name, {}).items()]
        found = _table(pa.schema([*table.key, *table.values]), rows)
        for each in found.to_batches(max_chunksize=1_000):
            self._check_there(batch)
            yield each

    def read_changes(
        self, table: ReadableTable, after: int, up_to: int, /, *, at_once: int = 1, appended: bool = False
    ) -> Iterator[pa.Table]:
        """Return changes as `FollowedCheckpoint` does.

        With `appended`, a list of an existing key has only its new elements.
        """
        self._check_there(after + 1)
        if not self.keeps_changes:
            raise Gone("the query keeps no changes of its state", hint="it keeps them with its changelog on")
        schema = pa.schema([*table.key, *table.values, pa.field(DELETED, pa.bool_())])
        if lists := appended and [pa.types.is_list(each.type) for each in table.values] == [True]:
            schema = schema.append(pa.field(APPENDED, pa.bool_()))
        nothing = (None,) * len(table.values)
        for first in range(after + 1, up_to + 1, at_once):
            before, changed = self._states[first - 1].get(table.name, {}), dict[Row, Row | None]()
            for batch in range(first, min(first + at_once, up_to + 1)):
                self._check_there(batch)
                changed |= self._changes[batch].get(table.name, {})
            rows = [(*key, *(nothing if new is None else new), new is None) for key, new in changed.items()]
            yield _table(schema, [_appended(row, before) for row in rows] if lists else rows)

    def _check_there(self, batch: int) -> None:
        if not self.first <= batch < len(self.batches):
            raise Gone(f"batch {batch} was cleaned up; expected one of {self.committed_batches()}")


def _appended(row: Row, before: Mapping[Row, Row]) -> Row:
    """Reduce a changed list row to its appended elements if possible; `DELETED` is its last value.

    Returns the row, and True if it was reduced.
    """
    *key, now, deleted = row
    was = before.get(tuple(key))
    if deleted or was is None or now[: len(was[0])] != was[0]:  # type: ignore[index, arg-type]
        return (*row, False)
    return (*key, now[len(was[0]) :], deleted, True)  # type: ignore[index, arg-type]


def _table(schema: pa.Schema, rows: Sequence[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    return pa.table([pa.array(each, one.type) for each, one in zip(columns, schema, strict=True)], schema=schema)
