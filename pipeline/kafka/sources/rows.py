"""Rows of a source's files as records: lines of text as they are, rows of Parquet as JSON objects."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ....errors import Gone, ObjectNotFound, Refused, SlackwaterError
from ....store.archive.columns import HEADERS, SCHEMA, TIME
from ....store.objects.protocol import ObjectStore
from ....store.objects.range_file import RangeFile
from ....store.sst.arrow_types import map_nested
from ..columns import ArchivedMessages
from ..declared_source import Source
from ..json_rows import encode_objects
from .file_list import SourceFile
from .text import Marks, index_lines, read_lines

_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 4 << 20
_NO_TEXT = re.compile(rb"\x1f\x8b|\x28\xb5\x2f\xfd|BZh[1-9]1AY&SY|PAR1\x15")
"""First bytes of files of gzip, zstd, bzip2 and Parquet."""
_NO_INPUT = (
    "remove the file, or pass over it by path_glob_filter, such as '*.parquet'; files that are being written begin "
    "with '_' or '.'"
)
_GZIP = 16 + zlib.MAX_WBITS
READ_ANEW = "read the table under another name (name=...), which begins with its present rows"
"""Hint for a table whose next version or snapshot cannot be read."""


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads the files of a source. `store` opens other roots."""

    source: Source
    store: ObjectStore

    def count_rows(self, path: str, size: int) -> tuple[int, Marks]:
        """Return a file's number of rows, or of lines, and the marks of a text. Raises `Refused` if it is unreadable.

        Raises `ObjectNotFound` if it does not exist.
        """
        if self.source.content == "parquet":
            with self._open_parquet(path, size) as parquet:
                return int(parquet.metadata.num_rows), ()
        chunks = self._read_chunks(path, 0)
        lines, marks = index_lines(chunks, quoted=self.source.content == "csv")
        return lines, marks

    def records(self, first_offset: int, file: SourceFile, first: int, last: int) -> Iterator[ArchivedMessages]:
        """Yield the records of a file at offsets `first` to `last` - 1; the file begins at `first_offset`.

        Raises `Gone` if the file does not exist any more, or has changed.
        """
        try:
            self._check_unchanged(file)
            for rows, values in self._read(file, max(0, first - first_offset), min(file.rows, last - first_offset)):
                yield self._messages(first_offset, file, rows, values)
        except ObjectNotFound:
            raise self._gone_error(file) from None

    def is_gone(self, file: SourceFile) -> bool:
        """Return True if the file does not exist any more, or has changed."""
        try:
            self._check_unchanged(file)
            store, key = self._locate(file.path)
            store.get_range(key, 0, 1)
        except (Gone, ObjectNotFound):
            return True
        return False

    def place(self, file: SourceFile, row: int) -> str:
        """Return the place of a row for messages: `file:///in/a.jsonl line 17`. Rows and lines count from 1."""
        if self.source.kind == "files":
            return f"{self._url(file.path)} {self._unit} {row + 1}"
        return f"{self._version(file)}, row {row + 1} of {file.path}"

    def _read(self, file: SourceFile, first: int, last: int) -> Iterator[tuple[npt.NDArray[np.int64], pa.Array]]:
        source = self.source
        if source.content == "parquet":
            yield from self._read_parquet(file, first, last)
            return
        # The header is the first line that is not blank. Before the first mark, reading begins with the file anyway.
        is_header = source.header and not any(line <= first for line, _ in file.marks)
        lines = read_lines(
            lambda start: self._read_chunks(file.path, start),
            file.marks,
            0 if is_header else first,
            last,
            quoted=source.content == "csv",
        )
        for numbers, texts in lines:
            skipped = max(int(is_header), int(np.searchsorted(numbers, first)))
            is_header = False
            for at in range(skipped, len(texts), _CHUNK_ROWS):
                chunk = slice(at, at + _CHUNK_ROWS)
                yield numbers[chunk], pa.array(texts[chunk], pa.binary())

    def _read_parquet(
        self, file: SourceFile, first: int, last: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.Array]]:
        with self._open_parquet(file.path, file.bytes) as parquet:
            at = 0
            for number in range(parquet.num_row_groups):
                group_end = at + parquet.metadata.row_group(number).num_rows
                if at >= last or group_end <= first:
                    at = group_end
                    continue
                for batch in self._batches(file, parquet, number):
                    skip, stop = max(0, first - at), min(batch.num_rows, last - at)
                    if skip < stop:
                        rows = self._renamed(file, pa.Table.from_batches([batch]).slice(skip, stop - skip))
                        yield np.arange(at + skip, at + stop), encode_rows(rows, file.constants)
                    at += batch.num_rows
                    if at >= last:
                        return

    def _batches(self, file: SourceFile, parquet: pq.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from parquet.iter_batches(_CHUNK_ROWS, row_groups=[group])
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, SlackwaterError):
                raise
            raise Refused(
                f"{self.source.label}: {self._url(file.path)} is damaged: {error}",
                hint="restore the file as it was, with its time",
            ) from None

    def _renamed(self, file: SourceFile, rows: pa.Table) -> pa.Table:
        """Return the columns that the table has as of the file's snapshot, with the names that they have there."""
        if not file.names:
            return rows
        ids = [(column.metadata or {}).get(b"PARQUET:field_id", b"").decode() for column in rows.schema]
        if not all(ids):
            raise Refused(
                f"{self._version(file)}: columns were renamed or added again, and {file.path} has no field ids",
                hint="rewrite the table's files (rewrite_data_files), and read it under another name (name=...)",
            )
        known = [number for number, field_id in enumerate(ids) if field_id in file.names]
        return rows.select(known).rename_columns([file.names[ids[number]] for number in known])

    def _messages(
        self, first: int, file: SourceFile, rows: npt.NDArray[np.int64], values: pa.Array
    ) -> ArchivedMessages:
        count = len(rows)
        headers: dict[str, pa.Array] = {
            "file": _repeat(self._url(file.path).encode(), pa.binary(), count),
            self._unit: pa.array(rows + 1).cast(pa.string()).cast(pa.binary()),
        }
        if file.version:
            headers["version"] = _repeat(str(file.version).encode(), pa.binary(), count)
        columns = {
            "topic": _repeat(self.source.topic, pa.string(), count),
            "partition": _repeat(0, pa.int32(), count),
            "offset": pa.array(first + rows, pa.int64()),
            "timestamp": _repeat(file.time_ms, pa.int64(), count).cast(TIME),
            "timestampType": _repeat(0, pa.int32(), count),
            "key": pa.nulls(count, pa.binary()),
            "value": values.cast(pa.binary()),
            "headers": _header_lists(headers, count),
        }
        return ArchivedMessages(pa.table(columns, schema=SCHEMA))

    def _open_parquet(self, path: str, size: int) -> pq.ParquetFile:
        store, key = self._locate(path)
        local = store.local_path(key)
        try:
            if local is not None and local.exists():
                return pq.ParquetFile(local, memory_map=True)
            fetched = RangeFile(size, lambda start, length: store.get_range(key, start, length))
            return pq.ParquetFile(pa.PythonFile(fetched, mode="r"), pre_buffer=True)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, SlackwaterError):
                raise
            raise Refused(
                f"{self.source.label}: {self._url(path)} is no Parquet file: {error}",
                hint=_NO_INPUT,
            ) from None

    def _read_chunks(self, path: str, start: int) -> Iterator[bytes]:
        store, key = self._locate(path)
        if path.endswith(".gz"):
            yield from self._unpacked(store, key, path, start)
            return
        for number, data in enumerate(_chunks(store, key, start)):
            if start == number == 0 and _NO_TEXT.match(data):
                raise Refused(
                    f"{self.source.label}: {self._url(path)} is a packed or Parquet file; expected "
                    f"{self.source.content} lines, plain or in a .gz file",
                    hint=_NO_INPUT,
                )
            yield data

    def _unpacked(self, store: ObjectStore, key: str, path: str, start: int) -> Iterator[bytes]:
        try:
            for data in _unpack(_chunks(store, key, 0)):
                if start < len(data):
                    yield data[start:]
                start = max(0, start - len(data))
        except (zlib.error, EOFError) as error:
            raise Refused(
                f"{self.source.label}: {self._url(path)} is no gzip file, or is damaged: {error}",
                hint="replace the file by a complete one, or remove it",
            ) from None

    def _check_unchanged(self, file: SourceFile) -> None:
        """Raise `Gone` if a file of a folder was written again. Files of tables never are."""
        if self.source.kind != "files":
            return
        store, key = self._locate(file.path)
        size, modified_ms = _size_and_time(store, key)
        if (size, max(0, modified_ms)) != (file.bytes, file.time_ms):
            raise Gone(
                f"{self._url(file.path)} has changed since it was read: it had {file.bytes:,} bytes and now has "
                f"{size:,}, or has another time",
                hint="restore the file as it was, with its time; write new rows to a new file",
            )

    def _gone_error(self, file: SourceFile) -> Gone:
        if self.source.kind == "files":
            hint = "restore the file, with its time; or choose a moment whose files still exist"
        else:
            hint = (
                "choose a later moment, or one whose rows an input archive keeps (docs/archive.md); let "
                f"{'VACUUM' if self.source.kind == 'delta' else 'expire_snapshots'} keep files for longer"
            )
        label = "" if self.source.kind == "files" else f"{self._version(file)}: "
        return Gone(f"{label}{self._url(file.path)} does not exist any more", hint=hint)

    @property
    def _unit(self) -> str:
        return "row" if self.source.content == "parquet" else "line"

    def _version(self, file: SourceFile) -> str:
        return f"{self.source.label} {'version' if self.source.kind == 'delta' else 'snapshot'} {file.version}"

    def _url(self, path: str) -> str:
        url = path if _is_absolute(path) else f"{self.source.address}/{path}"
        return url if "://" in url or url.startswith("file:") else f"file://{url}"

    def _locate(self, path: str) -> tuple[ObjectStore, str]:
        if not _is_absolute(path):
            return self.store.at(self.source.address), path
        root, _, key = path.rpartition("/")
        if root.startswith("file:"):
            root = "/" + root.removeprefix("file:").lstrip("/")
        return self.store.at(root.replace("s3a://", "s3://", 1) or "/"), key


def _size_and_time(store: ObjectStore, key: str) -> tuple[int, int]:
    local = store.local_path(key)
    if local is not None:
        with suppress(OSError):
            status = local.stat()
            return status.st_size, status.st_mtime_ns // 1_000_000
    for info in store.list(key):
        if info.key == key:
            return info.size_bytes, info.modified_ms
    raise ObjectNotFound(key, store.url)


def _chunks(store: ObjectStore, key: str, start: int) -> Iterator[bytes]:
    while data := store.get_range(key, start, _CHUNK_BYTES):
        yield data
        start += len(data)


def _unpack(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack a gzip file of any number of members, in pieces of at most `_CHUNK_BYTES`."""
    unpacker, is_begun = zlib.decompressobj(_GZIP), False
    for chunk in chunks:
        unread = chunk
        while unread:
            if not is_begun and not (unread := unread.lstrip(b"\0")):
                break  # padding
            is_begun = True
            yield unpacker.decompress(unread, _CHUNK_BYTES)
            unread = unpacker.unconsumed_tail
            if unpacker.eof:
                unread, unpacker, is_begun = unpacker.unused_data, zlib.decompressobj(_GZIP), False
    if is_begun:
        yield unpacker.flush()
        if not unpacker.eof:
            raise EOFError("it ends too early")


def _is_absolute(path: str) -> bool:
    return "://" in path or path.startswith(("/", "file:/"))


def _repeat(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _header_lists(headers: Mapping[str, pa.Array], count: int) -> pa.Array:
    width = len(headers)
    by_row = np.arange(width * count).reshape(width, count).T.ravel()
    names = pa.array(list(headers) * count, pa.string())
    values = pa.concat_arrays([*headers.values()]).take(pa.array(by_row))
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1) * width, pa.int32()), entries).cast(HEADERS)


def encode_rows(rows: pa.Table, constants: Mapping[str, Any]) -> pa.Array:
    """Encode rows as JSON objects that `from_json` reads; times to the microsecond, binary values as base64.

    `constants` are values of columns that the rows lack.
    """
    columns = {name: map_nested(rows[name].combine_chunks(), _exact_times) for name in rows.column_names}
    for name, value in constants.items():
        columns.setdefault(name, pa.repeat(pa.scalar(value), rows.num_rows))
    return encode_objects(pa.table(columns))


def _exact_times(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _exact_times(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        plain = column.cast(pa.int64()).cast(pa.timestamp(kind.unit)).cast(pa.timestamp("us"), safe=False)
        text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
        return pc.binary_join_element_wise(text, "Z" if kind.tz else "", "")
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_time(kind):
        return column.cast(pa.string())
    return column
