"""Writes SSTs: sorted, immutable Parquet objects.

One format serves look-ups, DuckDB and any Parquet reader. Rows are sorted by (`_hash`, key). Row groups have statistics
of `_hash`, `_seq`, `_expires_at` and `_due_at`, and a Bloom filter over `_hash`; Parquet's page index has these
statistics and the offset for each page. The pages of all columns begin at the same rows. So look-ups, queries for
changes and queries for due rows read only the pages that they need. Pages carry a CRC, and the manifest has the
checksum of the whole file.

The end of a file has, in this order: the filters of all row groups; Parquet's page index; the xxh32 of each 512 bytes
of a filter; for each row group, the xxh3_64 over its index and its xxh32 values; Parquet's footer. Checksums are
big-endian. They are no part of Parquet, and are stored where Parquet readers ignore them. Parquet does not protect
filters and indexes with checksums, and a flipped bit in either could hide a row.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from tempfile import NamedTemporaryFile
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from ...common import runtime
from ...errors import Refused
from ..objects.protocol import ObjectStore
from ..versions import keys
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from .arrow_types import is_sql_safe, python_rows
from .hashing import normalise_keys, one_array, partition_of, sort_keys
from .parquet_index import (
    CHUNK_BYTES,
    FALSE_POSITIVE_RATE,
    FileMetaData,
    decode_struct,
    filter_bits_range,
    index_ranges,
)
from .schema import DUE, EXPIRES, HASH, OP, PREV, SEQ, TOMBSTONE, add_missing_columns, describe_schema, sst_schema

ROW_GROUP_ROWS = 131_072
"""Maximum number of rows in a row group. More row groups make the footer longer, which cold look-ups read."""
ROW_GROUP_BYTES = 32 << 20
_MIN_ROW_GROUP_ROWS = 16_384
PAGE_ROWS = 2_176
"""Maximum number of rows in a page. A look-up reads a page of each column; smaller pages slow down scans."""
_SMALL_SST_PAGES = 14
_MIN_NARROW_PAGE_ROWS = 512
_PAGE_BYTES = 128 << 10
_MIN_WIDE_PAGE_ROWS, _MAX_WIDE_PAGE_BYTES = 64, 1 << 20
_LARGE_ROW_BYTES = 8 << 20
"""Mean bytes of a row above which an SST is written with less memory."""
_DICTIONARY_BYTES = 64 << 10
_SAMPLE_ROWS, _SAMPLE_VALUES = 4_096, 16_384
_NO_LIMIT = 1 << 30
_NESTED_BATCH_VALUES = 1 << 26
"""Number of values that Arrow writes at a time from a nested column. Arrow allocates a bit for each in advance."""


def page_rows(rows: int) -> int:
    return min(PAGE_ROWS, max(_MIN_NARROW_PAGE_ROWS, rows // _SMALL_SST_PAGES))


class SstWriter:
    """Encodes one SST in memory, from batches of rows that are appended in SST order."""

    def __init__(self, table: Table) -> None:
        self._table, self._schema, self._can_expire = table, sst_schema(table), table.ttl is not None
        self._sink: pa.NativeFile = pa.BufferOutputStream()
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._row_group_rows = ROW_GROUP_ROWS
        self.num_rows = self._num_tombstones = self._num_expiring = self.hash_min = self._hash_max = 0
        self._seqs: list[int] = []
        self._expires: list[int] = []
        self._is_sql_safe = True

    @property
    def num_bytes(self) -> int:
        return int(self._sink.tell())

    def append(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if self._can_expire:
            expires = rows.column(EXPIRES).drop_null()
            self._num_expiring += len(expires)
            self._expires += _min_and_max(expires)
        if not self.num_rows:
            self.hash_min = rows.column(HASH)[0].as_py()
        self._hash_max = rows.column(HASH)[-1].as_py()
        self.num_rows += rows.num_rows
        self._seqs += _min_and_max(rows.column(SEQ))
        self._num_tombstones += pc.sum(pc.equal(rows.column(OP), TOMBSTONE)).as_py()
        self._is_sql_safe = self._is_sql_safe and is_sql_safe(rows)
        self._writer = self._writer or self._create_writer(rows)
        # With several chunks, Arrow would end pages at chunk ends, which differ by column.
        self._writer.write_table(rows.combine_chunks(), row_group_size=self._row_group_rows)
        if rows.nbytes > ROW_GROUP_BYTES:
            release_unused_memory()

    def _create_writer(self, rows: pa.Table) -> pq.ParquetWriter:
        row_bytes = rows.nbytes / rows.num_rows
        widest = max(column.nbytes for column in rows.columns) / rows.num_rows
        least = min(_MIN_ROW_GROUP_ROWS, ROW_GROUP_ROWS)
        self._row_group_rows = max(least, min(ROW_GROUP_ROWS, int(ROW_GROUP_BYTES / row_bytes)))
        # Arrow ends pages only between its write batches.
        narrow = page_rows(rows.num_rows)
        fewest = max(1, min(_MIN_WIDE_PAGE_ROWS, narrow, int(_MAX_WIDE_PAGE_BYTES / max(widest, 1))))
        wide = max(fewest, min(narrow, int(_PAGE_BYTES / max(widest, 1))))
        is_large = row_bytes > _LARGE_ROW_BYTES
        if is_large:
            # An in-memory buffer doubles its size as it grows.
            self._file = NamedTemporaryFile()  # noqa: SIM115  closed by `_take_data`
            self._sink = pa.OSFile(self._file.name, "wb")
        sample = rows.slice(0, _SAMPLE_ROWS)
        text = (leaf for name in sample.column_names for leaf in _text_leaves(name, one_array(sample[name])))
        samples = ((path, values.slice(0, _SAMPLE_VALUES)) for path, values in text)
        repeating = (path for path, values in samples if 2 * pc.count_distinct(values).as_py() <= len(values))
        if is_large:
            release_unused_memory()
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            **_encoding(self._schema, frozenset(repeating), is_large=is_large),
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            write_statistics=[HASH, SEQ, *(name for name in (EXPIRES, DUE) if name in self._schema.names)],
            write_page_checksum=True,
            write_page_index=True,
            # Version 2 of data pages compresses a page's values without copying them once more.
            data_page_version="2.0" if is_large else "1.0",
            # Limited by rows alone, so that the pages of all columns begin at the same rows.
            max_rows_per_page=wide,
            data_page_size=_NO_LIMIT,
            # If a dictionary grows too large, Arrow ends a page after a batch; the size of a batch counts values, not
            # rows.
            write_batch_size=_NESTED_BATCH_VALUES if any(map(pa.types.is_nested, self._schema.types)) else wide,
            # Sized for a full row group; Arrow folds the filter of a smaller one.
            bloom_filter_options={HASH: {"ndv": ROW_GROUP_ROWS, "fpp": FALSE_POSITIVE_RATE}},
        )

    def put(
        self,
        store: ObjectStore,
        *,
        app: str,
        stage: str,
        partition: int,
        level: int = 0,
        ulid: str = "",
        cache: "RowsCache | None" = None,
    ) -> Sst:
        """Put the SST into the store (one request) and the cache, and return its manifest entry.

        The SST becomes visible when a manifest with its entry is committed. Raises `ValueError` if no row was appended.
        """
        sst, data = self.finish(app=app, stage=stage, partition=partition, level=level, ulid=ulid)
        store.put(sst.object, data)
        if cache is not None:
            cache.add_encoded(sst, self._table, data)
        return sst

    def finish(self, *, app: str, stage: str, partition: int, level: int, ulid: str = "") -> tuple[Sst, bytes]:
        """Return the SST's manifest entry and its bytes, which the caller stores. Without `ulid`, the name is new.

        Raises `ValueError` if no row was appended.
        """
        if self._writer is None:
            raise ValueError("an SST has at least one row; found none")
        self._writer.close()
        data, filter_bytes, footer_bytes = _with_checksums(self._take_data())
        sst = Sst(
            object=keys.sst(app, stage, ulid or str(runtime.ulid())),
            partition=partition,
            level=level,
            rows=self.num_rows,
            bytes=len(data),
            checksum=xxhash.xxh3_128_hexdigest(data),
            hash_min=self.hash_min,
            hash_max=self._hash_max,
            seq_min=min(self._seqs),
            seq_max=max(self._seqs),
            tombstones=self._num_tombstones,
            footer_bytes=footer_bytes,
            footer_checksum=xxhash.xxh3_128_hexdigest(data[-footer_bytes:]),
            filter_bytes=filter_bytes,
            expiring=self._num_expiring,
            expires_min=min(self._expires, default=0),
            expires_max=max(self._expires, default=0),
            unshowable=not self._is_sql_safe,
        )
        return sst, data

    def _take_data(self) -> pa.Buffer:
        if self.num_bytes > ROW_GROUP_BYTES:
            release_unused_memory()
        # The writer may outlive its data.
        sink, self._sink, self._writer = self._sink, pa.BufferOutputStream(), None
        if self._file is None:
            return sink.getvalue()
        sink.close()
        with self._file as file:
            return pa.py_buffer(file.read())


def release_unused_memory() -> None:
    """Return Arrow's unused memory to the system. Arrow would keep about four times the size of a large row."""
    pa.default_memory_pool().release_unused()


