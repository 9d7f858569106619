"""Iceberg table in a folder of an object store: its newest metadata, the files of its snapshots, its commit.

The layout is that of Iceberg's Hadoop catalog: `metadata/v<n>.metadata.json` is the table's metadata, and
`metadata/version-hint.text` has the newest number. A metadata file is created only if its number is unused, so one of
two concurrent writers succeeds and the other plans again. A snapshot is invisible until its metadata file exists.

Files that no snapshot names are deleted an hour after they were written, by the storage's clock: younger files may
belong to a commit in progress.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from pyiceberg.exceptions import ValidationError
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)

from ....common import runtime
from ....common.durations import HOUR_MS
from ....errors import ObjectExists, ObjectNotFound, Refused
from ....store.objects.protocol import ObjectStore
from .files import MemoryFile, address, delete_file, read_list, read_manifest, write_list, write_manifest
from .hidden import DeleteFile, DeletePlan, Deletes, decode, encode

_METADATA = re.compile(r"v(\d{1,18})\.metadata\.json")
_HINT = "version-hint.text"
OWNER_PREFIX = "slackwater."
"""Prefix of the properties that identify the table's owner."""
PIN_PREFIX = f"{OWNER_PREFIX}pin."
"""Prefix of the property that names a snapshot's pin. The rest of the property's name is the snapshot id."""
SWEEP_MS = HOUR_MS
"""Minimum age in milliseconds at which files that no snapshot names are deleted."""


