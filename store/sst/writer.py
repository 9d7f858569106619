"""SSTs: sorted, immutable Parquet objects, and their way to and from Arrow.

One format for everybody: our look-ups, DuckDB and any Parquet reader. Rows are sorted by (`_hash`, key); row
groups are small and carry the range of their `_hash` and a filter over it, so a look-up reads only those it needs, and
the ranges of `_seq`, `_expires_at` and `_due_at`, so that who asks for what changed or falls due does; pages carry a
CRC, and the manifest the checksum of the whole.

At the end: the filters of all row groups, the xxh3_64 of each (eight bytes, big-endian), Parquet's footer. The
checksums lie where Parquet looks for nothing; they are ours, because nothing else says that a filter is whole, and a
bit lost in one would hide a row.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from ulid import ULID

from ...errors import Refused
from ..objects.protocol import ObjectStore
from ..versions import keys
from ..versions.manifest import Sst, Table
from .bloom import FALSE_POSITIVES
from .hashing import normalise_keys, partition_of, sort_keys
from .python_values import python_rows
from .types import DUE, EXPIRES, HASH, OP, PREV, SEQ, TOMBSTONE, completed, shape, sst_schema

ROW_GROUP_ROWS = 16_384
"""One key costs one read of about half a megabyte; larger groups compress and scan hardly any better."""


class SstWriter:
    """Encodes one SST from batches of rows that come in its order. Holds the encoded bytes in memory.

    Attributes:
        num_rows: rows appended so far.
    """

    def __init__(self, table: Table) -> None:
        schema = sst_schema(table)
        self._can_expire = table.ttl is not None
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            **_encoding(schema),
            write_statistics=[HASH, SEQ, *(name for name in (EXPIRES, DUE) if name in schema.names)],
            write_page_checksum=True,
            # For a full row group; Arrow folds the filter of a smaller one.
            bloom_filter_options={HASH: {"ndv": ROW_GROUP_ROWS, "fpp": FALSE_POSITIVES}},
        )
        self.num_rows = 0
        self._num_tombstones = 0
        self._hash_min = self._hash_max = 0
        self._seqs: list[int] = []
        self._num_expiring = 0
        self._expires: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Encoded bytes so far, without the footer."""
        return int(self._sink.tell())

    def append(self, rows: pa.Table) -> None:
        """Add rows; they follow all rows before in the SST's order and have exactly its schema."""
        if not rows.num_rows:
            return
        if self._can_expire:
            expires = rows.column(EXPIRES).drop_null()
            self._num_expiring += len(expires)
            self._expires += _min_and_max(expires)
        if not self.num_rows:
            self._hash_min = rows.column(HASH)[0].as_py()
        self._hash_max = rows.column(HASH)[-1].as_py()
        self.num_rows += rows.num_rows
        self._seqs += _min_and_max(rows.column(SEQ))
        self._num_tombstones += pc.sum(pc.equal(rows.column(OP), TOMBSTONE)).as_py()
        self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)

    def finish(self, *, app: str, stage: str, partition: int, level: int) -> tuple[Sst, bytes]:
        """The SST's entry for a manifest, under a new object name, and its bytes, still to be put there.

        Raises:
            ValueError: no row was appended; an SST has at least one.
        """
        if not self.num_rows:
            raise ValueError("an SST has at least one row; found none")
        self._writer.close()
        data, filter_bytes, footer_bytes = _with_checksums(self._sink.getvalue())
        sst = Sst(
            object=keys.sst(app, stage, str(ULID())),
            partition=partition,
            level=level,
            rows=self.num_rows,
            bytes=len(data),
            checksum=xxhash.xxh3_128_hexdigest(data),
            hash_min=self._hash_min,
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
        )
        return sst, data


def _min_and_max(numbers: pa.ChunkedArray) -> list[int]:
    return list(pc.min_max(numbers).as_py().values()) if len(numbers) else []