def _min_and_max(numbers: pa.ChunkedArray) -> list[int]:
    return list(pc.min_max(numbers).as_py().values()) if len(numbers) else []


def prepare_rows(rows: pa.Table, table: Table) -> pa.Table:
    """Return rows in the format of an SST: its columns and types, normalised keys, sorted by (`_hash`, key).

    `rows` has `_hash`, the table's columns, `_seq`, `_op`, optionally `_prev_seq`, and `_expires_at` if the table has a
    ttl, in any order of columns and rows; other columns are dropped. Raises `Refused` if a column is missing, values do
    not fit their types, or two rows have the same key.
    """
    schema = sst_schema(table)
    if rows.schema != schema:
        try:
            rows = add_missing_columns(rows, schema).cast(schema)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise Refused(
                f"rows do not fit the table: expected columns {describe_schema(schema)}; found "
                f"{describe_schema(rows.schema)} ({error})"
            ) from error
    key_names = [column.name for column in table.key]
    rows = normalise_keys(rows, key_names)
    order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.select(key_names))
    if repeats.any():
        (example,) = python_rows(rows.select(key_names).slice(int(order[np.argmax(repeats)]), 1))
        raise Refused(
            f"{int(repeats.sum())} rows repeat the key of another row, such as {example}: expected one row per key",
            hint="return exactly one state row for each key of the batch",
        )
    in_order = bool((order[1:] > order[:-1]).all())
    rows = rows if in_order else rows.take(pa.array(order))
    return pa.Table.from_arrays(rows.columns, schema=schema)  # the schema has the columns' ids


