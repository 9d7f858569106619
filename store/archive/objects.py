"""Parquet objects of an archive, with the columns of Spark's Kafka source, sorted by partition and offset.

Any Parquet reader can read them. The index has the checksums of the whole object and of its footer, and pages carry a
CRC, so that single row groups can be read by ranges and still be verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from ...errors import Corruption, ObjectNotFound
from ..objects.protocol import ObjectStore
from ..objects.range_file import RangeFile
from .columns import SCHEMA
from .extents import Extents
from .index import ArchiveObject

_ROW_GROUP_ROWS = 65_536
_MIN_ROW_GROUP_ROWS = 8_192
_ROW_GROUP_BYTES = 16 << 20
_SMALL_OBJECT_BYTES = 256 << 10
_SAMPLE_ROWS = 4_096
_DECODE_ERRORS = (pa.ArrowException, OSError)


class ArchiveWriter:
    """Encoder of one archive object. Holds the encoded bytes and one row group in memory."""

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = self.num_rows = 0
        self._last = (-1, -1)
        self._times: list[int] = []

    @property
    def num_bytes(self) -> int:
        return int(self._sink.tell())

    def append(self, records: pa.Table) -> None:
        """Append records with the columns of `SCHEMA`. Raises `ValueError` if they are not in order."""
        if not records.num_rows:
            return
        if self._waiting_rows >= _MIN_ROW_GROUP_ROWS and records["partition"][0].as_py() != self._last[0]:
            # A new row group begins, so that a reader of one partition reads no rows of another.
            self._write()
        self._check_order(records)
        self.num_rows += records.num_rows
        self._times += [value.as_py() for value in pc.min_max(records["timestamp"].cast(pa.int64())).values()]
        self._waiting.append(records)
        self._waiting_rows += records.num_rows
        self._waiting_bytes += records.nbytes
        if self._waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write()

    def _check_order(self, records: pa.Table) -> None:
        partitions, offsets = (records[name].to_numpy() for name in ("partition", "offset"))
        later = (partitions[1:] > partitions[:-1]) | ((partitions[1:] == partitions[:-1]) & (np.diff(offsets) > 0))
        if (int(partitions[0]), int(offsets[0])) <= self._last or not later.all():
            raise ValueError(f"expected records in the order of partition and offset; these do not follow {self._last}")
        self._last = int(partitions[-1]), int(offsets[-1])

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._writer = self._writer or pq.ParquetWriter(self._sink, SCHEMA, **_encoding(rows.slice(0, _SAMPLE_ROWS)))
        per_row = max(1, rows.nbytes // rows.num_rows)
        size = max(1, min(_ROW_GROUP_ROWS, _ROW_GROUP_BYTES // per_row))
        self._writer.write_table(rows, row_group_size=size)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def finish(self, key: str, extents: Extents, read_ms: int) -> tuple[ArchiveObject, bytes]:
        """Return the object's index entry, and its bytes, which the caller puts under the key.

        Raises `ValueError` if no record was appended.
        """
        if not self.num_rows:
            raise ValueError("an object of an archive has at least one record; found none")
        self._write()
        assert self._writer is not None  # noqa: S101  there were rows
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        # Parquet ends with the footer, its length in four bytes, and PAR1.
        footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
        entry = ArchiveObject(
            key,
            rows=self.num_rows,
            bytes=len(data),
            checksum=xxhash.xxh3_128_hexdigest(data),
            footer_bytes=footer_bytes,
            footer_checksum=xxhash.xxh3_128_hexdigest(data[-footer_bytes:]),
            extents=extents,
            time_min_ms=min(self._times),
            time_max_ms=max(self._times),
            read_ms=read_ms,
        )
        return entry, data


def _encoding(sample: pa.Table) -> dict[str, object]:
    repeating = [name for name in ("key", "value") if 2 * pc.count_distinct(sample[name]).as_py() <= sample.num_rows]
    apart = {name: "DELTA_LENGTH_BYTE_ARRAY" for name in ("key", "value") if name not in repeating}
    headers = ["headers.list.element.key", "headers.list.element.value"]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["topic", "partition", "timestampType", *repeating, *headers],
        "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED", **apart},
        "write_statistics": ["partition", "offset", "timestamp"],
        "write_page_checksum": True,
    }


def corruption_error(item: ArchiveObject, reason: str) -> Corruption:
    return Corruption(
        f"object {item.object} of the input archive is damaged: {reason}",
        object_key=item.object,
        hint="restore the object from a backup or an older object version; `slackwater verify` checks the others",
    )


def fetch(store: ObjectStore, item: ArchiveObject) -> bytes:
    """Return the object's bytes. Raises `Corruption` if the object is missing or damaged."""
    try:
        data = store.get(item.object)
    except ObjectNotFound as error:
        raise corruption_error(item, "the object is missing") from error
    if len(data) != item.bytes:
        raise corruption_error(item, f"expected {item.bytes} bytes, found {len(data)}")
    if (actual := xxhash.xxh3_128_hexdigest(data)) != item.checksum:
        raise corruption_error(item, f"expected checksum {item.checksum}, found {actual}")
    return data


def open_file(store: ObjectStore, item: ArchiveObject, on_error: Callable[[Exception], None]) -> pa.PythonFile:
    """Open an object as a file that is read on demand. Errors of later reads are passed to `on_error`.

    The call itself reads the footer (of a small object, everything), and raises errors of that read.
    """
    return pa.PythonFile(_open_ranges(store, item, on_error), mode="r")


