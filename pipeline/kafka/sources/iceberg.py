"""New files of an Iceberg table, snapshot by snapshot. The catalog is that of pyiceberg's configuration."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from ....common.redact import without_secrets
from ....errors import Gone, NotFound, Refused, SlackwaterError, Unavailable, Usage
from .file_list import SourceFile
from .iceberg_columns import TableColumns
from .rows import READ_ANEW, FileReader


class IcebergFinder:
    """Finds the files that the snapshots of a table added."""

    def __init__(self, reader: FileReader) -> None:
        self._source = reader.source
        self._catalog: Catalog | None = None

    def find(self, known: list[SourceFile], _time_limit_s: float | None) -> Iterator[SourceFile]:
        """Yield the files of snapshots after the newest in `known`.

        Raises `Gone` if that snapshot has expired, and `Refused` for snapshots that remove or change rows.
        """
        try:
            table = self._load()
            current = table.current_snapshot()
            if current is None or (known and known[-1].version == current.snapshot_id):
                return
            if known:
                for snapshot in self._since(table, current, known[-1].version):
                    yield from tuple(self._added(table, snapshot))
            else:
                yield from tuple(self._rows_of_table(table, current))
            yield SourceFile("", 0, 0, 0, current.snapshot_id)
        except SlackwaterError:
            raise
        except NoSuchTableError:
            raise NotFound("Iceberg table", self._source.address, hint="a writer must create it first") from None
        except Exception as error:
            raise Unavailable(f"{self._source.label}: {_describe(error)}") from None

    def _load(self) -> Table:
        name, _, table = self._source.address.partition(".")
        if self._catalog is None:
            try:
                self._catalog = load_catalog(name)
            except ValueError as error:
                raise Usage(
                    f"catalog {name} of {self._source.label}: {_describe(error)}",
                    hint=f"configure the catalog: pyiceberg --catalog {name} list",
                ) from None
        return self._catalog.load_table(table)

    def _since(self, table: Table, current: Snapshot, last: int) -> list[Snapshot]:
        """Return the snapshots after `last`, oldest first."""
        chain: list[Snapshot] = []
        at: Snapshot | None = current
        while at is not None and at.snapshot_id != last:
            chain.append(at)
            at = table.metadata.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
        if at is None:
            raise Gone(
                f"{self._source.label}: snapshot {last}, the newest that was read, has expired or was rolled back",
                hint=f"{READ_ANEW}; keep snapshots for as long as the app may stand still",
            )
        return chain[::-1]

    def _added(self, table: Table, snapshot: Snapshot) -> Iterator[SourceFile]:
        summary = snapshot.summary
        operation = summary.operation if summary is not None else Operation.APPEND
        is_compaction = summary is not None and "slackwater.compaction" in summary.additional_properties
        if operation is Operation.REPLACE or is_compaction:
            return
        if operation is not Operation.APPEND:
            ignores = self._source.ignore_deletes and operation is Operation.DELETE
            if self._source.skip_change_commits or ignores:
                return
            raise Refused(
                f"{self._source.label}: snapshot {snapshot.snapshot_id} ({operation.value}) removes or changes rows, "
                "and only new rows can be read",
                hint="give the source another name (name=...), and pass over such snapshots: skip_change_commits=True, "
                "or ignore_deletes=True for deletes",
            )
        columns = TableColumns(table, snapshot.schema_id)
        for manifest in snapshot.manifests(table.io):
            if manifest.content is ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(table.io):
                    if entry.status is ManifestEntryStatus.ADDED:
                        yield self._part(entry.data_file, snapshot, columns)

    def _rows_of_table(self, table: Table, snapshot: Snapshot) -> Iterator[SourceFile]:
        columns = TableColumns(table, None)
        for task in sorted(table.scan().plan_files(), key=lambda task: task.file.file_path):
            if task.delete_files:
                raise Refused(
                    f"{self._source.label}: {task.file.file_path} has delete files, which are not supported",
                    hint="rewrite the table's files (rewrite_data_files), then start",
                )
            yield self._part(task.file, snapshot, columns)

    def _part(self, file: DataFile, snapshot: Snapshot, columns: TableColumns) -> SourceFile:
        if file.file_format is not FileFormat.PARQUET:
            raise Refused(f"{self._source.label}: {file.file_path} is {file.file_format}; expected Parquet")
        return SourceFile(
            file.file_path,
            file.record_count,
            file.file_size_in_bytes,
            snapshot.timestamp_ms,
            snapshot.snapshot_id,
            columns.partition_values(file),
            names=columns.names,
        )


def _describe(error: Exception) -> str:
    # The library's errors repeat addresses and options.
    return f"{type(error).__name__}: {without_secrets(str(error))[:300]}"
