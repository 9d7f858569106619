"""One Iceberg table in a folder of an object store: its newest metadata, the files that its snapshots have, its commit.

The layout is that of Iceberg's Hadoop catalog: `metadata/v<n>.metadata.json` says all that is true of the table, and
`metadata/version-hint.text` has the number. The metadata of a number is created where there is none, so of two writers
one wins; the other plans anew. Until it is there nobody sees a snapshot, however many of its files are written.

What nothing names is swept by storage's clock, an hour after it was written: a writer may be about to name it.
"""

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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

from ....common.durations import HOUR_MS
from ....errors import ObjectExists, ObjectNotFound, Refused
from ....store.objects.protocol import ObjectStore
from .files import MemoryFile, address, delete_file, read_list, read_manifest, write_list, write_manifest
from .hidden import DeleteFile, DeletePlan, Deletes, decode, encode

_METADATA = re.compile(r"v(\d{1,18})\.metadata\.json")
_HINT = "version-hint.text"
OWN = "slackwater."
"""How properties begin that say whose table it is."""
PIN = f"{OWN}pin."
"""Property of a table: before the id of a snapshot, for the pin that keeps what it points at."""
SWEEP_MS = HOUR_MS
"""What nothing names is kept for so long."""


@dataclass(frozen=True, slots=True)
class Head:
    """A table's newest metadata."""

    number: int
    metadata: TableMetadata

    @property
    def snapshot(self) -> Snapshot | None:
        """Its newest snapshot."""
        return self.metadata.current_snapshot()

    @property
    def pins(self) -> dict[int, str]:
        """The pin that keeps what each of its snapshots points at."""
        named = self.metadata.properties.items()
        return {int(name.removeprefix(PIN)): pin for name, pin in named if name.startswith(PIN)}

    def replaced_before(self, time_ms: int) -> tuple[int, ...]:
        """The snapshots, by id, that others had replaced at a time."""
        pairs = pairwise(self.metadata.snapshots)
        return tuple(each.snapshot_id for each, following in pairs if following.timestamp_ms <= time_ms)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a snapshot."""

    data: Mapping[str, ManifestEntry] = field(default_factory=dict)
    """By address."""
    deletes: Mapping[str, ManifestEntry] = field(default_factory=dict)
    manifests: frozenset[str] = frozenset()
    """The addresses of the snapshot's list and manifests."""

    @property
    def addresses(self) -> frozenset[str]:
        """Of all its files."""
        return self.manifests | self.data.keys() | self.deletes.keys()


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """What a new snapshot is to be."""

    schema: Schema
    data: Mapping[str, DataFile]
    """All its data files, by address."""
    deletes: DeletePlan
    summary: Mapping[str, str]
    """What it says besides numbers."""


