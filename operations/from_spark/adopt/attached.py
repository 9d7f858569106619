"""Reader of a query's batches from two sources: early batches from an attached app, later ones from the checkpoint.

An attached app has a version for each batch that it followed. Versions before its last gap are not used.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ....errors import Refused
from ....store.compaction.merge import iter_visible_rows
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.decode import read_groups
from ....store.sst.schema import OP, TOMBSTONE
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ....store.versions.side_tables import as_main_table, table_name
from ...attach.protocol import DELETED, ReadableBatch, ReadableCheckpoint, ReadableTable
from ...attach.rows import declare_tables, tables_by_side


@dataclass(slots=True)
class AttachedHistory:
    """History of a query. Early batches are versions of an attached stage; later batches are in the checkpoint.

    Raises `Refused` if the stage is attached to another query, or has tables with other columns.
    """

    store: ObjectStore
    cache: SstCache
    app: str
    stage: str
    checkpoint: ReadableCheckpoint
    location: str = field(init=False)
    query: str = field(init=False)
    tables: Sequence[ReadableTable] = field(init=False)
    _versions: dict[int, Manifest] = field(default_factory=dict, init=False)
    _names: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        checkpoint = self.checkpoint
        self.location, self.query, self.tables = checkpoint.location, checkpoint.query, checkpoint.tables
        head = history.head(self.store, self.app, self.stage)
        if head is None or head.attached is None or head.attached.query != self.query:
            raise Refused(
                f"{self.app}/{self.stage} is not attached to the query {self.query} of {self.location}",
                hint="name a stage that is: --attached APP, or APP/STAGE",
            )
        current = declare_tables(self.tables, 1)
        self._names = {table.name: name for name, table in zip(current, self.tables, strict=True)}
        stored = tables_by_side(head)
        if any(name not in stored or stored[name].columns != table.columns for name, table in current.items()):
            raise Refused(f"the query's columns have changed since {self.app}/{self.stage} was attached")
        for version in history.iter_backwards(self.store, head):
            if version.traits.reads_records and version.attached is not None:
                self._versions[version.attached.next_batch - 1] = version
                if version.attached.batches > 1:
                    return

    def committed_batches(self) -> range:
        in_checkpoint = self.checkpoint.committed_batches()
        first = min([*self._versions, *in_checkpoint[:1]], default=0)
        return range(first, max([*self._versions, *in_checkpoint[-1:]], default=-1) + 1)

    def readable_batches(self, up_to: int | None = None, /) -> range:
        """Return the batches that the app or the checkpoint has, up to `up_to`; by default up to the newest.

        If batches are missing between the app's last batch and the checkpoint's first batch, only the checkpoint's
        batches are returned.
        """
        own, in_checkpoint = sorted(self._versions), self.checkpoint.readable_batches(up_to)
        last = up_to if up_to is not None else max(self.committed_batches(), default=-1)
        if not own or own[0] > last:
            return in_checkpoint
        if own[-1] >= last:
            return range(own[0], last + 1)
        return range(own[0], last + 1) if in_checkpoint and in_checkpoint[0] <= own[-1] + 1 else in_checkpoint

    def read_batch(self, batch: int, /) -> ReadableBatch:
        version = self._versions.get(batch)
        if version is None:
            return self.checkpoint.read_batch(batch)
        following = self._versions.get(batch + 1)
        if following is not None:
            next_watermark_ms = following.watermark_ms
        else:
            next_watermark_ms = self.checkpoint.read_batch(batch).next_watermark_ms
        offsets = {name: source.offsets for name, source in version.inputs.items()}
        return ReadableBatch(batch, offsets, version.watermark_ms, next_watermark_ms, version.time_ms)

    def read_rows(self, table: ReadableTable, batch: int, /) -> Iterable[pa.RecordBatch]:
        version = self._versions.get(batch)
        return self.checkpoint.read_rows(table, batch) if version is None else self._rows(table, version)

    def read_changes(self, table: ReadableTable, after: int, up_to: int, /) -> Iterator[pa.Table]:
        for batch in range(after + 1, up_to + 1):
            if (version := self._versions.get(batch)) is None:
                yield from self.checkpoint.read_changes(table, batch - 1, up_to)
                return
            yield self._changed_rows(table, version)

    def _rows(self, table: ReadableTable, version: Manifest) -> Iterator[pa.RecordBatch]:
        table_version, schema = self._table_version(table, version), _schema(table)
        assert table_version.table is not None  # noqa: S101  the version has all tables of the query
        for partition in range(table_version.table.partitions):
            for part in iter_visible_rows(
                self.store, self.cache, table_version.ssts, table_version.table, partition, 0
            ):
                yield from part.select(schema.names).cast(schema).combine_chunks().to_batches()

    def _changed_rows(self, table: ReadableTable, version: Manifest) -> pa.Table:
        previous = history.read(self.store, self.app, self.stage, version.version - 1)
        previous_objects = {sst.object for sst in self._table_version(table, previous).ssts}
        added = [sst for sst in self._table_version(table, version).ssts if sst.object not in previous_objects]
        schema = _schema(table)
        parts = []
        for sst in added:
            with pq.ParquetFile(self.cache.parquet_path(self.store, sst)) as file:
                parts.append(read_groups(file, range(file.num_row_groups), [*schema.names, OP]))
        flagged = schema.append(pa.field(DELETED, pa.bool_()))
        if not parts:
            return flagged.empty_table()
        rows = pa.concat_tables(parts)
        deleted = pc.equal(rows[OP], TOMBSTONE)
        return rows.select(schema.names).cast(schema).append_column(DELETED, deleted)

    def _table_version(self, table: ReadableTable, version: Manifest) -> Manifest:
        name = self._names[table.name]
        return as_main_table(version, table_name(self.stage, name)) if name else version


def _schema(table: ReadableTable) -> pa.Schema:
    return pa.schema([*table.key, *table.values])
