"""Iceberg's own files in an object store: where they lie, how readers address them, and pyiceberg's writers over bytes.

pyiceberg writes and reads manifests and their lists; here they pass through memory, and the store puts and gets them,
so that retries, credentials and tests are the same as for all other objects.

Here too: a table's columns as an Iceberg schema, and which of its SSTs Iceberg's readers read by it as we do. Column
ids are the same in both: Iceberg finds a column by the field id in the file, as `sst.evolution` does. So what was
renamed, removed, added without a default, or widened as Iceberg widens needs nothing. Of an SST that lacks a column
with a default, or has a decimal of another scale, the rows are written anew, in their order: format v2 has no words for
that.
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
from ....store.sst.evolution import ColumnSource, Reading
from ....store.sst.types import sst_schema, visible_columns
from ....store.versions.manifest import Table, is_internal
from .hidden import Deletes, bounds


def data_schema(table: Table) -> pa.Schema:
    """The columns that users see, in Arrow's types, with the ids that the table's SSTs carry."""
    fields = sst_schema(table)
    return pa.schema([fields.field(column.name) for column in visible_columns(table)])


def iceberg_schema(name: str, table: Table) -> Schema:
    """The same as Iceberg has it. int8 and int16 are its int; a timestamp with a zone is timestamptz.

    Raises `Refused` where two columns would be one there: Iceberg writes a struct's field as `struct.field`.
    """
    fields = data_schema(table)
    numbers = list(_ids(pa.struct(fields)))
    try:
        if len(set(numbers)) != len(numbers):
            raise ValueError("two of its columns have the same field id")
        made = pyarrow_to_schema(fields)
        made.find_field(made.columns[0].name)  # makes the index by name
    except (ValueError, TypeError, ValidationError) as error:
        raise Refused(
            f"table {name!r} cannot be an Iceberg table: {error}", hint="rename one of its columns by a migration"
        ) from error
    return made


def _ids(kind: pa.DataType) -> Iterator[int]:
    inside: list[pa.Field] = []
    if pa.types.is_struct(kind):
        inside = [kind.field(place) for place in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inside = [kind.value_field]
    elif pa.types.is_map(kind):
        inside = [kind.key_field, kind.item_field]
    for each in inside:
        yield int(each.metadata[b"PARQUET:field_id"])
        yield from _ids(each.type)


def is_read_alike(reading: Reading | None) -> bool:
    """Whether Iceberg's readers make of such SSTs the rows that we do; None stands for SSTs of the table's columns."""
    if reading is None:
        return True
    return all(_is_found(each) for name, each in reading.sources.items() if not is_internal(name))


def _is_found(source: ColumnSource) -> bool:
    if source.name is None:
        return not source.default.is_valid
    return _is_promoted(source.stored, source.type)


def _is_promoted(was: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Iceberg reads the one as the other, of types of which every value of the one is one of the other."""
    types = pa.types
    if types.is_decimal(was):
        return bool(was.scale == kind.scale)
    if types.is_struct(was):
        return all(_is_promoted(field.type, kind.field(field.name).type) for field in was)
    if types.is_list(was):
        return _is_promoted(was.value_type, kind.value_type)
    if types.is_map(was):
        return _is_promoted(was.key_type, kind.key_type) and _is_promoted(was.item_type, kind.item_type)
    return True


_CODEC: Literal["deflate"] = "deflate"
"""How Avro's blocks are compressed: the codec that all its readers have."""


def address(root: str, key: str) -> str:
    """An object as readers of Iceberg find it, from the `url` of its store."""
    return f"{'file://' if root.startswith('/') else ''}{root}/{key}"


class MemoryFile(InputFile, OutputFile):
    """A file of pyiceberg's whose bytes are here."""

    def __init__(self, location: str, data: bytes = b"") -> None:
        super().__init__(location)
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        """Whether it is there."""
        return True

    def open(self, seekable: bool = True) -> BytesIO:
        """Its bytes, to be read."""
        return BytesIO(self.data)

    def create(self, overwrite: bool = False) -> BytesIO:
        """Its bytes, to be written."""
        return _Sink(self)

    def to_input_file(self) -> "MemoryFile":
        """Itself."""
        return self


class _Sink(BytesIO):
    def __init__(self, file: MemoryFile) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.data = self.getvalue()
        super().close()


class _Deletes(ManifestWriterV2):
    """A manifest of delete files, which pyiceberg reads and does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def data_file(path: str, rows: int, size: int) -> DataFile:
    """The entry of a Parquet file of rows."""
    return _file(DataFileContent.DATA, path, rows, size)


def delete_file(path: str, deletes: Deletes, size: int) -> DataFile:
    """The entry of a file of position deletes."""
    lower, upper = bounds(deletes)
    rows = sum(map(len, deletes.values()))
    return _file(DataFileContent.POSITION_DELETES, path, rows, size, lower_bounds=lower, upper_bounds=upper)


def _file(content: DataFileContent, path: str, rows: int, size: int, **more: Any) -> DataFile:
    made = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size,
        **more,
    )
    made.spec_id = UNPARTITIONED_PARTITION_SPEC.spec_id
    return made


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
    """A manifest with these files, at least one: those that come, stay and go with the snapshot. For the list."""
    kind = _Deletes if of_deletes else ManifestWriterV2
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
    """The list of a snapshot's manifests."""
    with write_manifest_list(2, to, snapshot_id, parent, sequence, _CODEC) as writer:
        if manifests:
            writer.add_manifests(manifests)


def read_list(path: str, data: bytes) -> Iterator[ManifestFile]:
    """What a manifest list has."""
    return read_manifest_list(MemoryFile(path, data))


class MemoryFiles:
    """What pyiceberg asks for files, answered by bytes that are here: as much of its FileIO as it uses to read."""

    def __init__(self, path: str, data: bytes) -> None:
        self._file = MemoryFile(path, data)

    def new_input(self, _location: str) -> MemoryFile:
        """The file."""
        return self._file


def read_manifest(manifest: ManifestFile, data: bytes) -> list[ManifestEntry]:
    """The files that a manifest has, without those that went with it."""
    return manifest.fetch_manifest_entry(MemoryFiles(manifest.manifest_path, data))  # type: ignore[arg-type]