def prepare(rows: pa.Table, table: Table) -> pa.Table:
    """The rows as an SST holds them: its columns and types, one form for each key, sorted by (`_hash`, key).

    Args:
        rows: `_hash`, key and value columns, `_seq`, `_op`, perhaps `_prev_seq`, and for a table with a ttl
            `_expires_at`, in any order of columns and rows; others are dropped.
        table: what the columns are declared to be.

    Raises:
        Refused: a column is missing or its values do not fit the declared type; or two rows have the same
            key.
    """
    schema = sst_schema(table)
    if rows.schema != schema:
        try:
            rows = completed(rows, schema).cast(schema)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise Refused(
                f"rows do not fit the table: expected columns {shape(schema)}; found {shape(rows.schema)} ({error})"
            ) from error
    key_names = [column.name for column in table.key]
    rows = normalise_keys(rows, key_names)
    order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.select(key_names))
    if repeats.any():
        (example,) = python_rows(rows.select(key_names).slice(int(order[np.argmax(repeats)]), 1))
        raise Refused(
            f"{int(repeats.sum())} rows have the key of another row, such as {example}: expected one row of each key",
            hint="return exactly one state row for each key of the batch",
        )
    in_order = bool((order[1:] > order[:-1]).all())
    rows = rows if in_order else rows.take(pa.array(order))
    return pa.Table.from_arrays(rows.columns, schema=schema)  # with the columns' ids


class RowsCache(Protocol):
    """What writing needs of the cache on this machine."""

    def add(self, sst: Sst, rows: pa.Table, /) -> object:
        """Keep the rows of an SST that was written."""
        ...


def write(
    store: ObjectStore,
    cache: RowsCache | None,
    *,
    app: str,
    stage: str,
    table: Table,
    partition: int,
    rows: pa.Table,
    level: int = 0,
) -> Sst:
    """Put one SST with these rows, at least one, into the store (one request), and into the cache if there is one.

    Returns:
        Its entry for the manifest. Until a manifest with it is committed, nobody else sees the object.

    Raises:
        Refused: see `prepare`; or a row belongs to another state partition.
        ValueError: there are no rows.
        Unavailable: the store did not answer.
    """
    rows = prepare(rows, table)
    writer = SstWriter(table)
    writer.append(rows)
    sst, data = writer.finish(app=app, stage=stage, partition=partition, level=level)
    ends = partition_of(np.array([sst.hash_min, sst.hash_max]), table.partitions)
    if (ends != partition).any():
        raise Refused(
            f"rows for state partition {partition} of {app}/{stage} have hashes of partitions "
            f"{ends[0]} to {ends[1]} of {table.partitions}; nothing was written"
        )
    store.put(sst.object, data)
    if cache is not None:
        cache.add(sst, rows)
    return sst


@lru_cache(maxsize=64)
def _encoding(schema: pa.Schema) -> dict[str, Any]:
    """How the columns are encoded and compressed, as `pq.ParquetWriter` takes it.

    Measured on 5 M rows of a string key and two numbers: with zstd for all columns they are 105 MB, and DuckDB sums the
    numbers in 111 ms; as here 103 MB, and 43 ms.
    """
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    strings = [path for path, kind in leaves if pa.types.is_string(kind) or pa.types.is_binary(kind)]
    # lz4 is the fastest to read, and with the bytes of numbers apart it finds what zstd would. DuckDB reads this
    # encoding for these types and for no others.
    numbers = [f.name for f in schema if _is_number(f.type) and f.name not in (HASH, SEQ, OP, PREV, EXPIRES)]
    levels = {path: 1 for path, _ in leaves}
    # Nothing makes a hash smaller.
    fast = dict.fromkeys(numbers, "lz4") | {HASH: "none"}
    return {
        "compression": dict.fromkeys(levels, "zstd") | fast,
        "compression_level": {name: level for name, level in levels.items() if name not in fast},
        # A dictionary pays for what repeats as a whole.
        "use_dictionary": [SEQ, OP, PREV, EXPIRES, *strings],
        "use_byte_stream_split": numbers,
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind))


def _with_checksums(data: pa.Buffer) -> tuple[bytes, int, int]:
    """The file with its filters' checksums before the footer; bytes of the filters, and of checksums and footer."""
    # Parquet ends with the footer, its length in four bytes, and PAR1.
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    end = data.size - footer_bytes
    groups = pq.read_metadata(pa.BufferReader(data.slice(end)))
    places = [groups.row_group(i).column(0) for i in range(groups.num_row_groups)]
    checksums = b"".join(
        xxhash.xxh3_64_digest(data.slice(place.bloom_filter_offset, place.bloom_filter_length)) for place in places
    )
    filter_bytes = end - places[0].bloom_filter_offset
    # Nothing in a footer points at itself, so it may begin later.
    return b"".join((data.slice(0, end), checksums, data.slice(end))), filter_bytes, len(checksums) + footer_bytes


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Parquet's paths of the plain columns that a column is made of, and their types."""
    types = pa.types
    if types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _leaves(f"{path}.{kind.field(number).name}", kind.field(number).type)
    elif types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind
