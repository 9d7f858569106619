"""The history of an attached app before that of a checkpoint: what the query has cleaned up since, and what it has.

An attached app has a version for each batch that it followed, as far back as it misses none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ....errors import Refused
from ....store.compaction.merge import merged_rows
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.decode import read_groups
from ....store.sst.types import OP, TOMBSTONE
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ....store.versions.side_tables import table_name, table_of
from ..attach.tables import declared, tables_in
from ..checkpoint.protocol import DELETED, ReadableBatch, ReadableCheckpoint, ReadableTable


@dataclass(slots=True)
class AttachedHistory:
    """`ReadableCheckpoint`: of batches that a stage was attached to by its versions, of later ones by the checkpoint.

    Raises `Refused` where the stage is attached to another query, or has tables with other columns.
    """

    store: ObjectStore
    cache: SstCache
    app: str
    stage: str
    checkpoint: ReadableCheckpoint
    _versions: dict[int, Manifest] = field(default_factory=dict, init=False)
    """By batch, those that brought one batch each, without gaps, and the one before."""
    _names: dict[str, str] = field(default_factory=dict, init=False)
    """What the tables of the query are called in these."""

    def __post_init__(self) -> None:
        head = history.head(self.store, self.app, self.stage)
        if head is None or head.attached is None or head.attached.query != self.query:
            raise Refused(
                f"{self.app}/{self.stage} is not attached to the query {self.query} of {self.where}",
                hint="--attached APP, or APP/STAGE, names one that is",
            )
        found = declared(self.tables, 1)
        self._names = {table.name: name for name, table in zip(found, self.tables, strict=True)}
        stored = tables_in(head)
        if any(name not in stored or stored[name].columns != table.columns for name, table in found.items()):
            raise Refused(f"the tables of {self.app}/{self.stage} have other columns than the query has now")
        for version in history.backwards(self.store, head):
            if version.traits.reads_records and version.attached is not None:
                self._versions[version.attached.next_batch - 1] = version
                if version.attached.batches > 1:
                    return

    @property
    def where(self) -> str:
        """Of the checkpoint."""
        return self.checkpoint.where

    @property
    def query(self) -> str:
        """The query's id."""
        return self.checkpoint.query

    @property
    def tables(self) -> Sequence[ReadableTable]:
        """Those of the query."""
        return self.checkpoint.tables

    def committed(self) -> range:
        """All that either knows of."""
        there = self.checkpoint.committed()
        first = min([*self._versions, *there[:1]], default=0)
        return range(first, max([*self._versions, *there[-1:]], default=-1) + 1)

    def available(self, up_to: int | None = None, /) -> range:
        """Those of the app, and behind them what the checkpoint has, if it goes on from there without a gap."""
        mine, there = sorted(self._versions), self.checkpoint.available(up_to)
        last = up_to if up_to is not None else max(self.committed(), default=-1)
        if not mine or mine[0] > last:
            return there
        if mine[-1] >= last:
            return range(mine[0], last + 1)
        return range(mine[0], last + 1) if there and there[0] <= mine[-1] + 1 else there

    def batch(self, batch: int, /) -> ReadableBatch:
        """What a version says of it, or the checkpoint."""
        version = self._versions.get(batch)
        if version is None:
            return self.checkpoint.batch(batch)
        following = self._versions.get(batch + 1)
        if following is not None:
            next_watermark_ms = following.watermark_ms
        else:
            next_watermark_ms = self.checkpoint.batch(batch).next_watermark_ms
        offsets = {name: each.offsets for name, each in version.inputs.items()}
        return ReadableBatch(batch, offsets, version.watermark_ms, next_watermark_ms, version.time_ms)

    def rows(self, table: ReadableTable, batch: int, /) -> Iterable[pa.RecordBatch]:
        """The rows of a version, or of the checkpoint."""
        version = self._versions.get(batch)
        return self.checkpoint.rows(table, batch) if version is None else self._rows(table, version)

    def changes(self, table: ReadableTable, after: int, up_to: int, /) -> Iterator[pa.Table]:
        """What versions changed, and then what the checkpoint says."""
        for batch in range(after + 1, up_to + 1):
            if (version := self._versions.get(batch)) is None:
                yield from self.checkpoint.changes(table, batch - 1, up_to)
                return
            yield self._changed(table, version)

    def _rows(self, table: ReadableTable, version: Manifest) -> Iterator[pa.RecordBatch]:
        at, schema = self._at(table, version), _schema(table)
        assert at.table is not None  # noqa: S101  it has all tables of the query
        for partition in range(at.table.partitions):
            for some in merged_rows(self.store, self.cache, at.ssts, at.table, partition, 0):
                yield from some.select(schema.names).cast(schema).combine_chunks().to_batches()

    def _changed(self, table: ReadableTable, version: Manifest) -> pa.Table:
        """The rows of the SSTs that a version brought: all that its batch put and deleted."""
        before = history.read(self.store, self.app, self.stage, version.version - 1)
        known = {sst.object for sst in self._at(table, before).ssts}
        new = [sst for sst in self._at(table, version).ssts if sst.object not in known]
        schema = _schema(table)
        parts = []
        for sst in new:
            with pq.ParquetFile(self.cache.parquet_path(self.store, sst)) as file:
                parts.append(read_groups(file, range(file.num_row_groups), [*schema.names, OP]))
        flagged = schema.append(pa.field(DELETED, pa.bool_()))
        if not parts:
            return flagged.empty_table()
        rows = pa.concat_tables(parts)
        gone = pc.equal(rows[OP], TOMBSTONE)
        return rows.select(schema.names).cast(schema).append_column(DELETED, gone)

    def _at(self, table: ReadableTable, version: Manifest) -> Manifest:
        name = self._names[table.name]
        return table_of(version, table_name(self.stage, name)) if name else version


def _schema(table: ReadableTable) -> pa.Schema:
    return pa.schema([*table.key, *table.values])