class RowsCache(Protocol):
    """Local cache that accepts a new SST, as rows or as bytes."""

    def add(self, sst: Sst, rows: pa.Table, /) -> object:
        """Cache the SST's rows."""

    def add_encoded(self, sst: Sst, table: Table, data: bytes, /) -> object:
        """Decode the SST and cache its rows."""


def write_sst(
    store: ObjectStore,
    cache: RowsCache | None,
    *,
    app: str,
    stage: str,
    table: Table,
    partition: int,
    rows: pa.Table,
    ulid: str = "",
) -> Sst:
    """Put one SST with these rows into the store and the cache, and return its manifest entry.

    Without `ulid`, the name is new.

    Raises `Refused` if rows do not fit the table, repeat a key or belong to another hash range, and `ValueError`
    if there are no rows.
    """
    rows = prepare_rows(rows, table)
    writer = SstWriter(table)
    writer.append(rows)
    ends = partition_of(rows.column(HASH).to_numpy()[[0, -1] if rows.num_rows else []], table.ranges)
    if (ends != partition).any():
        raise Refused(
            f"rows for hash range {partition} of {app}/{stage} have hashes of the ranges "
            f"{ends[0]} to {ends[1]} of {table.ranges}; nothing was written"
        )
    sst = writer.put(store, app=app, stage=stage, partition=partition, ulid=ulid)
    if cache is not None:
        cache.add(sst, rows)
    return sst


def write_partitions(
    store: ObjectStore,
    cache: RowsCache | None,
    *,
    app: str,
    stage: str,
    table: Table,
    rows: pa.Table,
) -> tuple[Sst, ...]:
    """Put one SST for each hash range of these rows, and return the manifest entries.

    Raises `Refused` if rows do not fit the table.
    """
    numbers = partition_of(rows[HASH].to_numpy(), table.ranges)
    parts = ((partition, rows.filter(pa.array(numbers == partition))) for partition in np.unique(numbers).tolist())
    put = partial(write_sst, store, cache, app=app, stage=stage, table=table)
    return tuple(put(partition=partition, rows=part) for partition, part in parts)


@lru_cache(maxsize=64)
def _encoding(schema: pa.Schema, repeating: frozenset[str], *, is_large: bool = False) -> dict[str, Any]:
    """Return the encoding and compression of each column, as keyword arguments of `pq.ParquetWriter`.

    `repeating` has the paths of text and binary columns whose values repeat in a sample, including nested columns.

    Measured on 5 M rows of a string key and two numbers: 105 MB with zstd for all columns, and DuckDB sums the numbers
    in 111 ms; with lz4 for the numbers 103 MB and 43 ms; with hashes and the key encoded as here, 88 MB and 43 ms.
    """
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    parquet = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    # Parquet's leaf columns, including those of nested columns.
    plain = {parquet.column(number).path: parquet.column(number).physical_type for number in range(len(parquet))}
    # A dictionary pays off for repeating values; other text is faster to read with separate lengths. A dictionary of
    # the text in lists would not be limited (`_NESTED_BATCH_VALUES`), and each look-up would read it.
    text = [path for path, kind in plain.items() if kind == "BYTE_ARRAY" and path in repeating]
    apart = [path for path, kind in plain.items() if kind == "BYTE_ARRAY" and path not in repeating]
    # lz4 is the fastest to read, and compresses byte-split numbers as well as zstd. DuckDB reads this encoding only
    # for these types.
    is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)
    numbers = [field.name for field in schema if any(is_one(field.type) for is_one in is_number)]
    numbers = [name for name in numbers if name not in (HASH, SEQ, OP, PREV, EXPIRES)]
    # Delta encoding makes sorted hashes small; compression adds nothing.
    fast = dict.fromkeys(numbers, "lz4") | {HASH: "none"}
    return {
        "compression": dict.fromkeys(plain, "zstd") | fast,
        "compression_level": {path: 1 for path in plain if path not in fast},
        "use_dictionary": [SEQ, OP, PREV, EXPIRES, *text],
        "column_encoding": {HASH: "DELTA_BINARY_PACKED"}
        | dict.fromkeys(numbers, "BYTE_STREAM_SPLIT")
        # Arrow copies the text of a page twice for this encoding.
        | dict.fromkeys(apart, "PLAIN" if is_large else "DELTA_LENGTH_BYTE_ARRAY"),
    }


def _text_leaves(path: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the text and binary values in a column, with their paths in Parquet."""
    types, kind = pa.types, column.type
    if types.is_struct(kind):
        for number, child in enumerate(column.flatten()):
            yield from _text_leaves(f"{path}.{kind.field(number).name}", child)
    elif types.is_map(kind):
        yield from _text_leaves(f"{path}.key_value.key", column.keys)
        yield from _text_leaves(f"{path}.key_value.value", column.items)
    elif types.is_list(kind):
        # Unlike `flatten`, slicing the values copies nothing.
        starts = column.offsets[0].as_py(), column.offsets[-1].as_py()
        yield from _text_leaves(f"{path}.list.element", column.values.slice(starts[0], starts[1] - starts[0]))
    elif _is_text(kind):
        yield path, column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _with_checksums(data: pa.Buffer) -> tuple[bytes, int, int]:
    # Parquet ends with the footer, its length in four bytes, and PAR1.
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    end = data.size - footer_bytes
    groups = decode_struct(FileMetaData, data[end:-8].to_pybytes()).row_groups
    chunks, digests = [], []
    for group in groups:
        start, stop = filter_bits_range(group.columns[0].meta_data)
        pieces = (data[at : min(at + CHUNK_BYTES, stop)] for at in range(start, stop, CHUNK_BYTES))
        chunks.append(b"".join(map(xxhash.xxh32_digest, pieces)))
        digests.append(xxhash.xxh3_64_digest(b"".join((*(data[a:b] for a, b in index_ranges(group)), chunks[-1]))))
    rows_end = max(chunk.meta_data.end for chunk in groups[-1].columns)
    added = b"".join((*chunks, *digests))
    filter_bytes = end - rows_end + sum(map(len, chunks))
    # The footer can be moved, because no offset in it points into the footer.
    return b"".join((data.slice(0, end), added, data.slice(end))), filter_bytes, 8 * len(groups) + footer_bytes