@dataclass(frozen=True, slots=True)
class Head:
    """Newest metadata of an Iceberg table."""

    number: int
    metadata: TableMetadata

    @property
    def snapshot(self) -> Snapshot | None:
        return self.metadata.current_snapshot()

    @property
    def pins(self) -> dict[int, str]:
        """Names of the pins that keep the SSTs of snapshots, by snapshot id."""
        named = self.metadata.properties.items()
        return {int(name.removeprefix(PIN_PREFIX)): pin for name, pin in named if name.startswith(PIN_PREFIX)}

    def replaced_before(self, time_ms: int) -> tuple[int, ...]:
        """Return the ids of the snapshots that newer snapshots had replaced by `time_ms`."""
        pairs = pairwise(self.metadata.snapshots)
        return tuple(snapshot.snapshot_id for snapshot, successor in pairs if successor.timestamp_ms <= time_ms)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of an Iceberg snapshot."""

    data: Mapping[str, ManifestEntry] = field(default_factory=dict)
    deletes: Mapping[str, ManifestEntry] = field(default_factory=dict)
    manifests: frozenset[str] = frozenset()

    @property
    def addresses(self) -> frozenset[str]:
        return self.manifests | self.data.keys() | self.deletes.keys()


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """Contents of a new snapshot."""

    schema: Schema
    data: Mapping[str, DataFile]
    deletes: DeletePlan
    summary: Mapping[str, str]


class IcebergTable:
    """An Iceberg table in a folder under a root. Caches files that never change.

    Methods raise the errors of `ObjectStore`, and `Refused` if the folder has no table of format v2.
    """

    def __init__(self, root: ObjectStore, name: str) -> None:
        self.name = name
        self.location = address(root.url, name)
        self.bytes_written = 0
        self._store = root
        self._files_by_manifest_list: dict[str, TableFiles] = {}
        """Files by the address of the snapshot's manifest list."""
        self._deletes_by_path: dict[str, dict[str, object]] = {}

    def head(self) -> Head | None:
        """Return the newest metadata; None if there is no table. Makes one listing and one read."""
        folder = f"{self.name}/metadata/"
        for _ in range(10):
            numbers = (_METADATA.fullmatch(info.key.removeprefix(folder)) for info in self._store.list(f"{folder}v"))
            number = max((int(match[1]) for match in numbers if match), default=0)
            if not number:
                return None
            try:
                data = self._store.get(self._metadata_key(number))
            except ObjectNotFound:
                continue  # another process committed newer metadata meanwhile and deleted this file
            try:
                metadata = TableMetadataUtil.parse_raw(data.decode())
            except (ValidationError, ValueError) as error:
                raise Refused(
                    f"cannot add to the Iceberg table {self.location}: {self._metadata_key(number)} cannot be parsed",
                    hint="export to another folder",
                ) from error
            if metadata.format_version != 2:
                actual = f"found one of format v{metadata.format_version}"
                raise Refused(
                    f"{self.location}: expected a table of format v2; {actual}", hint="export to another folder"
                )
            return Head(number, metadata)
        raise Refused(f"{self.location} changes faster than it can be read", hint="run one writer at a time")

    def snapshot_files(self, snapshot: Snapshot | None) -> TableFiles:
        """Return the files of a snapshot. Makes one read for the manifest list, and one for each manifest."""
        if snapshot is None:
            return TableFiles()
        path = snapshot.manifest_list
        if path not in self._files_by_manifest_list:
            manifests = tuple(read_list(path, self._get_by_address(path)))
            entries = [
                entry
                for manifest in manifests
                for entry in read_manifest(manifest, self._get_by_address(manifest.manifest_path))
            ]
            is_data = {entry.data_file.file_path: entry.data_file.content == DataFileContent.DATA for entry in entries}
            by_path = {entry.data_file.file_path: entry for entry in entries}
            self._files_by_manifest_list[path] = TableFiles(
                {at: entry for at, entry in by_path.items() if is_data[at]},
                {at: entry for at, entry in by_path.items() if not is_data[at]},
                frozenset((path, *(manifest.manifest_path for manifest in manifests))),
            )
        return self._files_by_manifest_list[path]

    def delete_files(self, live: TableFiles) -> list[DeleteFile]:
        """Return the contents of a snapshot's delete files. Makes one read for each uncached file."""
        for path in self._deletes_by_path.keys() - live.deletes.keys():
            del self._deletes_by_path[path]
        for path in live.deletes.keys() - self._deletes_by_path.keys():
            self._deletes_by_path[path] = dict(decode(self._get_by_address(path)))
        rows = {path: entry.data_file.record_count for path, entry in live.deletes.items()}
        return [DeleteFile(path, rows[path], self._deletes_by_path[path]) for path in live.deletes]  # type: ignore[arg-type]

    def add(self, kind: str, name: str, data: bytes) -> str:
        """Put a file into a folder of the table. Replaces an existing file of that name. Returns its address."""
        key = f"{self.name}/{kind}/{name}"
        self._store.put(key, data)
        self.bytes_written += len(data)
        return address(self._store.url, key)

    def commit(
        self,
        head: Head | None,
        now_ms: int,
        *,
        snapshot: NewSnapshot | None,
        pin: str,
        properties: Mapping[str, str],
        keep_ms: int,
    ) -> Head | None:
        """Commit the next metadata. Returns it, or None if another process committed first.

        `snapshot` is a new snapshot, or None to keep the newest one. `pin` names the pin that keeps its files.
        Snapshots that were replaced more than `keep_ms` before `now_ms` are removed.
        """
        base = head.metadata if head is not None else self._first_metadata(snapshot, properties)
        updates: list[TableUpdate] = [SetPropertiesUpdate(updates=dict(properties))]
        current = base.current_snapshot()
        if snapshot is not None:
            schema_id, changes = _schema_updates(base, snapshot.schema, is_new=head is None)
            current = self._write_snapshot(base, snapshot, schema_id, max(now_ms, base.last_updated_ms + 1))
            main = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": current.snapshot_id}
            updates += (*changes, AddSnapshotUpdate(snapshot=current), SetSnapshotRefUpdate.model_validate(main))
        assert current is not None  # noqa: S101  a table's first metadata has a snapshot
        pins = {f"{PIN_PREFIX}{current.snapshot_id}": pin} if pin else {}
        updates.append(SetPropertiesUpdate(updates=pins))
        # This commit replaces the previous newest snapshot.
        replaced_ids = head.replaced_before(now_ms - keep_ms) if head is not None else ()
        if replaced_ids:
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": replaced_ids}))
            names = [name for name in map(f"{PIN_PREFIX}{{}}".format, replaced_ids) if name in base.properties]
            updates += [RemovePropertiesUpdate(removals=names)] if names else []
        metadata = update_table_metadata(base, tuple(updates))
        metadata = metadata.model_copy(update={"last_updated_ms": max(now_ms, base.last_updated_ms + 1)})
        return self._put(Head(head.number + 1 if head is not None else 1, metadata))

    def _first_metadata(self, snapshot: NewSnapshot | None, properties: Mapping[str, str]) -> TableMetadata:
        assert snapshot is not None  # noqa: S101  as above
        spec, order = UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER
        return TableMetadataV2.model_validate(
            {
                "location": self.location,
                "schemas": [snapshot.schema],
                "current-schema-id": snapshot.schema.schema_id,
                "last-column-id": snapshot.schema.highest_field_id,
                "partition-specs": [spec],
                "default-spec-id": spec.spec_id,
                "last-partition-id": spec.last_assigned_field_id,
                "sort-orders": [order],
                "default-sort-order-id": order.order_id,
                "properties": dict(properties),
                "last-updated-ms": 0,
            }
        )

    def _write_snapshot(self, base: TableMetadata, new: NewSnapshot, schema_id: int, time_ms: int) -> Snapshot:
        snapshot_id, parent, unique_id = base.new_snapshot_id(), base.current_snapshot(), runtime.uuid()
        live, sequence = self.snapshot_files(parent), base.next_sequence_number()
        deletes = self._write_deletes(new.deletes.added, f"{unique_id}-deletes.parquet")
        added_data = [new.data[path] for path in new.data.keys() - live.data.keys()]
        file_changes = (
            (False, live.data, new.data.keys(), added_data),
            (True, live.deletes, set(new.deletes.remaining), deletes),
        )
        summary = SnapshotSummaryCollector()
        manifests: list[ManifestFile] = []
        for of_deletes, previous_files, remaining_paths, added in file_changes:
            existing = [entry for path, entry in previous_files.items() if path in remaining_paths]
            removed = [entry for path, entry in previous_files.items() if path not in remaining_paths]
            for file in added:
                summary.add_file(file, new.schema)
            for entry in removed:
                summary.remove_file(entry.data_file, new.schema)
            if added or existing or removed:
                name = f"{unique_id}-m{int(of_deletes)}.avro"
                to = MemoryFile(address(self._store.url, f"{self.name}/metadata/{name}"))
                write = partial(write_manifest, to, new.schema, snapshot_id, of_deletes=of_deletes)
                manifests.append(write(added=added, existing=existing, removed=removed))
                self.add("metadata", name, to.data)
        name = f"snap-{snapshot_id}-1-{unique_id}.avro"
        listed = MemoryFile(address(self._store.url, f"{self.name}/metadata/{name}"))
        parent_id = parent.snapshot_id if parent is not None else None
        write_list(listed, snapshot_id, parent_id, sequence, manifests)
        self.add("metadata", name, listed.data)
        operation = Operation.APPEND if parent is None and not deletes else Operation.OVERWRITE
        new_summary = Summary(operation, **(summary.build() | dict(new.summary)))
        previous_summary = (
            parent.summary.additional_properties if parent is not None and parent.summary is not None else None
        )
        return Snapshot.model_validate(
            {
                "snapshot-id": snapshot_id,
                "parent-snapshot-id": parent_id,
                "sequence-number": sequence,
                "timestamp-ms": time_ms,
                "manifest-list": listed.location,
                "summary": update_snapshot_summaries(new_summary, previous_summary),
                "schema-id": schema_id,
            }
        )

    def _write_deletes(self, added: Deletes, name: str) -> list[DataFile]:
        if not added:
            return []
        data = encode(added)
        return [delete_file(self.add("data", name, data), added, len(data))]

    def _put(self, head: Head) -> Head | None:
        data, key = head.metadata.model_dump_json().encode(), self._metadata_key(head.number)
        try:
            self._store.put_if_absent(key, data)
        except ObjectExists:
            if self._store.get(key) != data:
                return None
        self.bytes_written += len(data)
        return head

    def update_version_hint(self, head: Head) -> None:
        """Update the hint that names the newest metadata, if the hint is outdated.

        Makes a read, and a put if the hint is outdated. A hint is outdated if a process dies between a commit and the
        update of the hint. Readers of an outdated hint see an older, complete table.
        """
        number = str(head.number).encode()
        try:
            hint = self._store.get(f"{self.name}/metadata/{_HINT}")
        except ObjectNotFound:
            hint = b""
        if hint != number:
            self.add("metadata", _HINT, number)

    def delete_orphans(self, head: Head) -> int:
        """Delete old files that no snapshot names, and old metadata. Makes one listing.

        Returns the number of deleted files.
        """
        listed = list(self._store.list(f"{self.name}/"))
        now_ms = max((info.modified_ms for info in listed), default=0)
        old = [info.key for info in listed if info.modified_ms <= now_ms - SWEEP_MS]
        old = [key for key in old if key not in (self._metadata_key(head.number), f"{self.name}/metadata/{_HINT}")]
        lists = {snapshot.manifest_list for snapshot in head.metadata.snapshots}
        named = (
            frozenset().union(*(self.snapshot_files(snapshot).addresses for snapshot in head.metadata.snapshots))
            if old
            else ()
        )
        for path in self._files_by_manifest_list.keys() - lists:
            del self._files_by_manifest_list[path]
        unnamed = [key for key in old if address(self._store.url, key) not in named]
        for key in unnamed:
            self._store.delete(key)
        return len(unnamed)

    def metadata_location(self, head: Head) -> str:
        return address(self._store.url, self._metadata_key(head.number))

    def _metadata_key(self, number: int) -> str:
        return f"{self.name}/metadata/v{number}.metadata.json"

    def _get_by_address(self, path: str) -> bytes:
        root = address(self._store.url, "")
        if not path.startswith(root):
            raise Refused(
                f"the Iceberg table {self.location} names {path}, which is outside its root",
                hint="export to another folder",
            )
        return self._store.get(path.removeprefix(root))


def metadata_number(location: str, metadata_location: str) -> int:
    """Return the number in a metadata address of the table at `location`; 0 for metadata of other writers."""
    match = _METADATA.fullmatch(metadata_location.removeprefix(f"{location}/metadata/"))
    return int(match[1]) if match else 0


def _schema_updates(base: TableMetadata, schema: Schema, *, is_new: bool) -> tuple[int, Iterable[TableUpdate]]:
    if is_new:
        return schema.schema_id, ()
    same_ids = [stored.schema_id for stored in base.schemas if stored.columns == schema.columns]
    schema_id = same_ids[0] if same_ids else max(stored.schema_id for stored in base.schemas) + 1
    additions = () if same_ids else (AddSchemaUpdate(schema=schema.model_copy(update={"schema_id": schema_id})),)
    return schema_id, (*additions, SetCurrentSchemaUpdate.model_validate({"schema-id": schema_id}))