def _open_ranges(store: ObjectStore, item: ArchiveObject, on_error: Callable[[Exception], None]) -> _RangeFile:
    if item.bytes <= _SMALL_OBJECT_BYTES:
        return _RangeFile(store, item, (0, fetch(store, item)), on_error)
    start = item.bytes - item.footer_bytes
    footer = _fetch_range(store, item, start, item.footer_bytes)
    if (actual := xxhash.xxh3_128_hexdigest(footer)) != item.footer_checksum:
        raise corruption_error(item, f"expected checksum {item.footer_checksum} of its footer, found {actual}")
    return _RangeFile(store, item, (start, footer), on_error)


def _fetch_range(store: ObjectStore, item: ArchiveObject, start: int, length: int) -> bytes:
    try:
        data = store.get_range(item.object, start, length)
    except ObjectNotFound as error:
        raise corruption_error(item, "the object is missing") from error
    if len(data) != length:
        raise corruption_error(item, f"expected {length} bytes from {start} on, found {len(data)}")
    return data


class ArchivedRecords:
    """Records of one archive object in the store, read by row group on demand. Caches one row group."""

    def __init__(self, store: ObjectStore, item: ArchiveObject) -> None:
        self._item, self._range_file = item, _open_ranges(store, item, lambda _error: None)
        try:
            file = pa.PythonFile(self._range_file, mode="r")
            self._file = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
            self._groups = [_GroupRange(self._file.metadata.row_group(n)) for n in range(self._file.num_row_groups)]
        except _DECODE_ERRORS as error:
            raise corruption_error(item, str(error)) from error
        if not self._file.schema_arrow.equals(SCHEMA):
            raise corruption_error(
                item, f"expected columns ({_names(SCHEMA)}), found ({_names(self._file.schema_arrow)})"
            )
        self._cached_group: tuple[int, tuple[str, ...], pa.Table] | None = None

    def rows(self, partition: int, first: int, end: int, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.Table]:
        for number, group in enumerate(self._groups):
            if not group.may_have(partition, first, end):
                continue
            rows = self._read_group(number, tuple(columns))
            partitions, offsets = (rows[name].to_numpy() for name in ("partition", "offset"))
            start, stop = np.searchsorted(partitions, (partition, partition + 1))
            start, stop = start + np.searchsorted(offsets[start:stop], (first, end))
            if start < stop:
                yield rows.slice(start, stop - start).select(list(columns))

    def all_rows(self) -> Iterator[pa.Table]:
        for number in range(len(self._groups)):
            yield self._read_group(number, tuple(SCHEMA.names))

    def _read_group(self, number: int, columns: tuple[str, ...]) -> pa.Table:
        if self._cached_group is None or self._cached_group[:2] != (number, columns):
            self._cached_group = None
            self._range_file.cache_only(self._groups[number].span)
            try:
                names = [name for name in SCHEMA.names if name in (*columns, "partition", "offset")]
                rows = self._file.metadata.row_group(number).num_rows
                batches = self._file.iter_batches(batch_size=max(rows, 1), row_groups=[number], columns=names)
                table = pa.Table.from_batches(batches, pa.schema([SCHEMA.field(name) for name in names]))
            except _DECODE_ERRORS as error:
                raise corruption_error(self._item, str(error)) from error
            self._cached_group = number, columns, table.combine_chunks()
        return self._cached_group[2]


class _GroupRange:
    """Byte range of a row group, and its ranges of partitions and offsets."""

    def __init__(self, group: pq.RowGroupMetaData) -> None:
        columns = [group.column(number) for number in range(group.num_columns)]
        starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
        ends = [start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)]
        self.span = min(starts), max(ends)
        by_name = {column.path_in_schema: column.statistics for column in columns}
        partition, offset = by_name["partition"], by_name["offset"]
        self._partitions = partition.min, partition.max
        self._offsets = offset.min, offset.max

    def may_have(self, partition: int, first: int, end: int) -> bool:
        low, high = self._partitions
        within = self._offsets[0] < end and first <= self._offsets[1]
        return bool(low <= partition <= high and within)


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class _RangeFile(RangeFile):
    """Object in the store as a file that is fetched by ranges. Caches the first range and one chosen range."""

    def __init__(
        self, store: ObjectStore, item: ArchiveObject, first: tuple[int, bytes], on_error: Callable[[Exception], None]
    ) -> None:
        super().__init__(item.bytes, self._read)
        self._store, self._item, self._on_error = store, item, on_error
        self._ranges = [first]

    def cache_only(self, span: tuple[int, int]) -> None:
        start, length = span[0], span[1] - span[0]
        if self._cached_range(start, length) is None:
            self._ranges = [self._ranges[0], (start, _fetch_range(self._store, self._item, start, length))]

    def _cached_range(self, start: int, length: int) -> bytes | None:
        parts = (data[start - at : start - at + length] for at, data in self._ranges if at <= start)
        return next((part for part in parts if len(part) == length), None)

    def _read(self, start: int, length: int) -> bytes:
        if (data := self._cached_range(start, length)) is not None:
            return data
        try:
            # Sequential reads of the whole object are not cached.
            return _fetch_range(self._store, self._item, start, length)
        except Exception as error:
            self._on_error(error)
            raise
