"""The Parquet files of an exported folder: written there, looked at, and read again, with what they must hold checked.

A table's rows are in two files side by side. One has the columns that users see. The other has, of the same rows in the
same order, `_seq` and `_prev_seq` (the versions that wrote a row and the one before it), `_expires_at` where rows
expire, and the value columns whose names begin with `_`, by which means and the like go on. What else an SST has
follows from these: the hash of the key, by which rows are sorted.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Refused, Usage
from ...moments.query.columns import visible_schema
from ...moments.take.capture import count_by_partition
from ...store.read.decode import read_whole
from ...store.sst.arrow_types import from_arrow
from ...store.sst.hashing import hash_keys, partition_of
from ...store.sst.types import HASH, OP, PUT, shape, sst_schema
from ...store.sst.writer import prepare
from ...store.versions.manifest import Table
from .document import DOCUMENT, Export, File, TablePart

AGAIN = "a folder is imported as it was written: export the app again, or put the file back from a copy"
_READ_BYTES = 1 << 20


def write(folder: Path, path: str, rows: pa.Table) -> File:
    """Write rows to a file of the folder. Raises `OSError` where there is no room."""
    where = folder / path
    where.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, where, compression="zstd", write_page_checksum=True)
    return File(path, rows.num_rows, where.stat().st_size, _sha256(where))


def write_part(folder: Path, name: str, number: int, table: Table, partition: int, rows: pa.Table) -> TablePart:
    """Write rows of an SST (`sst_schema`) of a state partition to the two files of a part."""
    file = f"part-{number:05}.parquet"
    visible = visible_schema(table)
    shown = pa.Table.from_arrays(rows.select(visible.names).columns, schema=visible)
    rest = rows.select(_internal(table))
    rest = rest.replace_schema_metadata(None).cast(pa.schema([(field.name, field.type) for field in rest.schema]))
    return TablePart(
        write(folder, f"tables/{name}/{file}", shown), write(folder, f"internal/{name}/{file}", rest), partition
    )


def check_folder(folder: Path, export: Export) -> None:
    """See that a folder has the files that its document names, and no others, each as it was written.

    Reads all bytes. Raises `Refused` for the first that is missing, too much or another.
    """
    named = {each.path: each for each in export.files}
    for extra in _listed(folder):
        if extra not in named and extra != DOCUMENT:
            raise changed(folder, f"it has {extra!a}, which {DOCUMENT} does not name")
    for each in named.values():
        _check(folder, each)


def read_part(folder: Path, name: str, part: TablePart, table: Table) -> pa.Table:
    """The rows of a part, as an SST of the table has them. Raises `Refused` where it has no such rows."""
    shown, rest = _read(folder, part.file), _read(folder, part.internal)
    key, visible = [column.name for column in table.key], visible_schema(table)
    try:
        # The types themselves: a key of another type has another hash.
        if _columns(shown.schema) != _columns(visible):
            raise Refused(f"it has {shape(shown.schema)}; expected {shape(visible)}")
        hashes = hash_keys(shown, key)
        columns = dict(zip(shown.column_names, shown.columns, strict=True))
        columns |= dict(zip(rest.column_names, rest.columns, strict=True))
        columns |= {HASH: pa.array(hashes), OP: pa.array(np.full(len(hashes), PUT, np.uint8))}
        rows = prepare(pa.table({each: columns[each] for each in sst_schema(table).names}), table)
    except (KeyError, ValueError, pa.ArrowException, Refused, Usage) as error:
        raise changed(folder, f"{part.file.path} has other rows than table {name!r} can have ({error})") from error
    if (partition_of(hashes, table.partitions) != part.partition).any():
        raise changed(folder, f"{part.file.path} has rows of other state partitions than {part.partition}")
    return rows


def read_records(folder: Path, files: Iterable[File], counts: tuple[int, ...]) -> Iterator[pa.Table]:
    """The records in flight of these files, with their addresses. Raises `Refused` where they are not as many."""
    found = np.zeros(len(counts), np.int64)
    for each in files:
        rows = _read(folder, each)
        try:
            by_partition = count_by_partition(rows, len(counts))
        except (KeyError, ValueError, TypeError) as error:
            raise changed(folder, f"{each.path} does not say where its records lay ({error})") from error
        if len(by_partition) > len(counts):
            raise changed(folder, f"{each.path} has records of more than {len(counts)} partitions")
        found += by_partition
        yield rows
    if tuple(found.tolist()) != counts:
        raise changed(folder, f"its records in flight are {found.tolist()} by partition; expected {list(counts)}")


def changed(folder: Path, what: str) -> Refused:
    """The error for a folder that is not as it was written."""
    return Refused(f"{folder} cannot be imported: {what}", hint=AGAIN)


def _columns(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, from_arrow(field.type)) for field in schema]


def _internal(table: Table) -> list[str]:
    """The columns of an SST that are in neither the visible file nor computed."""
    visible = {HASH, OP, *visible_schema(table).names}
    return [name for name in sst_schema(table).names if name not in visible]


def _listed(folder: Path) -> Iterator[str]:
    """All that lies in a folder and is no folder itself, by its path there; links lead nowhere."""
    for where, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(where) / name).is_symlink()]
        for name in sorted((*files, *links)):
            yield str((Path(where) / name).relative_to(folder))


def _check(folder: Path, file: File) -> None:
    path = folder / file.path
    try:
        size = path.stat().st_size if path.is_file() else None
        digest = _sha256(path) if size == file.bytes else ""
    except OSError as error:
        raise changed(folder, f"{file.path} cannot be read: {error.strerror or error}") from error
    if size is None:
        raise changed(folder, f"{file.path} is missing")
    if size != file.bytes:
        raise changed(folder, f"{file.path} has {size:,} bytes; expected {file.bytes:,}")
    if digest != file.sha256:
        raise changed(folder, f"{file.path} is not what was written: its SHA-256 is {digest}; expected {file.sha256}")


def _read(folder: Path, file: File) -> pa.Table:
    """The rows of a file, whose bytes are looked at once more: it may have been changed meanwhile."""
    try:
        data = (folder / file.path).read_bytes()
    except OSError as error:
        raise changed(folder, f"{file.path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise changed(folder, f"{file.path} is not what was written")
    try:
        rows = read_whole(data)
    except (pa.ArrowException, OSError) as error:
        raise changed(folder, f"{file.path} is no Parquet that can be read ({error})") from error
    if rows.num_rows != file.rows:
        raise changed(folder, f"{file.path} has {rows.num_rows:,} rows; expected {file.rows:,}")
    return rows


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as data:
        while some := data.read(_READ_BYTES):
            digest.update(some)
    return digest.hexdigest()
