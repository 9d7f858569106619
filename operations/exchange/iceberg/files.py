"""Encodes Iceberg's manifests and schemas, and decides which SSTs Iceberg reads correctly without a copy.

pyiceberg encodes and decodes manifests and manifest lists in memory. The object store puts and gets the bytes, so these
files have the retries, credentials and tests of all stored objects.

This module also maps a table's columns to an Iceberg schema. Iceberg and `sst.schema` both find a column by its field
id, so most migrations need no copy: renamed and removed columns, columns added without a default, and types that
Iceberg widens. An SST is copied if it lacks a column that has a default, or has a decimal of a different scale: format
v2 cannot express these conversions.
"""

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from ....errors import Refused
from ....store.sst.schema import ColumnConversion, ColumnSource, sst_schema, visible_columns
from ....store.versions.manifest import Table, is_internal
from .hidden import Deletes, bounds


def data_schema(table: Table) -> pa.Schema:
    """Return the columns that users see as an Arrow schema, with the field ids of the table's SSTs."""
    fields = sst_schema(table)
    return pa.schema([fields.field(column.name) for column in visible_columns(table)])


def iceberg_schema(name: str, table: Table) -> Schema:
    """Return the columns that users see as an Iceberg schema.

    int8 and int16 become int; a timestamp with a time zone becomes timestamptz. Raises `Refused` if two columns get one
    name, which is possible because Iceberg names the field of a struct `struct.field`.
    """
    fields = data_schema(table)
    field_ids = list(_field_ids(pa.struct(fields)))
    try:
        if len(set(field_ids)) != len(field_ids):
            raise ValueError("two of its columns have the same field id")
        schema = pyarrow_to_schema(fields)
        schema.find_field(schema.columns[0].name)  # builds the index by name, which raises for duplicates
    except (ValueError, TypeError, ValidationError) as error:
        raise Refused(
            f"table {name!r} cannot be an Iceberg table: {error}", hint="rename one of its columns by a migration"
        ) from error
    return schema


def _field_ids(kind: pa.DataType) -> Iterator[int]:
    children: list[pa.Field] = []
    if pa.types.is_struct(kind):
        children = [kind.field(place) for place in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        children = [kind.value_field]
    elif pa.types.is_map(kind):
        children = [kind.key_field, kind.item_field]
    for child in children:
        yield int(child.metadata[b"PARQUET:field_id"])
        yield from _field_ids(child.type)


def is_readable_by_iceberg(reading: ColumnConversion | None) -> bool:
    """Return True if Iceberg readers correctly read an SST that needs the conversion `reading`.

    `reading` is None for an SST that has the table's columns.
    """
    if reading is None:
        return True
    return all(_is_source_readable(source) for name, source in reading.sources.items() if not is_internal(name))


def _is_source_readable(source: ColumnSource) -> bool:
    if source.name is None:
        return not source.default.is_valid
    return _is_type_promoted(source.stored_type, source.type)


def _is_type_promoted(was: pa.DataType, kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_decimal(was):
        return bool(was.scale == kind.scale)
    if types.is_struct(was):
        return all(_is_type_promoted(field.type, kind.field(field.name).type) for field in was)
    if types.is_list(was):
        return _is_type_promoted(was.value_type, kind.value_type)
    if types.is_map(was):
        return _is_type_promoted(was.key_type, kind.key_type) and _is_type_promoted(was.item_type, kind.item_type)
    return True


_CODEC: Literal["deflate"] = "deflate"
"""Compression of Avro blocks, which all Avro readers support."""


def address(root: str, key: str) -> str:
    """Return the address by which Iceberg readers open an object. `root` is the URL of the object's store."""
    return f"{'file://' if root.startswith('/') else ''}{root}/{key}"


class MemoryFile(InputFile, OutputFile):
    """In-memory file with the part of pyiceberg's FileIO interface that reads it."""

    def __init__(self, location: str, data: bytes = b"") -> None:
        super().__init__(location)
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> BytesIO:
        return BytesIO(self.data)

    def create(self, overwrite: bool = False) -> BytesIO:
        return _MemoryWriter(self)

    def to_input_file(self) -> "MemoryFile":
        return self

    def new_input(self, _location: str) -> "MemoryFile":
        return self


class _MemoryWriter(BytesIO):
    def __init__(self, file: MemoryFile) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.data = self.getvalue()
        super().close()


class _DeleteManifestWriter(ManifestWriterV2):
    """Writer of manifests of delete files. pyiceberg has none."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def data_file(path: str, rows: int, size: int) -> DataFile:
    return _file_entry(DataFileContent.DATA, path, rows, size)


def delete_file(path: str, deletes: Deletes, size: int) -> DataFile:
    lower, upper = bounds(deletes)
    rows = sum(map(len, deletes.values()))
    return _file_entry(DataFileContent.POSITION_DELETES, path, rows, size, lower_bounds=lower, upper_bounds=upper)


def _file_entry(content: DataFileContent, path: str, rows: int, size: int, **more: Any) -> DataFile:
    entry = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size,
        **more,
    )
    entry.spec_id = UNPARTITIONED_PARTITION_SPEC.spec_id
    return entry


def write_manifest(
    to: MemoryFile,
    schema: Schema,
    snapshot_id: int,
    *,
    of_deletes: bool,
    added: Iterable[DataFile],
    existing: Iterable[ManifestEntry],
    removed: Iterable[ManifestEntry],
) -> ManifestFile:
    """Write an Iceberg manifest of added, existing and removed files. Returns its entry for the manifest list.

    At least one file is required.
    """
    kind = _DeleteManifestWriter if of_deletes else ManifestWriterV2
    with kind(UNPARTITIONED_PARTITION_SPEC, schema, to, snapshot_id, _CODEC) as writer:
        for file in added:
            writer.add(ManifestEntry.from_args(snapshot_id=snapshot_id, sequence_number=None, data_file=file))
        for entry in existing:
            writer.existing(entry)
        for entry in removed:
            writer.delete(entry)
    return writer.to_manifest_file()


def write_list(
    to: MemoryFile, snapshot_id: int, parent: int | None, sequence: int, manifests: list[ManifestFile]
) -> None:
    with write_manifest_list(2, to, snapshot_id, parent, sequence, _CODEC) as writer:
        if manifests:
            writer.add_manifests(manifests)


def read_list(path: str, data: bytes) -> Iterator[ManifestFile]:
    return read_manifest_list(MemoryFile(path, data))


def read_manifest(manifest: ManifestFile, data: bytes) -> list[ManifestEntry]:
    """Return the files in an Iceberg manifest, except files that are marked as removed."""
    return manifest.fetch_manifest_entry(MemoryFile(manifest.manifest_path, data))  # type: ignore[arg-type]