class IcebergTable:
    """A table in a folder under a root. What never changes is read once.

    Its methods raise as `ObjectStore`'s, and `Refused` where what lies there is no table of format v2.
    """

    def __init__(self, root: ObjectStore, name: str) -> None:
        self.name = name
        self.location = address(root.url, name)
        self.bytes_written = 0
        self._store = root
        self._live: dict[str, TableFiles] = {}
        """By the snapshot's list."""
        self._deletes: dict[str, dict[str, object]] = {}

    def head(self) -> Head | None:
        """Its newest metadata; None where there is no table. One listing, and a read."""
        folder = f"{self.name}/metadata/"
        for _ in range(10):
            numbers = (_METADATA.fullmatch(info.key.removeprefix(folder)) for info in self._store.list(f"{folder}v"))
            number = max((int(found[1]) for found in numbers if found), default=0)
            if not number:
                return None
            try:
                data = self._store.get(self._metadata(number))
            except ObjectNotFound:
                continue  # a newer one is there since, and this one was swept
            try:
                metadata = TableMetadataUtil.parse_raw(data.decode())
            except (ValidationError, ValueError) as error:
                raise Refused(
                    f"{self.location} is no Iceberg table that can be gone on with: {self._metadata(number)} is not "
                    f"understood",
                    hint="export to another folder",
                ) from error
            if metadata.format_version != 2:
                found = f"found one of format v{metadata.format_version}"
                raise Refused(f"{self.location}: expected a table of format v2; {found}", hint="choose another folder")
            return Head(number, metadata)
        raise Refused(f"{self.location} changes faster than it can be read", hint="let one writer at a time work there")

    def live(self, snapshot: Snapshot | None) -> TableFiles:
        """The files of a snapshot. A read for its list, and one for each manifest."""
        if snapshot is None:
            return TableFiles()
        path = snapshot.manifest_list
        if path not in self._live:
            manifests = tuple(read_list(path, self._get(path)))
            entries = [entry for each in manifests for entry in read_manifest(each, self._get(each.manifest_path))]
            is_data = {entry.data_file.file_path: entry.data_file.content == DataFileContent.DATA for entry in entries}
            by_path = {entry.data_file.file_path: entry for entry in entries}
            self._live[path] = TableFiles(
                {at: entry for at, entry in by_path.items() if is_data[at]},
                {at: entry for at, entry in by_path.items() if not is_data[at]},
                frozenset((path, *(each.manifest_path for each in manifests))),
            )
        return self._live[path]

    def delete_files(self, live: TableFiles) -> list[DeleteFile]:
        """What the delete files of a snapshot say. A read for each that was not read before."""
        for path in self._deletes.keys() - live.deletes.keys():
            del self._deletes[path]
        for path in live.deletes.keys() - self._deletes.keys():
            self._deletes[path] = dict(decode(self._get(path)))
        rows = {path: entry.data_file.record_count for path, entry in live.deletes.items()}
        return [DeleteFile(path, rows[path], self._deletes[path]) for path in live.deletes]  # type: ignore[arg-type]

    def add(self, kind: str, name: str, data: bytes) -> str:
        """Put a file into a folder of the table, whatever was there of this name; its address."""
        key = f"{self.name}/{kind}/{name}"
        self._store.put(key, data)
        self.bytes_written += len(data)
        return address(self._store.url, key)

    def commit(
        self,
        head: Head | None,
        now_ms: int,
        *,
        snapshot: Snapshotted | None,
        pin: str,
        properties: Mapping[str, str],
        keep_ms: int,
    ) -> Head | None:
        """The next metadata, with a new snapshot or the newest as it was, kept by `pin`; None where another was first.

        Snapshots that were replaced more than `keep_ms` before `now_ms` leave it.
        """
        base = head.metadata if head is not None else self._first(snapshot, properties)
        updates: list[TableUpdate] = [SetPropertiesUpdate(updates=dict(properties))]
        current = base.current_snapshot()
        if snapshot is not None:
            schema_id, changes = _schema_of(base, snapshot.schema, is_new=head is None)
            current = self._write(base, snapshot, schema_id, max(now_ms, base.last_updated_ms + 1))
            main = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": current.snapshot_id}
            updates += (*changes, AddSnapshotUpdate(snapshot=current), SetSnapshotRefUpdate.model_validate(main))
        assert current is not None  # noqa: S101  a table's first metadata has a snapshot
        kept = {f"{PIN}{current.snapshot_id}": pin} if pin else {}
        updates.append(SetPropertiesUpdate(updates=kept))
        # The newest of before is replaced now.
        gone = head.replaced_before(now_ms - keep_ms) if head is not None else ()
        if gone:
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}))
            names = [f"{PIN}{each}" for each in gone if f"{PIN}{each}" in base.properties]
            updates += [RemovePropertiesUpdate(removals=names)] if names else []
        made = update_table_metadata(base, tuple(updates))
        made = made.model_copy(update={"last_updated_ms": max(now_ms, base.last_updated_ms + 1)})
        return self._put(Head(head.number + 1 if head is not None else 1, made))

    def _first(self, snapshot: Snapshotted | None, properties: Mapping[str, str]) -> TableMetadata:
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

    def _write(self, base: TableMetadata, wanted: Snapshotted, schema_id: int, time_ms: int) -> Snapshot:
        """Write what a new snapshot consists of, but for its data files."""
        snapshot_id, parent, word = base.new_snapshot_id(), base.current_snapshot(), uuid.uuid4()
        live, sequence = self.live(parent), base.next_sequence_number()
        deletes = self._new_deletes(wanted.deletes.added, f"{word}-deletes.parquet")
        changes = (
            (
                False,
                live.data,
                wanted.data.keys(),
                [wanted.data[path] for path in wanted.data.keys() - live.data.keys()],
            ),
            (True, live.deletes, set(wanted.deletes.kept), deletes),
        )
        summary = SnapshotSummaryCollector()
        manifests: list[ManifestFile] = []
        for of_deletes, had, stay, added in changes:
            existing = [entry for path, entry in had.items() if path in stay]
            removed = [entry for path, entry in had.items() if path not in stay]
            for each in added:
                summary.add_file(each, wanted.schema)
            for entry in removed:
                summary.remove_file(entry.data_file, wanted.schema)
            if added or existing or removed:
                name = f"{word}-m{int(of_deletes)}.avro"
                to = MemoryFile(address(self._store.url, f"{self.name}/metadata/{name}"))
                manifests.append(
                    write_manifest(
                        to,
                        wanted.schema,
                        snapshot_id,
                        of_deletes=of_deletes,
                        added=added,
                        existing=existing,
                        removed=removed,
                    )
                )
                self.add("metadata", name, to.data)
        name = f"snap-{snapshot_id}-1-{word}.avro"
        listed = MemoryFile(address(self._store.url, f"{self.name}/metadata/{name}"))
        parent_id = parent.snapshot_id if parent is not None else None
        write_list(listed, snapshot_id, parent_id, sequence, manifests)
        self.add("metadata", name, listed.data)
        operation = Operation.APPEND if parent is None and not deletes else Operation.OVERWRITE
        said = Summary(operation, **(summary.build() | dict(wanted.summary)))
        before = parent.summary.additional_properties if parent is not None and parent.summary is not None else None
        return Snapshot.model_validate(
            {
                "snapshot-id": snapshot_id,
                "parent-snapshot-id": parent_id,
                "sequence-number": sequence,
                "timestamp-ms": time_ms,
                "manifest-list": listed.location,
                "summary": update_snapshot_summaries(said, before),
                "schema-id": schema_id,
            }
        )

    def _new_deletes(self, added: Deletes, name: str) -> list[DataFile]:
        if not added:
            return []
        data = encode(added)
        return [delete_file(self.add("data", name, data), added, len(data))]

    def _put(self, made: Head) -> Head | None:
        data, key = made.metadata.model_dump_json().encode(), self._metadata(made.number)
        try:
            self._store.put_if_absent(key, data)
        except ObjectExists:
            if self._store.get(key) != data:
                return None
        self.bytes_written += len(data)
        return made

    def tell(self, head: Head) -> None:
        """Let readers find the newest metadata; who finds an older number finds a table that is whole, too.

        One read, and a put where another number stands there: whoever committed may have died before this.
        """
        number = str(head.number).encode()
        try:
            told = self._store.get(f"{self.name}/metadata/{_HINT}")
        except ObjectNotFound:
            told = b""
        if told != number:
            self.add("metadata", _HINT, number)

    def sweep(self, head: Head) -> int:
        """Delete what no snapshot has, and metadata of before, once it is old; how many files. One listing."""
        listed = list(self._store.list(f"{self.name}/"))
        now_ms = max((info.modified_ms for info in listed), default=0)
        old = [info.key for info in listed if info.modified_ms <= now_ms - SWEEP_MS]
        old = [key for key in old if key not in (self._metadata(head.number), f"{self.name}/metadata/{_HINT}")]
        lists = {each.manifest_list for each in head.metadata.snapshots}
        named = frozenset().union(*(self.live(each).addresses for each in head.metadata.snapshots)) if old else ()
        for path in self._live.keys() - lists:
            del self._live[path]
        gone = [key for key in old if address(self._store.url, key) not in named]
        for key in gone:
            self._store.delete(key)
        return len(gone)

    def _metadata(self, number: int) -> str:
        return f"{self.name}/metadata/v{number}.metadata.json"

    def _get(self, path: str) -> bytes:
        root = address(self._store.url, "")
        if not path.startswith(root):
            raise Refused(f"{self.location} has {path}, which lies elsewhere", hint="export to another folder")
        return self._store.get(path.removeprefix(root))


def _schema_of(base: TableMetadata, schema: Schema, *, is_new: bool) -> tuple[int, Iterable[TableUpdate]]:
    """The id that a schema has in a table, and what gives it one."""
    if is_new:
        return schema.schema_id, ()
    known = [each.schema_id for each in base.schemas if each.columns == schema.columns]
    number = known[0] if known else max(each.schema_id for each in base.schemas) + 1
    new = () if known else (AddSchemaUpdate(schema=schema.model_copy(update={"schema_id": number})),)
    return number, (*new, SetCurrentSchemaUpdate.model_validate({"schema-id": number}))
